"""Whose code is it? torch's, ours, that of an installed library, or the user's own.

The user's code is spelled out wherever it matters, function by function (`spelling`). Code of Python itself, torch,
NumPy and SciPy is known by its name; their versions stand beside every certificate. Code of any other installed package, timm
and torchvision among them, is known by its name, the version of the package and the contents of the file that it stands in.
"""

import functools
import hashlib
import importlib.metadata
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

Origin = Literal["torch", "ours", "library", "user"]

_BY_NAME: Mapping[str, Origin] = {"torch": "torch", "functorch": "torch", "arquant": "ours"}
_NAME_SUFFICES = ("numpy", "scipy")


def origin(module_name: Any) -> Origin:
    """Say whose the code of the module of that name is; code that no module holds is the user's."""
    if not isinstance(module_name, str):  # some compiled classes have no name there
        return "library" if module_name else "user"
    package = module_name.partition(".")[0]
    if package in _BY_NAME:
        return _BY_NAME[package]
    generated = package.startswith("namedtuple_")  # where Python puts the constructors of named tuples
    return "user" if not generated and _place(module_name) == "elsewhere" else "library"


def origin_of_function(function: FunctionType) -> Origin:
    """Say whose a function is, by where it was written and not by the name that a decorator gave it."""
    return origin(str(function.__globals__.get("__name__", "")))


def library_name(module_name: Any, qualname: str) -> bytes:
    """Name a piece of code that is not the user's, so that another version of an installed package has another name."""
    if not isinstance(module_name, str):
        return qualname.encode()
    name, package = f"{module_name}.{qualname}", module_name.partition(".")[0]
    if package in _BY_NAME or package in _NAME_SUFFICES or _place(module_name) != "installed":
        return name.encode()
    return f"{name} of {package} {_version(package)} {_contents(_file(module_name))}".encode()


def importable(value: Any) -> bool:
    """Say whether a function is what its module holds under its name, so that the name says it all."""
    found: Any = sys.modules.get(value.__module__ or "")
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def replaced(space: Any) -> dict[str, Any]:
    """Find the user's functions among those of a class or module that is not the user's.

    Of classes also a `forward` that was taken over from another class.
    """
    functions = {name: _inner(value) for name, value in vars(space).items()}
    taken = {
        name for name, function in functions.items() if isinstance(function, FunctionType) and _strange(space, name, function)
    }  # fmt: skip
    return {name: vars(space)[name] for name in sorted(taken)}


def _strange(space: Any, name: str, function: FunctionType) -> bool:
    if origin_of_function(function) == "user":
        return True
    known = (f"{space.__name__}.forward", "forward", "_forward_unimplemented")
    return isinstance(space, type) and name == "forward" and function.__qualname__ not in known


def _inner(value: Any) -> Any:
    """Return the function inside a static method, class method or property."""
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _file(module_name: str) -> str:
    module = sys.modules.get(module_name) or sys.modules.get(module_name.partition(".")[0])
    return str(getattr(module, "__file__", None) or "")


def _place(module_name: str) -> Literal["python", "installed", "elsewhere"]:
    """Say where a module's file lies: a file of the user's may bear the name of one of Python's."""
    file = _file(module_name)
    if file:
        return _place_of(file)
    return "python" if module_name.partition(".")[0] in sys.stdlib_module_names else "elsewhere"


@functools.cache
def _place_of(file: str) -> Literal["python", "installed", "elsewhere"]:
    path = str(Path(file).resolve())
    if path.startswith(_folders()):
        return "installed"
    python = (sysconfig.get_path(which) for which in ("stdlib", "platstdlib"))
    return "python" if path.startswith(tuple(f"{Path(each).resolve()}{os.sep}" for each in python)) else "elsewhere"


@functools.cache
def _folders() -> tuple[str, ...]:
    """List where packages are installed."""
    known = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    return tuple(
        f"{Path(each).resolve()}{os.sep}" for each in known if Path(each).name in ("site-packages", "dist-packages")
    )


@functools.cache
def _version(package: str) -> str:
    known = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(known, str):
        return known
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _contents(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
