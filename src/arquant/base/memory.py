"""Tell how much memory this process has used, and how much it may still have."""

import sys
from pathlib import Path


def peak_bytes() -> int | None:
    """Return the most memory that this process has had at once; None if the system does not tell."""
    try:  # where it exists: what getrusage says includes what the parent had when it forked
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def available_bytes() -> int | None:
    """Return the memory that is free for this process, within its container's limit; None if it is unknown."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
        found += [max(int(limit) - int(used), 0)] if limit.isdecimal() else []
    except OSError:
        pass
    return min(found, default=None)
