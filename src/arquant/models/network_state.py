"""Digest the state that a network keeps from call to call: tensors, numbers, arrays, wherever its code may write.

Belongs to the guards of `models`. Two states are compared after the *same* call: a network may leave its activations on a
module, or fill a cache when it is first called, and is then found unchanged. A counter, or a threshold that drifts, is not.
"""

import collections
import contextlib
import enum
import functools
import hashlib
import inspect
import itertools
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from arquant.models.fingerprint.plain_spelling import attributes_of

State = dict[str, bytes]
"""a digest of each value, by the path to it"""

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    enum.Enum,
)
_KNOWN = frozenset({"torch", "arquant", "numpy", "scipy", "openvino", "onnx", "onnxruntime", *sys.stdlib_module_names})
"""packages whose objects and code keep nothing of a network, but for what `_Walk` names"""
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_MOST_VALUES = 200_000
"""a network that refers to more is looked at so far"""


def state_of(network: nn.Module) -> State:
    """Return a digest of every value that the network or its code can reach, but for random generators."""
    walk = _Walk()
    walk.visit("", network)
    return walk.state


def changed(before: State, after: State) -> list[str]:
    """Name the values that differ between two states."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class Luck:
    """The random generators that a network may draw from, as they stood when this was made."""

    def __init__(self, network: nn.Module) -> None:
        walk = _Walk()
        walk.visit("", network)
        on_gpu = [(torch.cuda.get_rng_state, torch.cuda.set_rng_state)] if torch.cuda.is_available() else []
        self._places = [*_GLOBAL, *on_gpu, *(_place(generator) for generator in walk.generators)]
        self._start = self._states()

    def _states(self) -> list[Any]:
        return [get() for get, _ in self._places]

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Draw what was drawn the first time; the generators go on from where they stood."""
        present = self._states()
        self._put(self._start)
        try:
            yield
        finally:
            self._put(present)

    def _put(self, states: list[Any]) -> None:
        for (_, put), state in zip(self._places, states, strict=True):
            put(state)

    def is_tried_by(self, call: Callable[[], object]) -> bool:
        """Return whether a call draws from one of the generators."""
        before = repr(self._states())
        call()
        return repr(self._states()) != before


Place = tuple[Callable[[], Any], Callable[[Any], Any]]

_GLOBAL: list[Place] = [
    (lambda: torch.get_rng_state().numpy().tobytes(), lambda s: torch.set_rng_state(_byte_tensor(s))),
    (lambda: np.random.get_state(legacy=True), np.random.set_state),  # noqa: NPY002 - a user's network may draw from it
    (random.getstate, random.setstate),
]


def _byte_tensor(state: bytes) -> Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _place(generator: Any) -> Place:
    if isinstance(generator, torch.Generator):
        return (
            lambda: generator.get_state().numpy().tobytes(),
            lambda state: generator.set_state(_byte_tensor(state)),
        )
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.RandomState):
        return generator.get_state, generator.set_state
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    return lambda: bits.state, lambda state: setattr(bits, "state", state)


_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)


class _Walk:
    """Follows what a network refers to: attributes, containers, closures, hooks, and the globals that its code names."""

    def __init__(self) -> None:
        self.state: State = {}
        self.generators: list[Any] = []
        self._seen: dict[int, Any] = {}

    def visit(self, path: str, value: Any) -> None:
        """Digest a value, or what it is made of."""
        if isinstance(value, _PLAIN):
            self.state[path] = _digest(repr(value).encode())
        elif id(value) not in self._seen and len(self._seen) < _MOST_VALUES:
            self._seen[id(value)] = value
            self._visit_new(path, value)

    def _visit_new(self, path: str, value: Any) -> None:
        if isinstance(value, Tensor):
            self.state[path] = _tensor_digest(value)
        elif isinstance(value, np.ndarray | np.generic) and not np.asarray(value).dtype.hasobject:
            self.state[path] = _digest(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, np.ndarray):
            self._visit_parts(path, enumerate(value.ravel().tolist()))
        elif isinstance(value, _GENERATORS):
            self.generators.append(value)
        elif isinstance(value, Mapping):
            self._visit_parts(path, list(value.items()))
        elif isinstance(value, _SEQUENCES):
            self._visit_parts(path, enumerate(_ordered(value)))
        elif isinstance(value, type):
            self._visit_class(path, value)
        elif isinstance(value, types.FunctionType):
            self._visit_function(path, value)
        elif isinstance(value, types.ModuleType):
            return  # followed by the names that code looks up there
        else:
            self._visit_object(path, value)

    def _visit_parts(self, path: str, parts: Any) -> None:
        for name, part in parts:
            label = name if isinstance(name, str | int) else type(name).__name__
            self.visit(f"{path}.{label}" if path else str(label), part)

    def _visit_object(self, path: str, value: Any) -> None:
        if isinstance(value, types.MethodType):
            self._visit_parts(path, [("self", value.__self__), ("function", value.__func__)])
        elif isinstance(value, functools.partial):
            self._visit_parts(path, [("function", value.func), ("args", value.args), ("keywords", value.keywords)])
        elif isinstance(value, torch.jit.ScriptModule):
            self._visit_parts(path, _of_script(value))
        elif isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            self._visit_parts(
                path, [("line", frame and frame.f_lasti), ("locals", dict(frame.f_locals) if frame else {})]
            )
        elif isinstance(value, itertools.count):
            self.state[path] = _digest(repr(value).encode())
        elif isinstance(value, property):
            self._visit_parts(path, [("get", value.fget)])
        elif callable(getattr(value, "__wrapped__", None)):  # behind functools.lru_cache and its kin
            self.visit(path, value.__wrapped__)
        elif isinstance(value, nn.Module) or _is_foreign(type(value)):
            self._visit_parts(path, attributes_of(value).items())
            self.visit(f"{path}:{type(value).__name__}", type(value))
        elif _is_pythons(type(value)) or hasattr(value, "__next__"):
            self._visit_parts(path, attributes_of(value).items())
            self._visit_parts(path, enumerate(_taken_apart(value)))

    def _visit_class(self, path: str, class_: type) -> None:
        for each in class_.__mro__:
            if _is_foreign(each):
                self._visit_parts(path, [item for item in vars(each).items() if not _is_dunder(*item)])

    def _visit_function(self, path: str, function: types.FunctionType) -> None:
        if _package(function) in _KNOWN:
            return
        variables = inspect.getclosurevars(function) if function.__closure__ else None
        self._visit_parts(path, {} if variables is None else variables.nonlocals.items())
        self._visit_parts(path, vars(function).items())
        self._visit_parts(f"{path}.defaults", enumerate(function.__defaults__ or ()))
        self._visit_parts(f"{path}.defaults", (function.__kwdefaults__ or {}).items())
        names = sorted(_names(function.__code__))
        found = {name: function.__globals__[name] for name in names if name in function.__globals__}
        self._visit_parts(function.__module__ or "", found.items())
        for module in found.values():
            if isinstance(module, types.ModuleType):
                self._visit_module(module, names)

    def _visit_module(self, module: types.ModuleType, names: Sequence[str]) -> None:
        """Digest what code looks up in a module; of a known package's, numbers and arrays, which it keeps for itself."""
        found = {name: vars(module)[name] for name in names if name in vars(module)}
        if module.__name__.partition(".")[0] in _KNOWN:
            found = {name: value for name, value in found.items() if isinstance(value, (*_PLAIN, Tensor, np.ndarray))}
        self._visit_parts(module.__name__, found.items())


def _is_foreign(class_: type) -> bool:
    return class_.__module__.partition(".")[0] not in _KNOWN


def _is_pythons(class_: type) -> bool:
    """Tell whether objects of this class of Python's own library may be looked into; loggers change by themselves."""
    package = class_.__module__.partition(".")[0]
    return package in sys.stdlib_module_names - {"builtins", "logging"}


def _taken_apart(value: Any) -> tuple[Any, ...]:
    """Return what an object without attributes is made of, as `copy` would make it again."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = value.__reduce_ex__(4)
    except Exception:  # whatever cannot be taken apart, such as a lock
        return ()
    return () if isinstance(found, str) else tuple(part for part in found if part is not value)


def _package(function: types.FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]


def _is_dunder(name: str, value: Any) -> bool:
    return name.startswith("__") and not isinstance(value, types.FunctionType)


def _names(code: types.CodeType) -> set[str]:
    """Return the names that code, and the code inside it, refers to."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*(_names(part) for part in inner))


def _ordered(values: Any) -> Any:
    return sorted(values, key=repr) if isinstance(values, set | frozenset) else list(values)


def _of_script(module: Any) -> Iterator[tuple[str, Any]]:
    """Return the tensors of a TorchScript module, and the attributes that its code declares, as it prints them."""
    yield from module.state_dict().items()
    yield from module.named_buffers()
    yield "attributes", module._c.dump_to_str(False, True, False)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _tensor_digest(tensor: Tensor) -> bytes:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return b""
    plain = tensor.detach().cpu().contiguous()
    return _digest(
        f"{plain.dtype}{tuple(plain.shape)}".encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    )
