"""Count the threads that an engine may use."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1e6


def available_cores() -> int:
    """Return the cores that this process may use: the least of affinity, CPU quota (rounded up) and OMP_NUM_THREADS.

    More threads than that would wait for each other at every layer.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return int(min(cores, math.ceil(_quota()), _asked_for()))


def _quota() -> float:
    """Return the container's CPU seconds per second: cgroup v2, then v1; a large number without a limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((CGROUPS / name).read_text() for name in names).split()
            if int(quota) > 0:
                return int(quota) / int(period)
        except (OSError, ValueError):  # no such file; "max"
            continue
    return _UNLIMITED


def _asked_for() -> float:
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(text) if text.isdecimal() and int(text) > 0 else _UNLIMITED


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let PyTorch's operations on the calling thread use `count` threads; other threads keep theirs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
