"""The public face of a package: names that are imported when they are first used.

    __getattr__, __dir__, __all__ = lazy_names(__name__, {"source": ["Noise", "NoiseSource"]})

Importing one module of a package runs the package's `__init__.py`. If that imported every public name, `arquant --help` would
import torch.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: its full name.
        homes: the public names by the module below the package that defines them.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    public = sorted(home_of)
    return find, lambda: list(public), public
