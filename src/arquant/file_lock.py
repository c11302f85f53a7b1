"""Files and folders that one process at a time may write."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from arquant.errors import MismatchError

LOCK = ".lock"
"""the file, always empty, by which a folder is locked"""
LOCK_SECONDS = 2.0
"""how long to wait: a child that the last user of the file has just forked holds the lock until it runs its own program"""


def lock(file: BinaryIO, path: Path) -> None:
    """Keep other processes out while the file is open; where the system knows no such locks, do nothing."""
    try:
        import fcntl
    except ImportError:
        return
    patience = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > patience:
                raise MismatchError(
                    f"{path.parent} is in use by another process; wait for it, or choose another --out"
                ) from None
            time.sleep(0.05)
        except OSError:  # a file system that has no locks
            return


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Within the context no other process gets into the same context for this folder; it has a MismatchError."""
    path = folder / LOCK
    with path.open("ab") as file:
        lock(file, path)
        yield
