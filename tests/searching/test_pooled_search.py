"""A search whose candidates and finalists are made by workers: the same journal, policies, models and certificates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.base.progress import Status
from arquant.certification import pooled_votes
from arquant.commands.benchmark import benchmark
from arquant.commands.search import search
from arquant.searching import candidate_worker
from tests.searching.test_search import result_of
from tests.support.pool_here import open_here
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier

HOW: dict[str, Any] = {
    "calibrate": image_set(96, 2, "calibrate"), "certify": image_set(8, 3, "certify"), "sigma": SIGMA,
    "budget": "bops<=3bit", "strategy": "evolve", "trials": 5, "shortlist": 2, "shortlist_seeds": 1,
    "round": 3, "search_n": 48, "reference_n": 160,
    "n0": 16, "n": 120, "steps": 8, "final_steps": 12, "train_batch": 32, "controls": ("uniform",), "compiled": False,
    "threads": 1,
}  # fmt: skip


def searched(out: Path, **changes: Any) -> dict[str, Any]:
    with quick_engines():
        return search(small_classifier(), image_set(20, 1, "search"), out=out, **{**HOW, **changes})


@pytest.mark.usefixtures("local_ray")
def test_a_search_by_workers_ends_as_one_by_one_process(tmp_path: Path) -> None:
    stages: list[str] = []
    searched(tmp_path / "alone")
    searched(tmp_path / "pool", cluster="auto", workers=2, report=lambda status: stages.append(status.stage))
    assert {"fine-tune finalists", "shortlist"} <= set(stages)
    assert result_of(tmp_path / "pool") == result_of(tmp_path / "alone")


@pytest.fixture
def _pool_here(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.cloudpickle")
    for module in (candidate_worker, pooled_votes):
        monkeypatch.setattr(module, "open_pool", open_here)


@pytest.mark.usefixtures("_pool_here")
def test_two_budgets_that_start_from_kept_networks_end_alike(tmp_path: Path) -> None:
    how = {"strategy": "arq", "budget": ["bops<=3bit", "bops<=4bit"], "final_start": "kept"}
    asked: list[tuple[float, float]] = []

    def report(status: Status) -> None:
        if status.stage == "fine-tune finalists":
            asked.append((status.done, status.total))

    searched(tmp_path / "alone", **how)
    searched(tmp_path / "pool", cluster="local", report=report, **how)
    assert result_of(tmp_path / "pool") == result_of(tmp_path / "alone")
    assert len(asked) == asked[-1][1] >= 3, "winners and controls of both budgets, those of equal policies once"
    searched(tmp_path / "pool", cluster="local", report=report, **how)
    assert asked[-1][0] == len(asked), "what is made is not made again"


@pytest.mark.usefixtures("_pool_here")
def test_the_seeds_of_a_benchmark_are_fine_tuned_side_by_side(tmp_path: Path) -> None:
    images = image_set(80, 31)
    np.savez(tmp_path / "images.npz", images=np.asarray(images.images), labels=images.labels)
    how: dict[str, Any] = {
        "model": "tests.support.small_search:factory", "data": f"npz:{tmp_path / 'images.npz'}", "input": (3, 8, 8),
        "classes": 4, "split": (60, 20, 20), "sigma": SIGMA, "budget": "bops<=3bit", "methods": ("random",), "seeds": 2,
        "round": 2, "trials": 2, "search_n": 24, "reference_n": 40, "steps": 2, "final_steps": 3, "train_batch": 32,
        "n0": 8, "n": 40, "threads": 1, "compiled": False,
    }  # fmt: skip
    finalists: list[float] = []
    with quick_engines():
        alone = benchmark(**how, out=tmp_path / "alone")
        pooled = benchmark(
            **how, out=tmp_path / "pool", cluster="local",
            report=lambda status: finalists.append(status.done) if status.stage == "fine-tune finalists" else None,
        )  # fmt: skip
    assert finalists == [1, 2]
    for one, other in zip(alone["rows"], pooled["rows"], strict=True):
        assert one["acr"] == other["acr"]
        assert one["method"] == other["method"]


def test_another_round_is_another_search(tmp_path: Path) -> None:
    searched(tmp_path, trials=2, controls=(), shortlist=1)
    header = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[0])
    assert header["identity"]["options"]["round"] == 3
    with pytest.raises(MismatchError, match="round 3 there"):
        searched(tmp_path, trials=2, controls=(), shortlist=1, round=1)
    with pytest.raises(InputError, match="round must be at least 1, got 0"):
        searched(tmp_path, round=0)
