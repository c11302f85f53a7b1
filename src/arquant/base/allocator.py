"""Keep freed memory: with glibc's defaults every large tensor is mapped and unmapped anew, which costs 2x on CPU."""

import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@functools.cache
def keep_freed_memory() -> bool:
    """Tell glibc to serve large blocks from the heap and to keep what is freed; False where that is not possible.

    Peak memory is unchanged, since what is freed is reused; it is only not handed back to the system in between.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    kept = mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    return bool(kept)
