"""`arquant reproduce`: what is run for the paper's tables, its numbers beside ours, and going on after a kill."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arquant.base.errors import MismatchError
from arquant.base.progress import Status
from arquant.base.run_folder import read_config
from arquant.commands.main import main
from arquant.commands.reproduce import reproduce
from arquant.reporting.html import tables_page
from arquant.reporting.reproduction import DIFFERENCE, QUANTITIES, Job, Row, Target, charts_of, policy_charts, tables_of
from arquant.reporting.reproduction_scales import PAPER_SETTINGS, SCALES
from arquant.reporting.reproduction_targets import TARGETS, VARIANTS
from arquant.searching import method
from arquant.searching.method import methods
from arquant.searching.trained_methods import TRAINED
from tests.support.small_search import SIGMA, image_set, quick_engines


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "_methods", dict(method._methods))


@pytest.fixture
def _quick() -> Iterator[None]:
    with quick_engines():
        yield


def test_alone_it_lists_fifteen_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().out
    assert len(TARGETS) == 15
    assert all(f"  {name} " in said for name in TARGETS)


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_what_a_target_says_can_be_run_and_shown(target: Any, scale: Any) -> None:
    rows = target.rows(scale)
    assert len({row.label for row in rows}) == len(rows)
    assert set(target.columns) <= set(QUANTITIES)
    known = {*methods(), *TRAINED, *VARIANTS, "float", "constant"}
    for row in rows:
        assert set(row.paper) <= set(QUANTITIES)
        assert row.job is not None or row.why or any(other.why for other in rows), (
            "a reader is told why there is no number"
        )
        if row.job is not None and row.job.kind in ("benchmark", "longer"):
            assert row.part in known
    assert [job.after is not None for job, _ in target.jobs(scale)] == sorted(
        job.after is not None for job, _ in target.jobs(scale)
    )
    main_table, settings = tables_of(target, scale, {})
    assert all(len(row) == len(main_table.columns) for row in main_table.rows)
    assert all(len(row) == 3 for row in settings.rows)


def test_jobs_of_one_folder_have_the_same_options() -> None:
    for scale in SCALES.values():
        found: dict[str, Any] = {}
        for target in TARGETS.values():
            for job, _ in target.jobs(scale):
                assert found.setdefault(job.folder, job.options) == job.options, f"{target.name}: {job.folder}"


def test_the_numbers_are_those_of_the_paper() -> None:
    """Some of each table, read in arq.tex once more."""
    paper = SCALES["paper"]
    rows = {(name, row.label): row.paper for name, target in TARGETS.items() for row in target.rows(paper)}
    assert rows["bops", "σ 0.5, 3 bits: ARQ"]["percent"] == pytest.approx(0.84, abs=0.005), "the abstract's 0.84 %"
    assert rows["imagenet", "resnet50, σ 1: ARQ"] == {"acr": 0.916, "accuracy": 46.0, "gbops": 63.5, "mib": 12.7}
    assert rows["vit", "ARQ"]["r0.5"] == 32.8
    assert rows["latency", "5-bit PACT"] == {"acr": 0.776, "ms": 21.55, "gbops": 7.21}
    assert rows["icr", "ICR"]["d0.5"] == -4.0
    assert rows["atmc", "σ 1: ATMC"] == {"acr": 0.159}
    assert rows["search-time", "ResNet-20: NIPQ"]["hours"] == 0.717
    assert rows["reward", "ACR+Acc"]["r1.75"] == 4.2
    assert rows["irs", "σ 1: ARQ, RS"] == {"acr": 0.537, "accuracy": 49.2, "gbops": 0.359}
    assert rows["finetune-length", "LIMPQ, 9 times as long"]["acr"] == 0.535
    assert rows["actor-lr", "1e-3"]["r1"] == 21.8


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("costs") / "out"
    found = {name: reproduce(name, out=out)["targets"][name] for name in ("imagenet", "vit", "latency")}
    return out, found


def test_costs_of_uniform_policies_are_the_papers_to_the_last_digit(costs: tuple[Path, dict[str, Any]]) -> None:
    pairs = [
        (row["ours"][name], row["paper"][name], 0.01 if name == "mib" else 0.005 if row["paper"][name] < 100 else 0.05)
        for target in ("imagenet", "vit")
        for row in costs[1][target]["rows"]
        for name in ("gbops", "mib")
        if row["ours"].get(name) is not None and name in row["paper"]
    ]
    assert len(pairs) == 2 * 2 * 3 * 3 + 2
    for ours, paper, digit in pairs:
        assert ours == pytest.approx(paper, abs=digit)


def test_networks_without_weights_have_no_acr_and_the_page_says_so(costs: tuple[Path, dict[str, Any]]) -> None:
    out, found = costs
    assert all(row["ours"].get("acr") is None for each in found.values() for row in each["rows"])
    page = (out / "imagenet.md").read_text()
    assert "| – (0.472) |" in page
    assert "Without weights trained with noise" in page
    assert "| weights | trained with noise on ImageNet | none: costs only |" in page


def test_latency_is_an_estimate_beside_the_papers(costs: tuple[Path, dict[str, Any]]) -> None:
    ours = {row["row"]: row["ours"].get("ms") for row in costs[1]["latency"]["rows"]}
    assert ours["4-bit PACT"] == pytest.approx(16.55, rel=0.02)
    assert ours["5-bit PACT"] == pytest.approx(21.55, rel=0.02)
    assert ours["ARQ"] is None


def test_every_format_is_written(costs: tuple[Path, dict[str, Any]]) -> None:
    out, found = costs
    with (out / "vit.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["row"], rows[0]["gbops_paper"], rows[0]["acr_ours"]) == ("FP 32", "373.87", "")
    assert r"\toprule" in (out / "vit.tex").read_text()
    assert "<h1>ViT-tiny</h1>" in (out / "vit.html").read_text()
    assert json.loads((out / "vit.json").read_text())["rows"] == found["vit"]["rows"]


def test_the_page_of_a_figure_has_its_series_and_its_tables() -> None:
    target, small = TARGETS["bops"], SCALES["small"]
    page = tables_page(target.title, tables_of(target, small, {}), charts_of(target, small, {}))
    assert page.count("<figure") == len(charts_of(target, small, {})) > 1
    assert '<i class="c1 pale"></i>ARQ (paper)</button>' in page
    assert "Settings that differ</h2>" in page
    found = charts_of(target, small, {})
    assert [chart.y_label.startswith("Δ") for chart in found] == [DIFFERENCE in chart.caption for chart in found]
    icr = tables_page(TARGETS["icr"].title, tables_of(TARGETS["icr"], small, {}), [])
    assert icr.count(DIFFERENCE) == 1
    assert icr.count(f">{TARGETS['icr'].title}<") == 2, (
        "the title of the window and of the page, not of its table again"
    )


def test_settings_that_differ_are_spelled_out() -> None:
    smoke, paper = (tables_of(TARGETS["irs"], SCALES[name], {})[1].rows for name in ("smoke", "paper"))
    assert ("certified", PAPER_SETTINGS["certified"], "8 images, n = 100") in smoke
    left = "what the paper does not say, and the float network, which gains by fine-tuning as others do"
    assert [row[0] for row in paper] == ["ARQ", "float network", "candidates"], left


def test_weights_of_ones_own_make_the_whole_table() -> None:
    scale = replace(SCALES["small"], weights={"resnet50@0.5": "runs/rn50"}, imagenet="folder:photos")
    rows = {row.label: row for row in TARGETS["imagenet"].rows(scale)}
    job = rows["resnet50, σ 0.5: LIMPQ"].job
    assert job is not None
    assert (job.options["model"], job.options["data"], job.options["budget"]) == (
        "runs/rn50", "folder:photos", "bops@paper<=4bit",
    )  # fmt: skip
    assert rows["resnet50, σ 0.25: LIMPQ"].job is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rewards"], "there is no target 'rewards'; did you mean reward?"),
        (["vit", "--weights", "resnet20@0.5=x"], "NETWORK@SIGMA=MODEL"),
        (["imagenet", "--weights", "resnet50@0.5=x"], "--imagenet folder:DIR"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_scale_needs_another_folder(costs: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(MismatchError, match="scale"):
        reproduce("vit", scale="small", out=costs[0])


def test_a_figure_has_our_points_and_the_papers() -> None:
    scale = SCALES["smoke"]
    figures = {"acr": 0.5, "percent": 1.0, "policy": [["stem", "w8a8"], ["body", "w3a4"]]}
    results = {"resnet20-0.5-3bit": {"arq-paper": figures, "haq": {**figures, "acr": 0.4}}}
    results["resnet20-0.5-3bit"]["float"] = {"acr": 0.6, "percent": 100.0}
    quarter, half, one = charts_of(TARGETS["bops"], scale, results)[:3]
    assert (quarter.title[-6:], half.title[-5:], one.title[-3:]) == ("σ 0.25", "σ 0.5", "σ 1")
    drawn = {series.name: (series.x, series.y) for series in half.series}
    assert drawn["FP 32"][1] == (0.6, 0.6), "a line over all others"
    assert max(drawn["FP 32"][0]) < 2
    assert drawn["ARQ"] == ((1.0,), (0.5,))
    assert drawn["HAQ"] == ((1.0,), (0.4,))
    assert 0.53 in drawn["ARQ (paper)"][1]
    (bits,) = policy_charts(TARGETS["policies"], scale, results)
    assert bits.ticks == ("stem", "body"), "in the order of execution"
    assert [series.y for series in bits.series] == [(8.0, 3.0), (8.0, 4.0)]
    assert charts_of(TARGETS["vit"], scale, results) == []


def tiny_target(folder: Path) -> Target:
    """Two methods on a network that is searched in seconds."""
    images = image_set(80, 31)
    np.savez(folder / "images.npz", images=np.asarray(images.images), labels=images.labels)
    options = {
        "model": "tests.support.small_search:factory", "data": f"npz:{folder / 'images.npz'}", "input": (3, 8, 8),
        "classes": 4, "split": (60, 20, 20), "sigma": SIGMA, "budget": "bops<=3bit", "seeds": 1, "trials": 2,
        "search_n": 24, "reference_n": 40, "steps": 1, "final_steps": 2, "train_batch": 32, "n0": 8, "n": 40,
        "compiled": False, "train_precision": "float32",
    }  # fmt: skip
    job = Job("tiny", "benchmark", options)
    parts = ("float", "pact", "arq-paper-rs", "constant")
    return Target("tiny", "Tiny", "nowhere", ("acr", "gbops"), lambda _: [Row(part, {}, job, part) for part in parts])


def without_times(result: dict[str, Any]) -> list[dict[str, Any]]:
    times = ("hours", "final_hours")
    rows = result["targets"]["tiny"]["rows"]
    return [{name: value for name, value in row["ours"].items() if name not in times} for row in rows]


@pytest.mark.usefixtures("_quick")
def test_killed_it_goes_on_and_ends_with_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "tiny", tiny_target(tmp_path))

    def killed(status: Status) -> None:
        if status.stage.startswith("certify pact"):
            raise KeyboardInterrupt

    whole = reproduce("tiny", out=tmp_path / "whole", threads=1)
    with pytest.raises(KeyboardInterrupt):
        reproduce("tiny", out=tmp_path / "out", threads=1, report=killed)
    assert not (tmp_path / "out" / "tiny.md").exists()
    again = reproduce("tiny", out=tmp_path / "out", threads=1)
    assert without_times(again) == without_times(whole)
    float_row, pact, variant, constant = without_times(again)
    assert float_row["percent"] == 100.0
    assert pact["bits"] == "8/8 3/3 3/3 8/8"
    assert variant["acr"] is not None
    assert list(constant) == ["acr"]
    assert read_config(tmp_path / "out/tiny/arq-paper-rs")["strategy"] == "arq-paper-rs"
    stages: list[str] = []
    reproduce("tiny", out=tmp_path / "out", threads=1, report=lambda status: stages.append(status.stage))
    assert not stages, "nothing is left to run"


@pytest.mark.slow
def test_all_targets_run_at_smoke(tmp_path: Path) -> None:
    found = reproduce("all", out=tmp_path / "out")
    assert set(found["targets"]) == set(TARGETS)
    for name, target in TARGETS.items():
        wanted = {row.label for row in target.rows(SCALES["smoke"]) if row.job is not None}
        ours = {row["row"]: row["ours"] for row in found["targets"][name]["rows"]}
        assert all(ours[label] for label in wanted), name
        assert (tmp_path / "out" / f"{name}.html").exists()
