"""A pool whose one worker is in this process: all of the code around Ray, without Ray."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

from arquant.engines.pool import Cluster, Worker


class PoolHere:
    """Does one unit after the other; what goes to a worker is pickled, as if it went to another process."""

    workers = wanted = 1

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, take: Callable[[], Any | None], receive: Callable[[Any, Any], None]) -> None:
        while (unit := take()) is not None:
            receive(unit, pickle.loads(pickle.dumps(self._worker.work(pickle.loads(pickle.dumps(unit))))))

    def end(self) -> None:
        self._worker.end()

    def close(self) -> None:
        pass


def open_here(_cluster: Cluster, make: Callable[[], Worker], facts: Mapping[str, Any], **_how: Any) -> PoolHere:
    """Takes the place of `open_pool`."""
    from ray.cloudpickle import dumps

    worker = pickle.loads(dumps(make))()
    assert worker.facts() == facts
    return PoolHere(worker)
