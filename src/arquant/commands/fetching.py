"""`arquant data`: public data sets, put into a cache folder and verified."""

from collections.abc import Callable
from pathlib import Path

from arquant.base.errors import InputError
from arquant.images.cifar10_fetch import fetch_cifar10

NAMES = ("cifar10",)


def data(
    name: str = "cifar10", *, directory: str | Path | None = None, note: Callable[[str], None] = lambda text: None
) -> Path:
    """Fetch the whole data set `name` unless it is there already, check every file, and return its folder.

    Args:
        directory: where to put it; by default `$ARQUANT_CACHE` or `~/.cache/arquant`.
        note: called with remarks on what is being done.
    """
    if name not in NAMES:
        raise InputError(f"there is no data set {name!r} to fetch; there are {', '.join(NAMES)}")
    return fetch_cifar10(directory, log=note)
