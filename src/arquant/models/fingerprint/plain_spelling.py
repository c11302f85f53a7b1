"""Spell single values: numbers, texts, arrays, names of things; and take other objects apart."""

import copyreg
import enum
import hashlib
import io
import logging
import types
import warnings
import weakref
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from arquant.models.fingerprint.code_origin import origin
from arquant.models.fingerprint.tensor_spelling import array_digest, tensor_digest

_WORDS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo)
_MEMBERS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_OPAQUE = (io.IOBase, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType)
_PLAIN = (bool, int, float, str, bytes, type(None))
_MANY = 1000
"""plain numbers in a list are spelled at once, which is faster"""


def packed(kind: str, *parts: bytes) -> bytes:
    """Join parts so that different lists of parts never give the same bytes; long parts by their digests."""
    short = (part if len(part) < 1024 else b"digest" + hashlib.sha256(part).digest() for part in parts)
    return b"".join((f"{kind}:{len(parts)}:".encode(), *(len(part).to_bytes(8, "little") + part for part in short)))


def plain(value: Any) -> bytes | None:
    """Spell a number or text of Python's, or a long list of them; None for anything else."""
    kind = type(value)
    if kind is str:
        return packed("str", value.encode("utf-8", "surrogatepass"))
    if kind is int:
        return packed("int", hex(value).encode())
    if kind is float:
        return packed("float", value.hex().encode())
    if kind is bytes:
        return packed("bytes", value)
    if kind in (bool, complex, range, type(None), type(Ellipsis), type(NotImplemented)):
        return packed(kind.__name__, repr(value).encode())
    if kind in (list, tuple) and len(value) >= _MANY and set(map(type, value)) <= set(_PLAIN):
        digest = hashlib.sha256()
        for each in value:
            digest.update(plain(each) or b"")
        return packed(f"plain {kind.__name__}", digest.digest())
    return None


def word(value: Any) -> bytes | None:
    """Spell things of which a name says all that matters."""
    if isinstance(value, _WORDS):
        return packed("torch", repr(value).encode())
    if isinstance(value, np.dtype):
        return packed("dtype", repr(value.descr if value.names else value.str).encode())
    if isinstance(value, np.ufunc):
        return packed("ufunc", value.__name__.encode())
    if isinstance(value, _MEMBERS):
        return packed("member", value.__name__.encode())
    if isinstance(value, logging.Logger):
        return packed("logger")
    if isinstance(value, RemovableHandle):  # numbered by how many there were before in this process
        return packed("handle")
    return None


def numbers(value: Any) -> bytes | None:
    """Spell tensors, arrays and generators of random numbers by what they hold."""
    if type(value) in (Tensor, nn.Parameter, nn.Buffer):
        content = tensor_digest(value)
        return None if content is None else packed("tensor", content)
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return packed("array", array_digest(value))
    if isinstance(value, torch.Generator):
        return packed("generator", str(value.device).encode(), tensor_digest(value.get_state()) or b"")
    return None


def reduced(value: Any) -> tuple[Any, ...] | None:
    """Take an object apart whose attributes do not show what it holds; None if they do, or if nothing else does."""
    if isinstance(value, enum.Enum):
        return value.name, value.value
    if isinstance(value, weakref.ref):
        return (value(),)
    if isinstance(value, types.MappingProxyType):
        return (dict(value),)
    if isinstance(value, KeysView | ValuesView | ItemsView) and type(value).__module__ == "builtins":
        return (list(value),)
    if isinstance(value, memoryview):
        return value.format, value.shape, value.tobytes()
    if isinstance(value, torch.UntypedStorage):
        return (torch.empty(0, dtype=torch.uint8, device=value.device).set_(value),)
    if isinstance(value, Tensor):
        content = tensor_digest(value)
        return None if content is None else (content, attributes_of(value))
    if isinstance(value, np.ndarray):
        return value.shape, value.ravel().tolist()
    maker = copyreg.dispatch_table.get(type(value))
    owner = next(each for each in type(value).__mro__ if {"__reduce__", "__reduce_ex__"} & vars(each).keys())
    if maker is None and (owner is object or origin(owner.__module__) == "user"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = value.__reduce_ex__(4) if maker is None else maker(value)
    except Exception:  # whatever a class says that cannot be taken apart
        return None
    if isinstance(found, str):
        return (found,)
    function, arguments, state, items, pairs = (*found, None, None, None)[:5]
    return function, arguments, state, list(items or ()), list(pairs or ())


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, including those in slots."""
    found = {}
    for above in type(value).__mro__:
        for name, member in vars(above).items() if "__slots__" in vars(above) else ():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:
                    continue
    return {**found, **getattr(value, "__dict__", {})}


def has_hidden_state(value: Any) -> bool:
    """Say whether an object holds something that Python cannot see, as locks and open files do."""
    if isinstance(value, (*_OPAQUE, Tensor)):
        return True
    try:
        object.__reduce_ex__(value, 2)
    except TypeError as error:
        return "cannot pickle" in str(error)
    except Exception:  # of a user's own method for it
        return False
    return False


def type_name(value: Any) -> str:
    """Return the name of a value's type, with its module unless it is Python's own."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
