"""Connect to a Ray cluster, or start one on this machine."""

import logging
import os
import socket
import textwrap
from collections.abc import Callable
from typing import Any

import ray

from arquant.base.threads import available_cores
from arquant.engines.pool import AUTO, LOCAL, Cluster, PoolLost

_CONNECT_SECONDS = 10.0
_STARTS = 4
"""times that a Ray of our own is started, where it does not come up"""
_QUIET: Any = {"log_to_driver": False, "logging_level": logging.ERROR}
_LEAST_STORE = 1 << 27
"""bytes of the object store of a Ray of our own"""
_STARTING = "`ray start --head` starts one here, and --cluster local needs none"


def connected(cluster: Cluster, threads: int, size: int, note: Callable[[str], None]) -> bool:
    """Connect to a cluster, or start one of our own on this machine; tell whether it is to be shut down by us."""
    if ray.is_initialized():
        return False
    try:
        if cluster.address == LOCAL:
            cores = threads * (cluster.workers or max(1, available_cores() // threads))
            start_here(cores, max(_LEAST_STORE, 4 * size))
            return True
        _check_address(cluster.address)
        context = ray.init(address=cluster.address, **_QUIET)
    except (OSError, RuntimeError, ValueError) as error:  # Ray has no error of its own for it
        raise PoolLost(f"cannot connect to the cluster {cluster.address}: {last_line(error)}; {_STARTING}") from error
    url = getattr(context, "dashboard_url", "")
    note(f"the cluster has {places(threads)} places for workers" + (f"; its dashboard: http://{url}" if url else ""))
    return True


def start_here(cores: int, store: int) -> None:
    """Start a Ray of this machine alone, on the loopback interface, that reports to nobody.

    Its workers run at the priority of this process; Ray's own choice is far below, where other work may starve them. Ray's
    processes get 30 seconds to start, whatever one says, which may be too few on a busy machine: so it is tried again.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    for left in reversed(range(_STARTS)):
        try:
            ray.init(
                address=LOCAL, num_cpus=cores, include_dashboard=False, object_store_memory=store,
                _node_ip_address="127.0.0.1", **_QUIET,
            )  # fmt: skip
        except Exception as error:  # a plain one is what Ray raises then
            ray.shutdown()
            if not left:
                raise RuntimeError(last_line(error)) from error
        else:
            return


def _check_address(address: str) -> None:
    """Refuse an address where nobody answers: Ray would try for a minute."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if address == AUTO:
        return
    if not host or not port.isdecimal():
        raise ValueError("an address is HOST:PORT, such as 10.0.0.1:6379")
    socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


def places(threads: int) -> int:
    """Return for how many workers the machines that are there have cores, used or not."""
    return sum(int(node["Resources"].get("CPU", 0)) // threads for node in ray.nodes() if node["Alive"])


def last_line(error: BaseException) -> str:
    """Return the line of one of Ray's long messages that says most: the last that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return textwrap.shorten(lines[-1], 240, placeholder=" ...") if lines else type(error).__name__
