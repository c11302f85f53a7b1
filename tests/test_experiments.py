"""The measurement programs: what decides their figures, and a tiny run of each that a restart does not repeat."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from arquant.base.errors import MismatchError
from arquant.base.journal import read_journal
from arquant.commands.search import search
from arquant.quantization.policy import Policy
from tests.support.small_search import SIGMA, cache_of, image_set, quick_engines, small_space

FOLDER = Path(__file__).parents[1] / "experiments"
MODEL = [
    "--model",
    "tests.support.small_search:small_classifier",
    "--sigma",
    str(SIGMA),
    "--batch",
    "16",
    "--images",
    "6",
]
TINY = [*MODEL, "--split", "60,20,20", "--no-compile", "--threads", "1"]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script of the folder as Python does when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        for each in (name, "common", "learning_curves", "rank_correlation"):
            monkeypatch.delitem(sys.modules, each, raising=False)
        return importlib.import_module(name)

    return load


def run(module: ModuleType, folder: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """Run a program twice; the second run must add nothing. Returns the summary and the raw rows."""
    images = image_set(60, 5)
    folder.mkdir(exist_ok=True)
    np.savez(folder / "images.npz", images=images.images, labels=images.labels)
    command = [
        *TINY,
        "--data",
        f"npz:{folder / 'images.npz'}",
        *options,
        "--out",
        str(folder / "out"),
        "--work",
        str(folder / "work"),
    ]
    module.main(command)
    raw = (folder / "out" / "raw.jsonl").read_bytes()
    summary = (folder / "out" / "summary.md").read_text()
    module.main(command)
    assert (folder / "out" / "raw.jsonl").read_bytes() == raw
    assert (folder / "out" / "summary.md").read_text() == summary
    assert f"`python experiments/{module.__name__}.py " in summary
    return summary, [json.loads(line) for line in raw.decode().splitlines()[1:]]


def test_disagreement_is_measured_before_and_after_fine_tuning(program: Any, tmp_path: Path) -> None:
    summary, rows = run(program("disagreement"), tmp_path, "--bits", "float", "2", "--steps", "0", "2", "--n", "64")
    assert [(row["bits"], row["steps"]) for row in rows] == [("float", 0), ("float", 2), ("2", 0), ("2", 2)]
    by_job = {row["job"]: np.sum(row["disagreements"]) for row in rows}
    assert by_job["float-bits-0-steps"] <= 1 < by_job["2-bits-0-steps"], "the float network agrees with itself"
    for row in rows:
        assert all(row["lost"][i] + row["gained"][i] <= row["disagreements"][i] <= 64 for i in range(6))
    assert "sigma 0.25" in summary
    assert "| float | 0 " in summary


def test_incremental_methods_are_replayed_on_common_votes(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gain = program("incremental_gain")
    monkeypatch.setattr(gain, "RESAMPLES", 20)
    options = ["--candidates", "8@0", "3@1", "--n", "64", "128", "--reference-n", "128", "192"]
    summary, rows = run(gain, tmp_path, *options)
    assert [row["candidate"] for row in rows] == ["8@0", "3@1"]
    cases = [json.loads(line) for line in (tmp_path / "out" / "methods.jsonl").read_text().splitlines()]
    assert len(cases) == 2 * 2 * 2
    for case in cases:
        assert case["methods"]["RS"]["gain"] == {"64": [0.0] * 3, "128": [0.0] * 3}
        published, honest = (
            case["methods"][name]["acr"]["128"][0] for name in ("IRS as published", "IRS, honest union")
        )
        assert honest <= published
    assert "## 8 bits, 0 steps of fine-tuning; float network 192 votes" in summary


RANKING = [
    "--policies", "4", "--steps", "0", "1", "--base-steps", "1", "--n", "32", "64", "--base-n", "64", "--fewer-images", "2",
    "--reference-n", "64", "--other-seeds", "1", "--careful-steps", "2", "--careful-n", "64",
]  # fmt: skip


def test_scores_are_compared_with_a_careful_one(program: Any, tmp_path: Path) -> None:
    found = tmp_path / "found" / "policy.json"
    found.parent.mkdir()
    small_space().budget.cheapest().save(found)
    summary, rows = run(program("score_ranking"), tmp_path, *RANKING, "--add", str(found))
    assert len(rows) == (4 + 1) * (2 + 1 + 1)
    assert {row["steps"] for row in rows} == {0, 1, 2}
    assert "Kendall between two seeds" in summary
    assert "uniform w" in summary
    assert "| searched found " in summary
    assert "; 4 policies within bops<=3bit;" in summary, "what a search found is not ranked"


def test_policies_of_other_networks_are_not_added_to_a_ranking(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    Policy.uniform(["a", "b", "c"], 2).save(path)
    with pytest.raises(MismatchError, match=r"policy.json is of another network, or not within the budget"):
        program("score_ranking").added_policies(small_space(), [path])


def test_a_job_casts_as_many_votes_as_its_scores_need(program: Any) -> None:
    module = program("score_ranking")
    arguments = module.arguments_of([])
    jobs = list(module.jobs_of(arguments, ["some"]))
    assert [(job.steps, job.seed, module.votes_of(job, arguments)) for job in jobs] == [
        (0, 0, 200), (15, 0, 200), (60, 0, 500), (60, 1, 200), (780, 10, 1000),
    ]  # fmt: skip
    for way in module.ways_of(arguments):
        assert way.n <= module.votes_of(module.Job("some", way.steps, arguments.seed), arguments)


def test_processes_share_a_ranking(program: Any, tmp_path: Path) -> None:
    module = program("score_ranking")
    _, rows = run(module, tmp_path / "whole", *RANKING)
    place = tmp_path / "whole" / "images.npz"
    command = [
        *TINY,
        "--data",
        f"npz:{place}",
        *RANKING,
        "--out",
        str(tmp_path / "out"),
        "--work",
        str(tmp_path / "work"),
    ]
    for share in ("2/2", "1/2"):
        module.main([*command, "--share", share])
    assert not (tmp_path / "out" / "raw.jsonl").exists()
    assert not (tmp_path / "work" / "reference").exists(), "which only the table needs"
    shares = [read_journal(tmp_path / "out" / f"share-{k}-of-2.jsonl")[1] for k in (1, 2)]
    assert [len({row["policy"] for row in share}) for share in shares] == [2, 2]
    module.main(command)
    kept = ("job", "votes_sha256")
    _, gathered = read_journal(tmp_path / "out" / "raw.jsonl")
    assert sorted([row[k] for k in kept] for row in gathered) == sorted([row[k] for k in kept] for row in rows)
    assert (tmp_path / "out" / "scores.jsonl").read_text() == (tmp_path / "whole" / "out" / "scores.jsonl").read_text()
    with pytest.raises(
        MismatchError, match=r"share-1-of-2.jsonl holds another measurement \(careful_n 64 there, 32 here\)"
    ):
        module.main([*command[:-4], "--careful-n", "32", "--out", str(elsewhere(tmp_path)), *command[-2:]])
    for wrong in ("3/2", "0/2", "2", "a/b"):
        with pytest.raises(SystemExit):
            module.main([*command, "--share", wrong])


def elsewhere(folder: Path) -> Path:
    """The shares, without the table that was made of them."""
    place = folder / "elsewhere"
    place.mkdir()
    for share in (folder / "out").glob("share-*"):
        shutil.copy(share, place)
    return place


def test_the_starts_of_the_full_fine_tuning_are_compared(program: Any, tmp_path: Path) -> None:
    small_space().uniform(3).save(tmp_path / "policy.json")
    options = ["--policy", str(tmp_path / "policy.json"), "--steps", "2", "--final-steps", "3", "--n", "64"]
    summary, rows = run(program("final_start"), tmp_path, *options)
    assert [(row["start"], row["seed"]) for row in rows] == [(s, n) for n in (10, 11, 12) for s in ("float", "kept")]
    assert len({row["loss"] for row in rows}) == 6, "the start and the seed count"
    assert "kept - float: " in summary
    with pytest.raises(SystemExit):
        program("final_start").main([*options, "--seeds", "0", "1", "2"])
    command = [*TINY, "--data", f"npz:{tmp_path / 'images.npz'}", *options, "--work", str(tmp_path / "work")]
    for share in (["--share", "1/2"], ["--share", "2/2"], []):
        program("final_start").main([*command, "--out", str(tmp_path / "shares"), *share])
    _, gathered = read_journal(tmp_path / "shares" / "raw.jsonl")
    assert sorted(row["job"] for row in gathered) == sorted(row["job"] for row in rows)
    assert {row["job"]: row["right"] for row in gathered} == {row["job"]: row["right"] for row in rows}


def test_uniform_pairs_are_compared_with_the_policy_of_a_search(program: Any, tmp_path: Path) -> None:
    policy, pair = tmp_path / "policy.json", str(small_space().uniform_pairs[0])
    small_space().uniform(small_space().uniform_pairs[1]).save(policy)
    options = ["--policy", str(policy), "--final-steps", "3", "--n", "64"]
    run(program("final_start"), tmp_path, *options, "--steps", "2")
    known = tmp_path / "final_start.jsonl"
    shutil.move(tmp_path / "out" / "raw.jsonl", known)
    summary, rows = run(program("uniform_pairs"), tmp_path, *options, "--pairs", pair)
    assert [row["job"] for row in rows] == [
        f"{name}-seed-{seed}" for name in (pair, "searched") for seed in (10, 11, 12)
    ]
    assert summary.count("\n| searched ") == summary.count(f"\n| {pair} ") == 1
    (tmp_path / "out" / "raw.jsonl").unlink()
    _, taken = run(program("uniform_pairs"), tmp_path, *options, "--pairs", pair, "--known", str(known))
    assert {row["job"]: row["right"] for row in taken} == {row["job"]: row["right"] for row in rows}, (
        "the same measurement"
    )
    assert [row["job"] for row in taken if "from" in row] == [f"searched-seed-{seed}" for seed in (10, 11, 12)]
    with pytest.raises(MismatchError, match="another measurement"):
        run(program("uniform_pairs"), tmp_path / "other", *options, "--seed", "1", "--known", str(known))


def test_settings_of_fine_tuning_are_compared_with_the_base(program: Any, tmp_path: Path) -> None:
    variants = ["base", "distill 1.0 + consistency 4", "lsq"]
    settings = ["--bits", "2", "32", "--steps", "1", "--n", "32"]
    summary, rows = run(program("finetune_defaults"), tmp_path, *settings, "--variants", *variants)
    assert [(row["variant"], row["bits"]) for row in rows] == [
        ("float", 32),
        *((v, b) for v in variants for b in (2, 32)),
    ]
    assert all(len(row["right"]) == 6 and max(row["right"]) <= 32 for row in rows)
    assert rows[1]["right"] != rows[3]["right"], "the recipe of a variant counts"
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in summary.splitlines() if line.startswith("| ")]
    assert [row[0] for row in cells] == ["variant", *variants]
    assert cells[0][1::2] == ["2-bit ACR", "32-bit ACR"]
    assert cells[1][2] == cells[1][4] == ""


def test_published_settings_of_fine_tuning_give_the_published_table(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = FOLDER.parent / "results" / "finetune-defaults"
    (tmp_path / "raw.jsonl").write_bytes((published / "raw.jsonl").read_bytes())
    program("finetune_defaults").main(
        ["--images", "300", "--variants", "--bits", *["4", "3", "2", "w2a4", "w4a2", "32"], "--out", str(tmp_path)]
    )
    told = capsys.readouterr().out

    def cells(text: str) -> list[list[str]]:
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]

    assert cells(told) == cells((published / "README.md").read_text())
    assert "Float network: 0.3176." in told


def test_speed_up_is_the_ratio_of_samples_at_equal_acr(program: Any) -> None:
    gain = program("incremental_gain")
    samples = np.array([100, 200, 400, 800, 1600])
    plain = np.log(samples)
    assert gain.speed_up(plain, np.log(2 * samples), samples=samples) == pytest.approx(2)
    assert gain.speed_up(plain, np.log(samples / 4), samples=samples) == pytest.approx(0.25)
    assert gain.speed_up_at(plain, np.log(2 * samples), samples=samples, place=1) == pytest.approx(2)
    assert np.isnan(gain.speed_up_at(plain, np.log(2 * samples), samples=samples, place=4)), "RS never gets there"
    assert np.isnan(gain.speed_up(plain, plain + 9, samples=samples)), "no ACR is common to both"


def test_replayed_radii_credit_only_right_classes(program: Any) -> None:
    gain = program("incremental_gain")
    votes = np.zeros((2, 500), np.int64)
    cache = cache_of(votes, np.array([0, 1]), np.array([0, 0]))
    levels = gain.Levels(0.5, 0.001, 0.001, 0.99)
    radii = gain.replayed_radii(cache, cache.votes, cache.selected, np.array([100, 500]), levels)
    for table in radii.values():
        assert (table[:, 0] > 0).all()
        assert (table[:, 1] == 0).all()
    assert radii["RS"][1, 0] > radii["RS at alpha"][1, 0]


def test_rank_correlations_are_those_of_scipy(program: Any) -> None:
    ranking = program("rank_correlation")
    rng = np.random.default_rng(0)
    a = rng.integers(0, 6, 12).astype(float)
    b = a + rng.integers(0, 4, 12)
    found = ranking.ranking(a, b, 0)
    assert found.spearman.value == pytest.approx(spearmanr(a, b).statistic)
    assert found.kendall.value == pytest.approx(kendalltau(a, b).statistic)
    assert found.kendall.low < found.kendall.value < found.kendall.high
    picks = rng.integers(12, size=(3, 12))
    repeated = ranking.kendall(a, b, ranking._multiplicity(picks, 12))
    assert repeated == pytest.approx([kendalltau(a[pick], b[pick]).statistic for pick in picks])
    assert ranking.ranking(-b, b, 0).regret == b.max() - b.min()


def test_policies_are_different_and_within_the_budget(program: Any) -> None:
    ranking = program("score_ranking")
    space = small_space()
    policies = ranking.draw_policies(space, 12, 0)
    assert len(set(policies.values())) == len(policies) == 12
    assert all(space.contains(policy) for policy in policies.values())
    assert [name.split()[0] for name in policies][: len(space.uniform_pairs)] == ["uniform"] * len(space.uniform_pairs)
    assert policies == ranking.draw_policies(space, 12, 0)
    assert policies != ranking.draw_policies(space, 12, 1)


def test_learning_curves_have_a_line_for_every_candidate(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = image_set(60, 5)
    np.savez(tmp_path / "images.npz", images=images.images, labels=images.labels)
    folders = [tmp_path / name for name in ("arq-paper", "random")]
    with quick_engines():
        for folder in folders:
            search(
                "tests.support.small_search:factory", f"npz:{tmp_path / 'images.npz'}", input=(3, 8, 8), classes=4,
                split=(60, 20, 20), sigma=SIGMA, budget="bops<=3bit", out=folder, strategy=folder.name, trials=2, steps=1,
                search_n=16, reference_n=32, shortlist=1, final_steps=1, train_batch=16, n=32, alpha=0.01, controls=(),
                threads=1, compiled=False,
            )  # fmt: skip
    program("learning_curves").main([*map(str, folders), "--out", str(tmp_path / "out")])
    table = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert table == ["search", "arq-paper", "random"]
    lines = [line.split("\t") for line in (tmp_path / "out" / "curves.tsv").read_text().splitlines()]
    assert [line[:2] for line in lines[1:]] == [
        ["arq-paper", "0"],
        ["arq-paper", "1"],
        ["random", "0"],
        ["random", "1"],
    ]
    assert (tmp_path / "out" / "learning.svg").exists()


def test_the_simulated_rules_choose_among_what_was_examined(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation = program("shortlist_simulation")
    simulation.main(["--worlds", "2", "--trials", "5", "--own", "0", "--out", str(tmp_path)])
    row = capsys.readouterr().out.splitlines()[-1]
    *worths, uniform, best = [float(cell) for cell in row.split("|")[2:8]]
    assert all(worth <= best + 1e-9 for worth in (*worths, uniform))
    assert uniform == pytest.approx(simulation.BEST - (simulation.WEIGHT_LOSS + simulation.ACTIVATION_LOSS) / 4)
    assert (tmp_path / "README.md").read_text().splitlines()[-1] == row
