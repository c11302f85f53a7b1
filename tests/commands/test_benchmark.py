"""`arquant benchmark`: methods under one protocol, with seeds, resumable."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.base.options import built
from arquant.base.progress import Status, silent
from arquant.base.run_folder import read_config
from arquant.certificates.files import read_certificates
from arquant.commands.benchmark import Benchmark, benchmark
from arquant.commands.main import main
from arquant.commands.report import report
from arquant.quantization.artifact import counted_bytes
from arquant.quantization.costs import Bops, WeightBytes
from arquant.quantization.policy import Policy
from arquant.searching import method
from arquant.searching.benchmarking import Clock, options_for
from arquant.searching.method import find_method, register_method
from arquant.searching.space import Space
from arquant.searching.strategies.uniform import Pact
from arquant.training.recipe import PRESETS
from tests.support.small_search import SIGMA, image_set, quick_engines, small_layers, small_space

NETWORK = "tests.support.small_search:factory"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    images = image_set(80, 31)
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, images=np.asarray(images.images), labels=images.labels)
    return f"npz:{path}"


def options(data: str, out: Path, **changes: Any) -> dict[str, Any]:
    common = {
        "model": NETWORK, "data": data, "input": (3, 8, 8), "classes": 4, "split": (60, 20, 20), "sigma": SIGMA,
        "budget": "bops<=3bit", "out": out, "trials": 2, "search_n": 24, "reference_n": 40, "steps": 2, "final_steps": 3,
        "train_batch": 32, "n0": 8, "n": 40, "threads": 1, "compiled": False, "train_precision": "float32",
    }  # fmt: skip
    return {**common, **changes}


@pytest.fixture(scope="module")
def made(data: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("made") / "out"
    with quick_engines():
        return out, benchmark(**options(data, out, methods=("random", "pact"), seeds=3))


def row(result: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (each for each in result["rows"] if each["method"] == name)
    return dict(found)


def test_every_row_is_what_its_certificates_say(made: tuple[Path, dict[str, Any]]) -> None:
    _, result = made
    assert [each["method"] for each in result["rows"]] == ["float", "random", "pact"]
    assert result["seeds"] == [10, 11, 12]
    for each in result["rows"]:
        sets = [read_certificates(Path(folder)) for folder in each["folders"].values()]
        acrs = [found.acr for found in sets]
        assert each["acr"]["by_seed"] == acrs
        assert each["acr"]["mean"] == pytest.approx(np.mean(acrs))
        assert each["acr"]["standard_deviation"] == pytest.approx(np.std(acrs, ddof=1))
        assert each["certified_accuracy"]["0.25"]["mean"] == pytest.approx(
            np.mean([found.certified_accuracy(0.25) for found in sets])
        )
    assert len({tuple(each["acr"]["by_seed"]) for each in result["rows"]}) > 1


def test_costs_are_those_of_the_policies_and_within_the_budget(made: tuple[Path, dict[str, Any]]) -> None:
    _, result = made
    layers = small_layers()
    assert row(result, "float")["bops"] == Bops().float_cost(layers)
    for name in ("random", "pact"):
        found = row(result, name)
        policy = Policy(found["policy"])
        assert small_space().contains(policy)
        assert found["bops"] == Bops().cost(policy, layers)
        assert found["bops_paper"] == Bops("paper").cost(policy, layers)
        assert found["bytes"] == WeightBytes().cost(policy, layers)
        assert found["latency"] is None
        assert found["search_seconds"] > 0
        assert found["search_steps"] >= 2
    assert row(result, "float")["search_steps"] is None


def test_differences_are_paired_with_the_first_method(made: tuple[Path, dict[str, Any]]) -> None:
    _, result = made
    first, float_row = row(result, "random"), row(result, "float")
    assert first["difference"] is None
    gap = float_row["difference"]
    assert gap["to"] == "random"
    assert gap["acr"]["value"] == pytest.approx(float_row["acr"]["mean"] - first["acr"]["mean"])
    assert gap["acr"]["low"] <= gap["acr"]["value"] <= gap["acr"]["high"]


def test_the_constant_classifier_stands_beside_them(made: tuple[Path, dict[str, Any]]) -> None:
    out, result = made
    found = read_certificates(out / "float" / "seed-10")
    assert found.settings is not None
    share = np.bincount(found.labels).max() / len(found)
    assert result["constant_acr"] == pytest.approx(share * found.settings.largest_radius)


def test_the_folder_has_the_table_in_every_format(made: tuple[Path, dict[str, Any]]) -> None:
    out, result = made
    assert json.loads((out / "benchmark.json").read_text())["rows"] == result["rows"]
    with (out / "benchmark.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [each["method"] for each in rows] == ["float", "random", "pact"]
    assert float(rows[1]["acr_mean"]) == row(result, "random")["acr"]["mean"]
    assert "| random |" in (out / "benchmark.md").read_text()
    assert r"\toprule" in (out / "benchmark.tex").read_text()
    assert read_config(out / "random" / "seed-10")["command"] == "benchmark"


def test_a_report_has_the_table_in_every_format(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, result = made
    page = report(out, out=tmp_path / "page.html").path.read_text()
    assert "Certified accuracy by radius" in page
    assert all(f'<th scope="row">{each["method"]}</th>' in page for each in result["rows"])
    for kind, name in (("md", "benchmark.md"), ("latex", "benchmark.tex"), ("csv", "benchmark.csv")):
        assert report(out, format=kind, out=tmp_path).path.read_text() == (out / name).read_text()
    for wrong, message in (
        ({"format": "card"}, "no report as card"),
        ({"runs": [out, out / "pact"]}, "reported alone"),
    ):
        with pytest.raises(InputError, match=message):
            report(**{"runs": out, "out": tmp_path, **wrong})
    assert not (out / "report.html").exists(), "written where it was asked for"


def test_it_resumes_and_takes_more_methods(
    made: tuple[Path, dict[str, Any]], data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, result = made
    out = tmp_path / "out"
    shutil.copytree(before, out)
    shutil.rmtree(out / "random" / "seed-12")
    kept = (out / "random" / "seed-11" / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(method, "_methods", dict(method._methods))
    register_method(replace(find_method("pact"), name="pact-twin"))
    with quick_engines():
        again = benchmark(**options(data, out, methods=("random", "pact", "pact-twin"), seeds=3))
    assert (out / "random" / "seed-11" / "model.safetensors").stat().st_mtime_ns == kept
    for name in ("float", "random", "pact"):
        assert row(again, name)["acr"] == row(result, name)["acr"]
        assert row(again, name)["search_seconds"] == row(result, name)["search_seconds"]
    assert row(again, "pact-twin")["folders"] == row(again, "pact")["folders"] != {}
    assert not list(out.glob("pact-twin/seed-*")), "a model is made once"
    assert (out / "pact-twin/reference/votes.npy").read_bytes() == (out / "random/reference/votes.npy").read_bytes()


def test_another_protocol_needs_another_folder(made: tuple[Path, dict[str, Any]], data: str) -> None:
    with pytest.raises(MismatchError, match="final_recipe"):
        benchmark(**options(data, made[0], methods=("uniform",), final_steps=4))


def test_a_method_that_breaks_the_budget_ends_the_benchmark(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Space, "contains", lambda *_: True)
    monkeypatch.setattr(Pact, "_propose", lambda self: self.space.uniform(8))
    with quick_engines(), pytest.raises(AssertionError, match="chose a policy outside bops<=3bit"):
        benchmark(**options(data, tmp_path / "out", methods=("pact",), seeds=1, trials=1, final_steps=1))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "arq,arc"], "unknown strategy 'arc'"),
        (["--methods", "random,random"], "different methods"),
        (["--methods", "random,pact-dorefa"], "add --native"),
        (["--methods", "random,icr"], "8 bits in every layer, which bops<=3bit does not allow"),
        (["--methods", "random,icr", "--budget", "bops<=8bit", "--max-bits", "7"], "use --max-bits 8"),
        (["--methods", "random,icr", "--budget", "bops<=8bit", "--noise", "gaussian"], "compare it under --noise grid"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--budget", "bops<=1bit"], "cannot be met"),
        (["--budget", "bops<=2bit..8bit"], "one budget"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    words = [
        "benchmark", NETWORK, data, "--input", "3,8,8", "--classes", "4", "--split", "60,20,20", "--sigma", str(SIGMA),
        "--budget", "bops<=3bit", "--out", str(tmp_path / "out"), "--trials", "1", "--train-batch", "32",
    ]  # fmt: skip
    assert main([*words, *more]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_native_quantizers_and_one_seed(data: str, tmp_path: Path) -> None:
    with quick_engines():
        found = benchmark(
            **options(
                data, tmp_path / "out", methods=("hawq", "pact-dorefa"), seeds=1, native=True, trials=1, final_steps=1
            )
        )
    assert row(found, "hawq")["quantizer"]["per_channel"] is True
    assert row(found, "pact-dorefa")["quantizer"]["learn"] == "pact-dorefa"
    gap = row(found, "pact-dorefa")["difference"]["acr"]
    assert (gap["low"], gap["verdict"]) == (None, "fewer than 3 seeds")
    assert row(found, "hawq")["acr"]["standard_deviation"] is None


def test_methods_that_do_not_search_are_rows_too(data: str, tmp_path: Path) -> None:
    common = options(data, tmp_path / "out", budget="bops<=8bit", seeds=1, trials=1, final_steps=2, distill=0.0)
    with quick_engines():
        found = benchmark(**{**common, "methods": ("icr", "pact", "atmc"), "native": True})
        again = benchmark(**{**common, "methods": ("icr", "pact", "atmc"), "native": True})
    assert [each["method"] for each in found["rows"]] == ["float", "icr", "pact", "atmc", "one answer for all"]
    assert again["rows"] == found["rows"]
    for name in ("icr", "atmc"):
        mine = row(found, name)
        assert mine["policy"] == row(found, "pact")["policy"], "8 bits"
        assert mine["folders"] != row(found, "pact")["folders"], "another fine-tuning, other models"
        assert (mine["search_seconds"], mine["search_steps"]) == (None, None)
    assert row(found, "icr")["quantizer"]["per_channel"] is True
    recipes = {name: read_config(tmp_path / "out" / name / "seed-10")["recipe"] for name in ("icr", "atmc")}
    assert (recipes["icr"]["grid"], recipes["icr"]["sigma"]) == (True, SIGMA)
    assert recipes["atmc"]["adversarial"] == pytest.approx(4 / 255)
    assert recipes["atmc"]["sigma"] == 0
    constant = row(found, "one answer for all")
    assert constant["acr"]["mean"] == found["constant_acr"]
    assert "| one answer for all |" in (tmp_path / "out" / "benchmark.md").read_text()


def test_shared_weights_compete_for_bytes_with_their_own_quantizer(data: str, tmp_path: Path) -> None:
    common = options(data, tmp_path / "out", budget="bytes<=5100", seeds=1, trials=1, final_steps=1)
    with quick_engines():
        found = benchmark(**{**common, "methods": ("pact", "haq-kmeans"), "native": True})
    shared, plain = row(found, "haq-kmeans"), row(found, "pact")
    assert shared["quantizer"]["learn"] == "kmeans"
    assert counted_bytes(Path(shared["folders"]["10"]) / "model.safetensors") <= 5100
    assert (shared["bops"], plain["bops"]) == (None, Bops().cost(Policy(plain["policy"]), small_layers()))


@pytest.mark.parametrize("first", ["pact-dorefa", "haq-kmeans"])
def test_the_quantizer_of_the_first_method_is_not_that_of_all(first: str) -> None:
    asked = {"model": "resnet20:sigma=0.5", "sigma": 0.5, "budget": "bytes<=100k", "out": "x"}
    common = built(Benchmark, {**asked, "methods": (first, "random", "icr"), "native": True}).task_options()
    learned = {name: options_for(name, common, native=True).learn for name in (first, "random", "limpq", "icr")}
    assert learned == {first: find_method(first).quantizer, "random": "pact", "limpq": "lsq", "icr": "pact"}
    with pytest.raises(InputError, match="add --native"):
        options_for(first, common, native=False)


def test_a_preset_gives_every_method_the_papers_settings() -> None:
    asked = {"model": "resnet20:sigma=0.5", "sigma": 0.5, "budget": "bops<=3bit", "out": "x", "preset": "paper-cifar"}
    found = built(Benchmark, {**asked, "methods": ("limpq",)}).task_options()
    recipe = PRESETS["paper-cifar"].recipe(0.5)
    assert (found.final_recipe.lr, found.final_recipe.milestones, found.final_recipe.nesterov) == (0.01, (5.0,), False)
    assert found.final_recipe.weight_decay == recipe.weight_decay == 1e-4
    assert (found.recipe.epochs, found.recipe.schedule) == (1.0, "constant")
    assert (found.clip, found.n, found.search_n, found.images) == ("kl", 1_000_000, 500, "most:500")
    assert found.strategy == "limpq"


def test_the_clock_goes_on_after_a_kill_and_stops_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("arquant.searching.benchmarking.time.monotonic", lambda: now)
    clock = Clock(tmp_path, silent)
    now = 2.0  # until the votes begin, every method does the same, also one that finds votes
    clock.report(Status("reference", 1, 2, "votes"))
    now = 9.0
    clock.report(Status("reference", 2, 2, "votes"))
    now = 17.0
    clock.report(Status("prepare", 3, 40, "steps"))
    now = 1000.0  # killed and begun again
    clock = Clock(tmp_path, silent)
    assert (clock.seconds, clock.steps) == (10.0, 40)
    now = 1002.0
    clock.stop()
    now = 1100.0
    clock = Clock(tmp_path, silent)
    clock.stop()
    assert (clock.seconds, clock.steps) == (12.0, 40)
