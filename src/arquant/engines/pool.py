"""Where work runs that does not have to run in this process: a pool of workers, each a process of its own.

Work is cut into units that depend on nothing but themselves, so a unit may be done anywhere, at any time and again: whatever
becomes of its worker, the results are those of one process. `arquant.engines.ray` is the pool that ships.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from arquant.base.errors import ArquantError, InputError

LOCAL, AUTO = "local", "auto"


class PoolLost(ArquantError):
    """A cluster is gone, or has no place for a worker; what was done before is kept."""


class Worker(Protocol):
    """Does units of work in a process of its own."""

    def facts(self) -> Mapping[str, Any]:
        """Return what must be equal for all workers, as plain data: workers that differ would give other results."""

    def work(self, unit: Any) -> Any:
        """Return the result of a unit; equal units have equal results."""

    def end(self) -> None:
        """Look back at the work that was done; raise what makes all of it void."""


class Pool(Protocol):
    """Workers that do units of work, in any order."""

    @property
    def workers(self) -> int:
        """Return how many workers are at work or wait for it."""

    @property
    def wanted(self) -> int:
        """Return how many workers there are, with those that are starting."""

    def run(self, take: Callable[[], Any | None], receive: Callable[[Any, Any], None]) -> None:
        """Do all units.

        Args:
            take: gives the next unit, or None if there is none before more results are in. The work is done when it gives
                None and no unit is under way.
            receive: is told a unit and its result; units come back in any order, each once.
        """

    def end(self) -> None:
        """Let every worker look back at its work."""

    def close(self) -> None:
        """Free the workers."""


@dataclass(frozen=True)
class Cluster:
    """The machines that a command may use.

    Attributes:
        address: local (this machine, by a Ray of our own), auto (RAY_ADDRESS, else the Ray that runs here) or an address.
        workers: how many processes; as many as the cluster has cores for if None.
    """

    address: str
    workers: int | None = None

    def __post_init__(self) -> None:
        if not self.address:
            raise InputError("state a cluster: local, auto or the address of a Ray cluster, such as 10.0.0.1:6379")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, got {self.workers}")


def threads_of(cluster: Cluster | None, threads: int | None) -> int | None:
    """Return the cores of each worker, 1 unless others are asked for; without a cluster, those asked for."""
    return threads if cluster is None else threads or 1


def cluster_of(address: str | None, workers: int | None) -> Cluster | None:
    """Return the cluster that `--cluster` and `--workers` ask for; None for this process alone."""
    if address is None and workers is not None:
        raise InputError(f"--workers {workers} belongs to --cluster: add --cluster local, auto or ADDRESS")
    return None if address is None else Cluster(address, workers)
