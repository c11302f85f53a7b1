"""A search whose candidates and finalists are made by workers: the same journal, policies, models and certificates."""

import json
from pathlib import Path
from typing import Any

import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.commands.search import search
from tests.searching.test_search import result_of
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


def test_another_round_is_another_search(tmp_path: Path) -> None:
    searched(tmp_path, trials=2, controls=(), shortlist=1)
    header = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[0])
    assert header["identity"]["options"]["round"] == 3
    with pytest.raises(MismatchError, match="round 3 there"):
        searched(tmp_path, trials=2, controls=(), shortlist=1, round=1)
    with pytest.raises(InputError, match="round must be at least 1, got 0"):
        searched(tmp_path, round=0)
