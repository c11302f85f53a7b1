"""`package.module:factory` may lie in the current folder, as it may for `python -m`."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def current_folder_importable() -> Iterator[None]:
    """Put modules of the current folder first within the context; restore the path after it."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
