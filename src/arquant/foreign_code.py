"""What the text and the weights of a network do not show: the code and the attributes of modules that are not ours.

Two modules of one class may compute different functions because of a number that `__init__` stored, and a class may be edited
between two runs. Certificates of one must not pass for certificates of the other. What stays unseen: functions outside
the modules' classes that they call, and attributes that are objects or dictionaries, which are often caches.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_KNOWN = ("torch", "arquant", "builtins")
"""packages whose code is not looked at; versions are recorded beside every certificate"""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype)
_INTERNAL = frozenset(vars(nn.Module()))


def foreign_facts(network: nn.Module) -> Iterator[bytes]:
    """Code, attributes and unsaved buffers of a network's foreign modules, in a fixed order; nothing if there are none.

    Of torch's own modules, the attributes of those that do not print them, such as the heads of `MultiheadAttention`.
    """
    for path, module in network.named_modules():
        foreign = [each for each in type(module).__mro__ if _package(each) not in _KNOWN]
        for each in foreign:
            yield f"{path}:{each.__qualname__}:{_code(each)}".encode()
        if foreign:
            saved = module.state_dict()
            for name, buffer in module.named_buffers(recurse=False):
                if name not in saved:
                    yield f"{path}.{name}={buffer.dtype}{tuple(buffer.shape)}{buffer.flatten().tolist()}".encode()
        if foreign or (_package(type(module)) == "torch" and type(module).extra_repr is nn.Module.extra_repr):
            for name, value in sorted(vars(module).items()):
                if name not in _INTERNAL and (text := _spelled(value)) is not None:
                    yield f"{path}.{name}=".encode() + text


def tensor_bytes(tensor: Tensor) -> bytes:
    """Type, shape and values of a tensor."""
    plain = tensor.detach().cpu().contiguous()
    return f"{plain.dtype}:{tuple(plain.shape)}:".encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _package(class_: type) -> str:
    return class_.__module__.partition(".")[0]


@functools.cache
def _code(class_: type) -> str:
    """A class without its comments and layout; its byte code where no source is at hand."""
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(class_))))
    except (OSError, TypeError, SyntaxError):
        functions = [value for value in vars(class_).values() if inspect.isfunction(value)]
        codes = [(function.__name__, function.__code__) for function in functions]
        return repr([
            (name, code.co_code, code.co_names, [c for c in code.co_consts if not inspect.iscode(c)])
            for name, code in codes
        ])  # fmt: skip


def _spelled(value: Any) -> bytes | None:
    """A value as bytes; None for anything but plain values, tensors, functions by their names, and sequences of them."""
    if isinstance(value, _PLAIN):
        return repr(value).encode()
    if isinstance(value, Tensor) and value.layout == torch.strided:
        return tensor_bytes(value)
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{getattr(value, '__module__', None)}.{value.__qualname__}".encode()
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_spelled(part) for part in value]
        ordered = sorted(part or b"" for part in parts) if isinstance(value, set | frozenset) else parts
        return b"[" + b",".join(part or b"" for part in ordered) + b"]"
    return None
