"""How many threads an engine takes where nothing is said."""

import os
from pathlib import Path

import pytest

from arquant.base import threads


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores without limits."""
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def test_without_limits_it_is_the_cores(here: Path) -> None:
    assert threads.available_cores() == 8
    (here / "cpu.max").write_text("max 100000\n")
    assert threads.available_cores() == 8


@pytest.mark.parametrize(("quota", "cores"), [(200_000, 2), (250_000, 3), (50_000, 1), (9_000_000, 8)])
def test_a_container_s_quota_counts(here: Path, quota: int, cores: int) -> None:
    (here / "cpu.max").write_text(f"{quota} 100000\n")
    assert threads.available_cores() == cores


def test_that_of_older_containers_too(here: Path) -> None:
    (here / "cpu").mkdir()
    (here / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (here / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert threads.available_cores() == 8
    (here / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    assert threads.available_cores() == 3


@pytest.mark.parametrize(("text", "cores"), [("2", 2), ("3,1", 3), ("64", 8), ("0", 8), ("many", 8), ("", 8)])
@pytest.mark.usefixtures("here")
def test_so_does_what_openmp_is_told(monkeypatch: pytest.MonkeyPatch, text: str, cores: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads.available_cores() == cores
