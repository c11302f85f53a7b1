"""Networks whose text and weights say all: made of torch's and our own modules, as these make themselves.

Their fingerprint is version 1, which published certificates rest on: it sees the text of a network, its weights, and the
attributes of torch's modules that do not print theirs, such as the heads of `MultiheadAttention`. A hook, a patched method, an
attribute that torch or we would not have put there, or a setting that the text of a module does not show makes it irregular.
"""

import functools
import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from arquant.models.fingerprint.code_origin import origin, replaced
from arquant.models.fingerprint.module_records import HOOKS, left_out
from arquant.models.fingerprint.tensor_spelling import tensor_bytes

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype)
_OURS = ("tapped_calls", "seen", "_path", "_compiled")
"""attributes of our own modules that follow from the layers, or are for a moment only"""
_PRINTED_BY_US = ("learn", "signed")
_HEADS = 3
"""of the vision transformer that bears a name of ours"""


class _Odd:
    """Equal to nothing."""


def is_regular(network: nn.Module) -> bool:
    """Say whether a network is made of torch's and our own modules only, none of which was tampered with."""
    if any(replaced(space) for space in (torch, torch.nn.functional, torch.Tensor)):
        return False
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return False
    classes = {above for module in network.modules() for above in type(module).__mro__}
    if any(not _is_known(each) or replaced(each) for each in classes):
        return False
    return all(_regular_module(module) for module in network.modules())


def unprinted_settings(network: nn.Module) -> Iterator[bytes]:
    """Spell the attributes of those modules of torch's that do not print them, in a fixed order, as version 1 has them."""
    for path, module in network.named_modules():
        class_ = _torch_class(module)
        if class_ is not nn.Module and class_.extra_repr is nn.Module.extra_repr:
            skipped = left_out(module)
            for name, value in sorted(vars(module).items()):
                if name not in skipped and (text := _spelled(value)) is not None:
                    yield f"{path}.{name}=".encode() + text


def _spelled(value: Any) -> bytes | None:
    """Spell plain values, tensors, functions by their names, and sequences of them; None for anything else."""
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


def _torch_class(module: nn.Module) -> Any:
    """Return the class of torch's that a module is of, or that its class was made from."""
    return next(each for each in type(module).__mro__ if origin(each.__module__) == "torch")


def _is_known(class_: type) -> bool:
    return origin(class_.__module__) in ("torch", "ours") or class_ is object


def _regular_module(module: nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
        return False
    if any(getattr(module, kind) for kind in HOOKS):
        return False
    ours = origin(type(module).__module__) == "ours"
    if not ours and module._non_persistent_buffers_set:
        return False
    skipped = left_out(module)
    own = {name: value for name, value in vars(module).items() if name not in skipped}
    if not own:
        return True
    class_ = _torch_class(module)
    if ours:
        own = {name: value for name, value in own.items() if not _of_ours(module, name, value)}
    if parametrize.is_parametrized(module):
        class_ = class_.__bases__[0]
    if class_ is nn.Module:
        return not own
    if class_.extra_repr is nn.Module.extra_repr:  # its attributes are in the fingerprint of version 1
        return all(_spelled_before(value) for value in own.values())
    return _as_torch_makes_it(module, class_, own)


def _of_ours(module: nn.Module, name: str, value: Any) -> bool:
    """Say whether an attribute of a module of ours is what our own code puts there."""
    if name in _PRINTED_BY_US:
        return f"{name}={value!r}" in module.extra_repr()
    if name == "heads":
        return bool(value == _HEADS)
    if name == "residual":
        convolutions = [each for each in module.modules() if isinstance(each, nn.Conv2d)]
        strides = math.prod(each.stride[0] for each in convolutions)
        return value is (strides == 1 and convolutions[0].in_channels == convolutions[-1].out_channels)
    return name in _OURS or (name == "downsample" and value is None)


def _spelled_before(value: Any) -> bool:
    """Say whether version 1 sees all of an attribute of a torch module that does not print its attributes."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_spelled_before, value))
    if inspect.isroutine(value) or inspect.isclass(value):
        return origin(getattr(value, "__module__", None) or "builtins") in ("torch", "library")
    return isinstance(value, _PLAIN) or (isinstance(value, Tensor) and value.layout == torch.strided)


def _as_torch_makes_it(module: nn.Module, class_: Any, own: Mapping[str, Any]) -> bool:
    """Say whether a module of torch's has the attributes that its text and torch's defaults lead to, and no others."""
    if not all(_simple(value) for value in own.values()):
        return False
    parameters = tuple(sorted((name, value is not None) for name, value in module._parameters.items()))
    text = tuple(sorted((name, repr(value)) for name, value in own.items()))
    key = (class_, parameters, text)
    if key not in _judged:
        _judged[key] = _equals_twin(module, class_, own)
    return _judged[key]


_judged: dict[tuple[object, ...], bool] = {}


def _simple(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_simple, value))
    return isinstance(value, _PLAIN)


def _equals_twin(module: nn.Module, class_: Any, own: Mapping[str, Any]) -> bool:
    printed = {name for name in own if _is_printed(module, class_, name)}
    twin = _twin(module, class_, own, printed)
    if twin is None:
        return all(name in printed or name in _declared(class_) for name in own)
    usual = vars(twin)
    return all(name in usual and (name in printed or repr(value) == repr(usual[name])) for name, value in own.items())


def _is_printed(module: nn.Module, class_: Any, name: str) -> bool:
    """Say whether the text of a module changes with an attribute."""
    text, other = class_.extra_repr(module), object.__new__(class_)
    for substitute in (_Odd(), True, False):
        other.__dict__.update({**vars(module), name: substitute})
        try:
            if class_.extra_repr(other) != text:
                return True
        except Exception:  # it was looked at, and is no value that the class can print
            return True
    return False


def _twin(module: nn.Module, class_: Any, own: Mapping[str, Any], printed: set[str]) -> nn.Module | None:
    """Make such a module anew from what its text says, without weights; None if that cannot be."""
    arguments = {}
    for name, parameter in _constructor(class_).items():
        if name == "mode" and issubclass(class_, nn.RNNBase):
            continue  # each of its subclasses has its own
        if name in own and (name in printed or parameter.default is parameter.empty):
            if parameter.default is parameter.empty or repr(own[name]) != repr(parameter.default):
                arguments[name] = own[name]
        elif name in module._parameters:
            arguments[name] = module._parameters[name] is not None
    try:
        with warnings.catch_warnings(), torch.device("meta"), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            twin: nn.Module = class_(**arguments)
            return twin
    except Exception:  # each class has demands of its own
        return None


@functools.cache
def _constructor(class_: Any) -> Mapping[str, inspect.Parameter]:
    """Return the named arguments of a class, or of the base class that takes over all it is given."""
    for each in class_.__mro__:
        if "__init__" in vars(each):
            named = {
                name: parameter
                for name, parameter in inspect.signature(each.__init__).parameters.items()
                if name not in ("self", "device", "dtype") and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            }
            if named:
                return named
    return {}


@functools.cache
def _declared(class_: Any) -> frozenset[str]:
    """Return the attributes that a class of torch's and its base classes declare."""
    known: set[str] = set()
    for each in class_.__mro__:
        known.update(vars(each).get("__constants__", ()), vars(each).get("__annotations__", ()))
    return frozenset(known)
