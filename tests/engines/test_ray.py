"""A pool of real Ray actors on this machine: every unit is done once, whatever becomes of its worker."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.engines.cluster import open_pool
from arquant.engines.pool import Cluster, PoolLost, cluster_of

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("local_ray")
FACTS = {"versions": {"torch": "2"}, "processor": "of this machine"}


@dataclass
class Squares:
    """Squares numbers; does something else first, once, at the unit that `troubled` names."""

    folder: Path
    troubled: int = -1
    trouble: str = ""
    torch: str = "2"

    def __call__(self) -> "Squares":
        if self.trouble == "start":
            raise ModuleNotFoundError("No module named 'of_the_user'")
        return self

    def facts(self) -> Mapping[str, Any]:
        return {**FACTS, "versions": {"torch": self.torch}}

    def work(self, unit: int) -> tuple[int, int]:
        mark = self.folder / f"{self.trouble}-{unit}"
        if unit == self.troubled and (self.trouble in ("refuse", "always") or not mark.exists()):
            mark.touch()
            if self.trouble == "refuse":
                raise InputError("this unit cannot be")
            if self.trouble == "hang":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        return unit * unit, os.getpid()

    def end(self) -> None:
        (self.folder / f"end-{os.getpid()}").touch()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a pool of squares, and closes it at the end."""
    pools = []

    def open_squares(workers: int = 2, patience: float = 60.0, **trouble: Any) -> Any:
        pool = open_pool(Cluster("auto", workers), Squares(tmp_path, **trouble), FACTS, threads=1, patience=patience)
        pools.append(pool)
        return pool

    yield open_squares
    for pool in pools:
        pool.close()


def squares(pool: Any, count: int) -> tuple[dict[int, int], Counter[int], int]:
    """Square numbers; the squares, how often each process worked, and how many units were under way at most."""
    numbers = iter(range(count))
    found: dict[int, int] = {}
    processes: Counter[int] = Counter()
    taken = most = 0

    def take() -> int | None:
        nonlocal taken, most
        number = next(numbers, None)
        taken += number is not None
        most = max(most, taken - len(found))
        return number

    def receive(unit: int, result: tuple[int, int]) -> None:
        assert unit not in found, "each unit comes back once"
        found[unit] = result[0]
        processes[result[1]] += 1

    pool.run(take, receive)
    return found, processes, most


def test_all_workers_work_few_units_are_under_way_and_close_ends_them(opened: Any, tmp_path: Path) -> None:
    pool = opened(2)
    while pool.workers < 2:  # one may start while the other works
        squares(pool, 4)
    found, processes, most = squares(pool, 40)
    assert found == {number: number**2 for number in range(40)}
    assert most <= 2 * 2
    assert len(processes) == 2
    pool.end()
    assert {path.name for path in tmp_path.iterdir()} == {f"end-{process}" for process in processes}
    pool.close()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{process}").exists() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
    assert ray.is_initialized(), "a Ray that was there before is left running"


@pytest.mark.parametrize("trouble", ["die", "hang"])
def test_the_units_of_a_worker_that_dies_or_hangs_are_done_by_another(opened: Any, trouble: str) -> None:
    pool = opened(2, patience=60.0 if trouble == "die" else 2.0, troubled=3, trouble=trouble)
    assert squares(pool, 12)[0] == {number: number**2 for number in range(12)}
    assert pool.wanted == 2


def test_work_that_no_worker_survives_ends_the_pool(opened: Any) -> None:
    with pytest.raises(PoolLost, match="3 workers were lost over the same work"):
        squares(opened(3, troubled=3, trouble="always"), 6)


def test_an_error_of_the_work_is_raised_as_it_was(opened: Any) -> None:
    with pytest.raises(InputError, match="this unit cannot be"):
        squares(opened(1, troubled=3, trouble="refuse"), 6)


def test_a_worker_that_differs_is_refused_by_name(opened: Any) -> None:
    with pytest.raises(MismatchError, match=r"the worker on .*\(versions\.torch '3' there, '2' here\)"):
        squares(opened(1, torch="3"), 3)


def test_a_worker_that_cannot_start_says_why(opened: Any) -> None:
    with pytest.raises(PoolLost, match=r"no worker can start: .*No module named 'of_the_user'; every machine needs"):
        squares(opened(1, trouble="start"), 3)


def test_an_address_where_nobody_answers_is_known_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for address, why in (("127.0.0.1:1", "refused"), ("nowhere", "HOST:PORT")):
        with pytest.raises(PoolLost, match=f"cannot connect to the cluster {address}.*{why}"):
            open_pool(Cluster(address), Squares(tmp_path), FACTS, threads=1)


def test_a_ray_that_does_not_come_up_on_a_busy_machine_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from arquant.engines.ray_start import start_here

    tries: list[int] = []

    def start(*, num_cpus: int, **_: Any) -> None:
        tries.append(num_cpus)
        if len(tries) < 3 or num_cpus == 9:
            raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    start_here(2, 10**8)
    assert tries == [2, 2, 2]
    with pytest.raises(RuntimeError, match="timed out during startup"):
        start_here(9, 10**8)


def test_workers_without_a_cluster_and_clusters_without_workers_are_refused() -> None:
    with pytest.raises(InputError, match="--workers 2 belongs to --cluster"):
        cluster_of(None, 2)
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        cluster_of("local", 0)
    assert cluster_of(None, None) is None


def test_what_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file, pytest.raises(InputError, match="cannot be sent to other processes"):
        open_pool(Cluster("auto", 1), lambda: file, FACTS, threads=1)  # type: ignore[arg-type, return-value]
