"""How many threads an engine may use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def available_cores() -> int:
    """The cores this process may run on; container limits that are set as an affinity are respected."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """PyTorch's operations on the calling thread use `count` threads; those of other threads stay as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
