"""Open the pool of workers that a cluster offers."""

from collections.abc import Callable, Mapping
from typing import Any

from arquant.base.errors import MissingExtraError
from arquant.engines.pool import Cluster, Pool, Worker


def open_pool(
    cluster: Cluster,
    make: Callable[[], Worker],
    facts: Mapping[str, Any],
    *,
    threads: int,
    gpus: int = 0,
    note: Callable[[str], None] = lambda text: None,
    **changes: Any,
) -> Pool:
    """Return a pool of workers, which start meanwhile.

    Args:
        make: makes a worker, in its process; it is sent there once, with all that it holds.
        facts: what the workers' facts must be.
        threads: cores of each worker.
        gpus: of each worker.
        note: is told what a person should know of the cluster.
        changes: other arguments of `RayPool`.

    Raises:
        MissingExtraError: Ray is not installed.
        PoolLost: there is no such cluster.
    """
    try:
        from arquant.engines.ray import RayPool  # here, since Ray is an extra, and slow to import
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise MissingExtraError("ray", "ray") from error
    return RayPool(cluster, make, facts, threads=threads, gpus=gpus, note=note, **changes)
