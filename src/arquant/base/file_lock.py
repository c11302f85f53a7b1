"""Files and folders that one run at a time may write.

`flock` belongs to an open file, and a forked child has the same open file: closing the file here would leave it locked for as
long as the child lives. So a lock is released explicitly, for all who share the file, and a forked child closes its copy, so
that a run that is killed is not outlived by its lock.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from weakref import WeakSet

from arquant.base.errors import MismatchError
from arquant.base.own_files import own_file

LOCK = ".lock"
"""the file, always empty, by which a folder is locked"""
_held: WeakSet[IO[bytes]] = WeakSet()
"""the files that this process has locked"""


def lock(file: IO[bytes], path: Path) -> None:
    """Keep all other runs out until `unlock`; where the system knows no such locks, do nothing.

    Raises:
        MismatchError: another process has the file, or another run of this process.
    """
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MismatchError(
            f"{path.parent} is in use by another process, or by another run of this one; wait for it, or choose another --out"
        ) from None
    except OSError:  # a file system that has no locks
        return
    _held.add(file)


def unlock(file: IO[bytes]) -> None:
    """Let others have the file, even if a child that was forked meanwhile still has it open, and close it."""
    if file in _held and not file.closed:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
    _held.discard(file)
    file.close()


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep other runs out of this context for the same folder; they get a MismatchError."""
    path = own_file(folder, LOCK)
    file = path.open("ab", buffering=0)
    try:
        lock(file, path)
        yield
    finally:
        unlock(file)


def _close_in_child() -> None:
    for file in list(_held):
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
