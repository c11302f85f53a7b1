"""The byte code of functions, as bytes that are the same in every process, and the names that it looks up."""

import dis
import functools
import hashlib
import inspect
from dataclasses import dataclass
from types import CellType, CodeType, MethodType
from typing import Any

_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"))


@dataclass(frozen=True)
class CodeFacts:
    """A piece of code and the names it looks up, the functions inside it included.

    Attributes:
        digest: of instructions, constants and names; comments, layout and line numbers do not matter.
        globals: names that it reads or writes in its module.
        names: all names that it looks up, those of attributes too.
        imports: modules that it imports when it runs.
    """

    digest: bytes
    globals: frozenset[str]
    names: frozenset[str]
    imports: frozenset[str]


@functools.cache
def code_facts(code: CodeType) -> CodeFacts:
    """Describe a piece of code."""
    instructions = list(dis.get_instructions(code))
    found = {i.argval for i in instructions if i.opname in _GLOBAL}
    imports = {i.argval for i in instructions if i.opname == "IMPORT_NAME" and i.argval}
    names = set(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            inner = code_facts(constant)
            found, names, imports = found | inner.globals, names | inner.names, imports | inner.imports
    shape = (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_names, code.co_varnames,
        code.co_freevars, code.co_cellvars, code.co_exceptiontable, [_constant(each) for each in code.co_consts],
    )  # fmt: skip
    digest = hashlib.sha256(repr(shape).encode("utf-8", "surrogatepass") + code.co_code).digest()
    return CodeFacts(digest, frozenset(found), frozenset(names), frozenset(imports))


def _constant(value: Any) -> str:
    """Spell a constant, with its type: 1, 1.0 and True are equal."""
    if inspect.iscode(value):
        return f"code {code_facts(value).digest.hex()}"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__} {hex(value) if type(value) is int else repr(value)}"


def callable_parts(value: Any) -> tuple[Any, ...] | None:
    """Take apart what wraps a function or stands for another thing; None if it is no such thing."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords, vars(value)
    if isinstance(value, functools.partialmethod):
        return value.func, value.args, value.keywords
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, functools._lru_cache_wrapper):
        return value.__wrapped__, value.cache_parameters()
    if isinstance(value, CellType):
        try:
            return (value.cell_contents,)
        except ValueError:
            return ()
    return None
