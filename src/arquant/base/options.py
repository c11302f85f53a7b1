"""Declare an option once: a field of a frozen dataclass is a flag, its help, its default, a YAML key and a Python argument.

    @dataclass(frozen=True, kw_only=True)
    class Smoothing:
        \"\"\"Smoothing\"\"\"                      # the heading of these options in `--help all`

        n: int = 10_000
        \"\"\"noisy votes per image\"\"\"           # the help of `--n`

A command's options are one dataclass that inherits such groups. Its own fields that are not keyword-only are positional
arguments; they may stand anywhere among the flags. Types decide how text is read: `int` takes 1e6, `bool` is a bare flag
(`--no-NAME` where the default is True), `tuple[float, ...]` a comma-separated list, `Literal` a choice, `Repeated` an option
that may be given several times, `Pairs` one that is given as NAME=VALUE, several times too. An empty list is typed `none`.
Nothing here imports torch, so that `--help` answers at once.
"""

import argparse
import ast
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from arquant.base.errors import InputError
from arquant.base.units import PREFIXES

T = TypeVar("T")
REPEATED, PAIRS, SIZE, PYTHON_ONLY = "repeated", "pairs", "size", "python only"
Repeated = Annotated[tuple[str, ...], REPEATED]
"""an option that may be given several times; a comma belongs to the value"""
Pairs = Annotated[Mapping[str, Any], PAIRS]
"""an option NAME=VALUE that may be given several times"""
Size = Annotated[int, SIZE]
"""a number of bytes: 100k, 1e6"""


@dataclass(frozen=True)
class Names:
    """Mark an option that takes a registered name: its help says them in place of `{names}`."""

    known: Callable[[], Sequence[str]]


NOTHING = "none"
"""how an empty list is typed"""


@dataclass(frozen=True, eq=False)
class Option:
    """One option of a command, as its dataclass declares it."""

    name: str
    help: str
    group: str
    default: Any
    """MISSING where the option must be stated"""
    positional: bool
    kind: Any
    """its type without `None`: what decides how text is read"""
    mark: str | None = None
    """REPEATED, PAIRS or SIZE"""

    @property
    def required(self) -> bool:
        """True if there is no default."""
        return self.default is MISSING

    @property
    def flag(self) -> str:
        """The option as it is typed: `--no-NAME` where the default is True."""
        dashed = self.name.replace("_", "-")
        return dashed if self.positional else f"--no-{dashed}" if self.default is True else f"--{dashed}"

    @property
    def many(self) -> bool:
        """True for a positional argument that takes several words, and for an option that may be repeated."""
        return self.mark in (REPEATED, PAIRS)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that there are, if they are known: those of the option, or of each entry of its list."""
        entry = get_args(self.kind)[0] if get_origin(self.kind) is tuple else self.kind
        return get_args(entry) if get_origin(entry) is Literal else ()

    def convert(self, value: Any) -> Any:
        """Read a value that was typed or stands in a YAML file; ArgumentTypeError says what is wrong with it."""
        if self.mark == PAIRS:
            return _pairs(value)
        if self.many:
            return tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)
        if self.kind is bool:
            if not isinstance(value, bool):
                raise argparse.ArgumentTypeError(f"must be true or false, got {value!r}")
            return value
        if isinstance(value, (dict, bool)):
            raise argparse.ArgumentTypeError(f"cannot be {value!r}")
        return size(value) if self.mark == SIZE else _converted(self.kind, value)

    def words(self, value: Any) -> list[str]:
        """Return what to type for this value."""
        if self.kind is bool:
            return [self.flag] if value is not (self.default is True) else []
        if self.mark == PAIRS:
            return [word for name, one in value.items() for word in self._word(f"{name}={one}")]
        if self.many:
            return [word for one in value for word in self._word(one)]
        return self._word((",".join(map(str, value)) or NOTHING) if isinstance(value, (tuple, list)) else value)

    def _word(self, value: Any) -> list[str]:
        if self.positional:
            return [str(value)]
        return [f"{self.flag}={value}"] if str(value).startswith("-") else [self.flag, str(value)]


def number(text: object) -> float:
    """Read a number."""
    try:
        return float(str(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def integer(text: object) -> int:
    """Read a whole number; 1e6 is one."""
    try:
        value = int(str(text)) if str(text).lstrip("+-").isdecimal() else float(str(text))
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 1000 or 1e6")


def size(text: object) -> int:
    """Read a number of bytes, such as 100k or 1e6."""
    digits = str(text).rstrip("kKMGTi")
    try:
        return int(float(digits) * PREFIXES[str(text)[len(digits) :]])
    except (ValueError, OverflowError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes, such as 100k or 1e6") from None


def _converted(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = get_args(kind)
            raise argparse.ArgumentTypeError(
                f"{value!r} is not one of {', '.join(choices)}{meant(str(value), choices)}"
            )
        return value
    if get_origin(kind) is tuple:
        return _listed(get_args(kind), value)
    readers: dict[Any, Callable[[object], Any]] = {int: integer, float: number, Path: lambda text: Path(str(text))}
    return readers.get(kind, str)(value)


def _pairs(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(name): one for name, one in value.items()}
    pairs = {}
    for text in value if isinstance(value, (list, tuple)) else [value]:
        name, equals, one = str(text).partition("=")
        if not equals or not name.strip():
            raise argparse.ArgumentTypeError(f"{text!r} must be written NAME=VALUE")
        pairs[name.strip()] = one.strip()
    return pairs


def _listed(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if value == NOTHING and kinds[-1] is Ellipsis:
        return ()
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    parts = list(parts) if isinstance(parts, Iterable) else [parts]
    if kinds[-1] is not Ellipsis and len(parts) != len(kinds):
        raise argparse.ArgumentTypeError(f"{value!r} has {len(parts)} values, expected {len(kinds)}")
    return tuple(_converted(kinds[0], part) for part in parts)


def options_of(cls: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares; Python-only fields are left out.

    Positional ones come first, then the class's own, then those of the groups that it inherits, from left to right.
    """
    hints = get_type_hints(cls, include_extras=True)
    owners = {name: owner for owner in reversed(cls.__mro__) for name in _field_docs(owner)}
    found = [
        _option(item, hints[item.name], _field_docs(owner)[item.name], _heading(owner))
        for owner in cls.__mro__ for item in fields(cls) if owners[item.name] is owner
    ]  # fmt: skip
    return tuple(sorted((o for o in found if o.mark != PYTHON_ONLY), key=lambda option: not option.positional))


def _option(item: Field[Any], hint: Any, text: str, group: str) -> Option:
    mark = None
    if get_origin(hint) in (Union, UnionType):  # `str | Repeated` is Repeated, `int | None` is int
        stated = [one for one in get_args(hint) if one is not NoneType]
        hint = next((one for one in stated if get_origin(one) is Annotated), stated[0])
    if get_origin(hint) is Annotated:
        hint, mark = get_args(hint)[:2]
    if isinstance(mark, Names):
        text, mark = text.format(names=", ".join(mark.known())), None
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    return Option(item.name, text, group, default, not item.kw_only, hint, mark)


def _heading(owner: type) -> str:
    return (owner.__doc__ or "").partition("\n")[0].rstrip(".")


def _field_docs(owner: type) -> dict[str, str]:
    """Return the docstring under each field of a class, as one line; of a class without fields, nothing."""
    if "__dataclass_fields__" not in vars(owner):
        return {}
    return _module_docs(inspect.getsourcefile(owner) or "")[owner.__qualname__.rpartition(".")[2]]


@cache
def _module_docs(file: str) -> dict[str, dict[str, str]]:
    """Return the docstrings under the fields of all classes of a file, which is parsed once however many it declares."""
    classes = [node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_documented_fields(node.body)) for node in classes}


def _documented_fields(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            yield node.target.id, " ".join(str(text).split())


def described(option: Option) -> str:
    """Return the help text, with the default where it says something."""
    if option.required:
        return f"{option.help} (required)" if not option.positional else option.help
    default = default_text(option)
    return f"{option.help} (default: {default})" if default else option.help


def default_text(option: Option) -> str:
    """Return the default of an option that has one, as it is typed; empty where it says nothing."""
    default = option.default
    if default is None or isinstance(default, bool) or default in ((), [], "", {}):
        return ""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def meant(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" if a known word is near, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def built(cls: Callable[..., T], stated: Mapping[str, Any]) -> T:
    """Make the options of a command from what was stated.

    Where the class has a `preset_values(stated)`, what it returns stands in for defaults: a preset's values, or what follows
    from other options. Choices are checked, one text is accepted where there may be several, and None states nothing.

    Raises:
        TypeError: an option is unknown, with the nearest known one, or a required one is missing.
        InputError: a value is not one of the choices, or the class refuses it.
    """
    assert isinstance(cls, type)
    known = {item.name: item for item in fields(cls)}
    for name in stated:
        if name not in known:
            raise TypeError(f"there is no option {name!r}{meant(name, known)}")
    stated = {name: value for name, value in stated.items() if value is not None}
    stated |= {
        option.name: _checked(option, stated[option.name]) for option in options_of(cls) if option.name in stated
    }
    values = {**_implied(cls, stated), **stated}
    lacking = [
        name for name, item in known.items()
        if item.default is MISSING and item.default_factory is MISSING and name not in values
    ]  # fmt: skip
    if lacking:
        raise TypeError(f"{lacking[0]} must be stated")
    made: T = cls(**values)
    return made


def _implied(cls: type, stated: Mapping[str, Any]) -> Mapping[str, Any]:
    preset: Callable[[Mapping[str, Any]], Mapping[str, Any]] = getattr(cls, "preset_values", lambda _stated: {})
    return preset(stated)


def _checked(option: Option, value: Any) -> Any:
    """Return a value that came from Python as one that was typed would be."""
    if option.many:
        typed = isinstance(value, (str, Path, list, tuple, Mapping, int, float))
        return option.convert(value) if typed else value  # an object that no command line can say
    entries = value if get_origin(option.kind) is tuple and isinstance(value, (tuple, list)) else [value]
    for entry in entries if option.choices else ():
        if entry not in option.choices:
            raise InputError(
                f"{option.name} must be {'of' if len(entries) != 1 else 'one of'} {', '.join(option.choices)}, got {entry!r}"
                f"{meant(str(entry), option.choices)}"
            )
    return tuple(value) if isinstance(value, list) else value


def read_config(path: Path, options: Iterable[Option]) -> dict[str, Any]:
    """Read a YAML file of options; names may have dashes, null states nothing, unknown keys are errors."""
    from arquant.base.plain_yaml import read_settings

    known = {option.name: option for option in options}
    found: dict[str, Any] = {}
    for key, value in read_settings(path).items():
        name = str(key).replace("-", "_")
        if name == "command" and name not in known:
            raise InputError(
                f"{path} is what `arquant {value}` recorded of its run, not a file of options; repeat that command to go on "
                "with the run, or write a file of the options that you want"
            )
        if name not in known:
            raise InputError(f"{path}: there is no option {key!r}{meant(name, known)}")
        if value is None:
            continue
        try:
            found[name] = known[name].convert(value)
        except argparse.ArgumentTypeError as error:
            raise InputError(f"{path}: {key}: {error}") from None
    return found


def words_for(options: object, *, without: Iterable[str] = ()) -> list[str]:
    """Return what to type so that a command gets these options; flags of defaults, and what others imply, are left out."""
    cls, left_out = type(options), set(without)
    values = {option: getattr(options, option.name) for option in options_of(cls) if option.name not in left_out}
    implied = _implied(cls, {option.name: value for option, value in values.items() if value != option.default})
    words: list[str] = []
    for option, value in values.items():
        if value is not None and (option.positional or value != implied.get(option.name, option.default)):
            words += option.words(value)
    return words
