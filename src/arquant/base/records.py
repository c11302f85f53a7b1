"""Read plain JSON data into frozen dataclasses, and write them back.

Every value is checked against the type of its field, so that code never meets a value of another kind:

    @dataclass(frozen=True, kw_only=True)
    class End(TypedRecord):
        tag = "end"
        reason: str

A field without a default must be in the file. Keys that no field has are ignored: a later version may have written them.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from arquant.base.errors import ArquantError, FileFormatError
from arquant.base.json_numbers import finite

R = TypeVar("R", bound="TypedRecord")
_LONGEST = 80


@dataclass(frozen=True, kw_only=True)
class TypedRecord:
    """Plain data with names and types."""

    tag: ClassVar[str] = ""
    """The value of `kind` in the file; empty where the data have no kind."""

    def plain(self) -> dict[str, Any]:
        """Return the JSON object."""
        found: dict[str, Any] = {"kind": self.tag} if self.tag else {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None or not item.metadata.get("omit"):
                found[item.name] = item.metadata.get("write", _plain)(value) if value is not None else None
        return found


def omitted() -> Any:
    """Declare a field that is not written where it is None."""
    return field(default=None, metadata={"omit": True})


def conversion(read: Callable[[Any], Any], write: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the metadata of a field that is no record: `read` makes it of plain data, `write` gives plain data."""
    return {"read": read, "write": write}


def read_record(kind: type[R], data: Any, where: str) -> R:
    """Return the record that `data` states.

    Raises:
        FileFormatError: a field is missing or has a value of another type; the message names it after `where`.
    """
    if not isinstance(data, Mapping):
        raise FileFormatError(f"{where} must be an object, got {_short(data)}")
    values = {}
    for name, hint, needed, read in _layout(kind):  # type: ignore[arg-type]
        if name in data:
            values[name] = _value(hint, data[name], f"{where}, {name}", read)
        elif needed:
            raise FileFormatError(f"{where} has no {name}")
    return kind(**values)


@cache
def _layout(kind: type[TypedRecord]) -> list[tuple[str, Any, bool, Callable[[Any], Any] | None]]:
    """List name, type, "must be there" and reader of each field."""
    hints = get_type_hints(kind)
    return [
        (
            item.name,
            hints[item.name],
            item.default is MISSING and item.default_factory is MISSING,
            item.metadata.get("read"),
        )
        for item in fields(kind)
    ]


def _value(hint: Any, value: Any, where: str, read: Callable[[Any], Any] | None = None) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (inner,) = (each for each in arguments if each is not NoneType)
        return _value(inner, value, where, read)
    if read is not None:
        try:
            return read(value)
        except (ArquantError, TypeError, AttributeError, ValueError) as error:
            raise FileFormatError(f"{where} is damaged: {error}") from error
    if isinstance(hint, type) and issubclass(hint, TypedRecord):
        return read_record(hint, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], each, where) for each in value)
    if origin in (Mapping, dict) and isinstance(value, Mapping):
        return {str(key): _value(arguments[1], each, f"{where}, {key}") for key, each in value.items()}
    if hint is float and (number := finite(value)) is not None:
        return number
    if hint in (str, bool, int) and type(value) is hint:
        return value
    expected = getattr(hint, "__name__", str(hint)) if origin is None else {tuple: "list"}.get(origin, "object")
    raise FileFormatError(f"{where} must be of type {expected}, got {_short(value)}")


def _plain(value: Any) -> Any:
    if isinstance(value, TypedRecord):
        return value.plain()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
