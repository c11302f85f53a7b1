"""How many threads an engine may use."""

import os


def available_cores() -> int:
    """The cores this process may run on; container limits that are set as an affinity are respected."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
