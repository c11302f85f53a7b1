"""Spell out everything that decides which function a network computes, beside its weights, its text and its shapes.

Covered, for a network and whatever hangs on it:

- attributes of every module, also of modules that are no registered children: numbers, texts, arrays and tensors by their
  contents, lists, dicts (in their order), sets, enums, dataclasses and other objects by their attributes, generators of random
  numbers by their state, partials, bound methods, classes, functions, torch's types and devices; buffers that are not saved;
- forward hooks and forward pre-hooks, of one module and of all, parametrizations, a `forward` patched on an instance or on a
  class, functions of `torch`, `torch.nn.functional` and `torch.Tensor` that the user replaced by functions of Python;
- the user's code: byte code, defaults, closures and attributes of the methods of classes, of functions, and of what they call
  and read in the user's modules, however deep; code of libraries by name and version (`code_origin`);
- TorchScript: its code, constants and attributes; the code of `torch.fx` graphs.

Nothing depends on addresses, on the order of sets or on the process. What cannot be spelled is listed by path and type: open
files, locks, running Python generators, code that uses `globals`, `eval`, `environ` and their like (`_OUT_OF_SIGHT`),
objects of other languages that tell nothing about themselves, and whatever lies beyond `MOST_VALUES` values,
`MOST_OBJECTS` objects or `DEEPEST` nested containers. Not seen at all: what code reads from files or the clock while it
runs, attributes that it looks up by a computed name, and switches of torch itself (default types, autocast, backends).
Byte code differs between minor versions of Python: under another one the same code of a user counts as another.
"""

import builtins
import functools
import hashlib
import itertools
import logging
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from arquant.models.fingerprint.code_objects import callable_parts, code_facts
from arquant.models.fingerprint.code_origin import importable, library_name, origin, origin_of_function, replaced
from arquant.models.fingerprint.module_records import HOOKS, left_out
from arquant.models.fingerprint.plain_spelling import (
    attributes_of,
    has_hidden_state,
    numbers,
    packed,
    plain,
    reduced,
    type_name,
    word,
)
from arquant.models.fingerprint.tensor_spelling import script_digest

log = logging.getLogger(__name__)

MOST_VALUES = 100_000
"""in one attribute or variable, containers included"""
MOST_OBJECTS = 20_000
"""with attributes, in all"""
DEEPEST = 60

_CLASS_NOISE = frozenset((
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "_abc_impl",
    "__abstractmethods__", "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__slotnames__", "__slots__",
    "_value2member_map_",
))  # fmt: skip
_OUT_OF_SIGHT = frozenset((
    "globals", "locals", "eval", "exec", "environ", "getenv", "_getframe", "__doc__", "__annotations__", "__import__",
    "import_module",
))  # fmt: skip
"""by which code looks at things that no entry holds"""
_BUILTIN = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_SIMPLE = (str, bytes, bytearray, int, float, complex)


@dataclass(frozen=True)
class Spelling:
    """The facts that were spelled, and those that could not be.

    Attributes:
        entries: a digest of each thing, by where it hangs.
        unspelled: "path (type)" of each thing that cannot be spelled.
    """

    entries: Mapping[str, str]
    unspelled: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        """Return the version of a fingerprint that holds this."""
        return 2 if self.entries else 1


def spell(network: nn.Module) -> Spelling:
    """Spell a network."""
    speller = _Speller(network, most=MOST_VALUES)
    speller.network()
    return speller.finish()


class _Speller:
    """One pass over a network. Things with an identity get a name and entries of their own; the rest is spelled in place."""

    def __init__(self, network: nn.Module, *, most: int) -> None:
        self._network = network
        self._saved = frozenset(network.state_dict())
        self._modules = {id(module): path for path, module in network.named_modules()}
        tensors = (*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False))
        self._tensors = {id(tensor): name for name, tensor in reversed(tensors) if name in self._saved}
        self._entries: dict[str, str] = {}
        self._unspelled: set[str] = set()
        self._most = self._left = most
        self._objects = 0
        self._open: list[int] = []
        self._alive: list[Any] = []
        """all that is known by its id, so that no other thing gets that id"""
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._waiting: deque[Callable[[], None]] = deque()
        self._namespaces: dict[str, dict[str, Any]] = {}
        self._words: set[str] = set()
        self._read: set[tuple[int, str]] = set()

    def network(self) -> None:
        """Spell the network, and what was done to all networks."""
        for path, module in self._network.named_modules():
            self._module(path, path, module)
        for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
            for number, hook in enumerate(getattr(torch.nn.modules.module, name).values()):
                self.enter(f"torch{name} {number}", hook)
        for space in (torch, torch.nn.functional, torch.Tensor):
            for name, function in replaced(space).items():
                self.enter(f"replaced {space.__name__}.{name}", function)

    def finish(self) -> Spelling:
        """Spell all that was met on the way."""
        while self._waiting or self._read_namespaces():
            self._waiting.popleft()()
        return Spelling(self._entries, tuple(sorted(self._unspelled)))

    def enter(self, path: str, value: Any) -> None:
        """Spell a value as an entry of its own."""
        self._left = self._most
        self._put(path, self._value(path, value))

    def _put(self, path: str, *parts: bytes) -> None:
        self._entries[path] = hashlib.sha256(packed("entry", *parts)).hexdigest()

    def _module(self, path: str, registered: str | None, module: nn.Module) -> None:
        """Spell a module without its children; `registered` is its path in the network, None if it is no part of it."""
        children = (f"{name}={self._modules.get(id(child), '')}".encode() for name, child in module._modules.items())
        self._put(f"{path} is", self._class(type(module)), *children)
        if isinstance(module, torch.jit.ScriptModule):
            if registered is None or not isinstance(self._parent(registered), torch.jit.ScriptModule):
                self.enter(f"{path} script", script_digest(module) or _Opaque(module))
        elif isinstance(module, torch.fx.GraphModule):
            self.enter(f"{path} code", module.code)
        for kind in HOOKS:
            for number, hook in enumerate(getattr(module, kind).values()):
                self.enter(f"{path} {kind[1:]} {number}", hook)
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if registered is None or ".".join(filter(None, (registered, name))) not in self._saved:
                self.enter(f"{path}.{name}", tensor)
            if vars(tensor):
                self.enter(f"{path}.{name} has", dict(sorted(vars(tensor).items())))
        skipped = left_out(module)
        for name, value in sorted(vars(module).items()):
            if name not in skipped:
                self.enter(f"{path}.{name}", value)

    def _parent(self, path: str) -> nn.Module | None:
        return self._network.get_submodule(path.rpartition(".")[0]) if path else None

    def _hidden(self, path: str, module: nn.Module) -> None:
        """Spell a module that is no registered part of the network, with its weights and its children."""
        self._module(path, None, module)
        for name, child in module.named_children():
            self.enter(f"{path}.{name}", child)

    def _value(self, path: str, value: Any) -> bytes:
        """Spell a value in place; `path` says where, should something in it be beyond spelling."""
        self._left -= 1
        if self._left < 0:
            self._unspelled.add(f"{path.partition('[')[0]} (more than {self._most:,} values)")
            return packed("too much")
        if (found := plain(value)) is not None:
            return found
        if id(value) in self._open:
            return packed("again", str(self._open[::-1].index(id(value))).encode())
        if len(self._open) >= DEEPEST:
            return self._give_up(path, value)
        self._alive.append(value)
        self._open.append(id(value))
        try:
            found = next(
                (found for spelled in (self._reference, word, numbers) if (found := spelled(value)) is not None), None
            )
            return self._composed(path, value) if found is None else found
        except Exception as error:  # whatever an object of somebody else's raises when it is looked at
            log.debug("%s cannot be spelled: %s", path, error)
            return self._give_up(path, value)
        finally:
            self._open.pop()

    def _reference(self, value: Any) -> bytes | None:
        """Name what has entries of its own, or is a part of the network."""
        if id(value) in self._tensors:
            return packed("tensor of the network", self._tensors[id(value)].encode())
        if id(value) in self._modules:
            return packed("module of the network", self._modules[id(value)].encode())
        if id(value) in self._names:
            return packed("see", self._names[id(value)].encode())
        return None

    def _composed(self, path: str, value: Any) -> bytes:
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.FunctionType):
            return self._function(path, value)
        if isinstance(value, types.ModuleType):
            if origin(value.__name__) == "user":
                self._namespaces[value.__name__] = vars(value)
            return packed("namespace", value.__name__.encode())
        if isinstance(value, _BUILTIN):
            owner = getattr(value, "__self__", None)
            known = library_name(getattr(value, "__module__", None), value.__qualname__)
            return packed("builtin", known, *self._each(path, () if isinstance(owner, types.ModuleType) else (owner,)))
        if isinstance(value, torch.jit.ScriptFunction):
            return packed("script", script_digest(value) or self._give_up(path, value))
        if isinstance(value, nn.Module):
            name = self._name(value, path)
            self._waiting.append(lambda: self._hidden(name, value))
            return packed("see", name.encode())
        parts = callable_parts(value)
        if parts is not None:
            return packed(type(value).__name__, *self._each(path, parts))
        content = self._content(path, value)
        return self._object(path, value) if content is None else content

    def _content(self, path: str, value: Any) -> bytes | None:
        """Spell containers, and kinds of them that have attributes besides."""
        if isinstance(value, list | tuple):
            content = packed("sequence", *self._each(path, value))
        elif isinstance(value, set | frozenset):
            content = packed("set", *(self._value(path, member) for member in _in_fixed_order(value, self._left)))
        elif isinstance(value, dict):
            pairs = [
                (self._value(path, key), self._value(f"{path}[{_label(key)}]", value[key]))
                for key in self._first(value)
            ]
            content = packed("dict", *(part for pair in pairs for part in pair))
        elif isinstance(value, _SIMPLE):
            base: Any = next(each for each in _SIMPLE if isinstance(value, each))
            content = packed("basic", repr(base(value)).encode("utf-8", "surrogatepass"))
        else:
            return None
        if type(value) in (list, tuple, set, frozenset, dict, *_SIMPLE):
            return packed(type(value).__name__, content)
        more = {**attributes_of(value), "default_factory": getattr(value, "default_factory", None)}
        return packed("kind", self._class(type(value)), content, self._value(path, dict(sorted(more.items()))))

    def _each(self, path: str, values: Iterable[Any]) -> list[bytes]:
        return [self._value(f"{path}[{number}]", value) for number, value in enumerate(self._first(values))]

    def _first(self, values: Iterable[Any]) -> Iterator[Any]:
        """Return as many values as may be spelled, and one more to show that there are others."""
        return itertools.islice(values, max(0, self._left) + 1)

    def _object(self, path: str, value: Any) -> bytes:
        """Spell any other object by its attributes, or as `pickle` would take it apart."""
        if isinstance(value, _Opaque):
            return self._give_up(path, value.value)
        apart = reduced(value)
        if apart is not None:
            return packed("object", self._class(type(value)), self._value(path, apart))
        attributes = attributes_of(value)
        self._objects += 1
        if self._objects > MOST_OBJECTS or has_hidden_state(value):
            self._give_up(path, value)
        if self._objects > MOST_OBJECTS:
            return packed("too many")
        name = self._name(value, path)
        self._waiting.extend(
            functools.partial(self.enter, f"{name}.{attribute}", attributes[attribute])
            for attribute in sorted(attributes)
        )
        return packed("object", self._class(type(value)), name.encode())

    def _function(self, path: str, function: types.FunctionType) -> bytes:
        if origin_of_function(function) == "user":
            name = self._name(function, f"function {function.__module__}.{function.__qualname__}")
            self._waiting.append(lambda: self._enter_function(name, function))
            return packed("see", name.encode())
        if importable(function):
            return packed("function", library_name(function.__module__, function.__qualname__))
        name_there = library_name(function.__globals__.get("__name__"), function.__code__.co_qualname)
        parts = (function.__closure__, function.__defaults__, function.__kwdefaults__)
        return packed("function", name_there, *self._each(path, parts))

    def _enter_function(self, name: str, function: types.FunctionType) -> None:
        facts = code_facts(function.__code__)
        self._put(f"{name} is", facts.digest)
        self._unspelled |= {f"{name} (uses {word})" for word in facts.names & _OUT_OF_SIGHT}
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.enter(f"{name} closure {variable}", cell)
        self.enter(f"{name} defaults", (function.__defaults__, function.__kwdefaults__))
        for attribute, value in sorted(vars(function).items()):
            self.enter(f"{name}.{attribute}", value)
        self._words |= facts.names
        for variable in sorted(facts.globals):
            self._global(function.__globals__, variable)
        for module in sorted(facts.imports):
            if module in sys.modules and origin(module) == "user":
                self._namespaces[module] = vars(sys.modules[module])

    def _global(self, namespace: dict[str, Any], variable: str) -> None:
        """Spell a variable of a module that code reads; what a forward pass may make later is absent now."""
        if (id(namespace), variable) in self._read or (variable not in namespace and hasattr(builtins, variable)):
            return
        self._read.add((id(namespace), variable))
        if id(namespace) not in self._names:
            self._name(namespace, f"global {namespace.get('__name__')}")
        self.enter(f"{self._names[id(namespace)]}.{variable}", namespace.get(variable, _ABSENT))

    def _read_namespaces(self) -> bool:
        """Look up all names that code uses in the user's modules that were met; say whether that led on."""
        for _, namespace in sorted(self._namespaces.items()):
            for name in sorted(self._words & namespace.keys()):
                self._global(namespace, name)
        return bool(self._waiting)

    def _class(self, class_: type) -> bytes:
        """Name a class; its entry holds all that is defined in it if it is the user's."""
        if id(class_) not in self._names:
            name = self._name(class_, f"class {class_.__module__}.{class_.__qualname__}")
            self._waiting.append(lambda: self._enter_class(name, class_))
        return packed("see", self._names[id(class_)].encode())

    def _enter_class(self, name: str, class_: type) -> None:
        users = origin(class_.__module__) == "user"
        whose = b"user" if users else library_name(class_.__module__, class_.__qualname__)
        self._put(f"{name} is", whose, *(self._class(above) for above in (*class_.__bases__, type(class_))))
        defined = vars(class_) if users else replaced(class_)
        for attribute, value in sorted(defined.items()):
            if attribute not in _CLASS_NOISE:
                self.enter(f"{name}.{attribute}", value)

    def _name(self, value: Any, wanted: str) -> str:
        """Give a thing a name that no other has."""
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}#{count}"
        self._taken.add(name)
        self._alive.append(value)
        self._names[id(value)] = name
        return name

    def _give_up(self, path: str, value: Any) -> bytes:
        self._unspelled.add(f"{path} ({type_name(value)})")
        return packed("unspelled", type_name(value).encode())


@dataclass(frozen=True)
class _Opaque:
    """Stands for something that is known to be beyond spelling."""

    value: Any


_ABSENT = NotImplemented
"""spelled for a variable that a module does not have"""


def _in_fixed_order(members: Set[Any], most: int) -> list[Any]:
    """Sort the members of a set by how each is spelled by itself."""

    def alone(member: Any) -> str:
        if (found := plain(member)) is not None:
            return found.hex()
        speller = _Speller(nn.Module(), most=max(0, most) // len(members))
        speller.enter("member", member)
        return repr(sorted(speller.finish().entries.items()))

    return sorted(members, key=alone)


def _label(key: Any) -> str:
    return key if type(key) is str else type_name(key)
