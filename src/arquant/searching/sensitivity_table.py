"""The file of sensitivities: how much each layer loses at each width. No torch.

Our own measurement writes it, and so may an indicator or Hessian method; only `layers` is needed:

    {"schema": "arquant.sensitivity", "version": 1,
     "layers": {"layer1.0.conv1": {"w": {"2": 0.31, "3": 0.08, ...}, "a": {"2": 0.52, "3": 0.11, ...}}}}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arquant.base.errors import FileFormatError
from arquant.base.files import envelope, read_json, write_json
from arquant.base.json_numbers import finite
from arquant.quantization.policy import MAX_BITS, MIN_BITS

SCHEMA, VERSION = "arquant.sensitivity", 1
FILE = "sensitivity.json"
_Z95 = 1.96
KINDS = {"w": "weights", "a": "activations"}

Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""by layer in order of execution, `w` or `a`, and width"""


@dataclass(frozen=True, eq=False)
class SensitivityTable:
    """What each layer loses when only its weights, or only its input, have fewer bits.

    Attributes:
        values: in units of the score, or of whatever method wrote the file; larger is worse.
        errors: standard errors of `values`, where they are known.
        facts: how the table was measured: score, widths of the other layers, images, votes, model.
    """

    values: Values
    errors: Values = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def widths(self) -> tuple[int, ...]:
        """Return all widths that occur, smallest first."""
        return tuple(sorted({bits for layer in self.values.values() for row in layer.values() for bits in row}))

    def margin(self, layer: str, kind: str, bits: int) -> float:
        """Return half the width of an approximate 95 % interval; 0 where no error is known."""
        return _Z95 * self.errors.get(layer, {}).get(kind, {}).get(bits, 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        tables = {"layers": self.values, "standard_errors": self.errors}
        return envelope(SCHEMA, VERSION, {**self.facts, **{name: _text(each) for name, each in tables.items()}})

    def save(self, path: Path) -> None:
        """Write the file in one move."""
        write_json(path, {**self.to_json(), "order": list(self.values)})

    @classmethod
    def load(cls, path: str | Path) -> "SensitivityTable":
        """Read a file; FileFormatError if it is damaged."""
        data = read_table_file(path)
        order = data.get("order")
        values = _values(path, data.get("layers"))
        if isinstance(order, list) and set(map(str, order)) == set(values):
            values = {str(name): values[str(name)] for name in order}
        known = ("layers", "standard_errors", "order")
        facts = {name: value for name, value in data.items() if name not in known}
        return cls(values, _values(path, data.get("standard_errors", {})), facts)


def read_table_file(path: str | Path) -> dict[str, Any]:
    """Read a file of sensitivities, of which only the schema is checked."""
    return read_json(path, SCHEMA, VERSION)


def _text(values: Values) -> dict[str, Any]:
    return {
        layer: {kind: {str(bits): value for bits, value in row.items()} for kind, row in kinds.items()}
        for layer, kinds in values.items()
    }


def _values(path: str | Path, layers: Any) -> dict[str, dict[str, dict[int, float]]]:
    if not isinstance(layers, dict):
        raise FileFormatError(f"{path}: sensitivities need layers by name, got {type(layers).__name__}")
    return {str(name): _layer(path, name, kinds) for name, kinds in layers.items()}


def _layer(path: str | Path, name: str, kinds: Any) -> dict[str, dict[int, float]]:
    if not isinstance(kinds, dict):
        raise FileFormatError(f"{path}: layer {name!r} needs numbers for 'w' and 'a'")
    found: dict[str, dict[int, float]] = {}
    for kind in KINDS:
        row = kinds.get(kind, {})
        for bits, value in row.items() if isinstance(row, dict) else [("", None)]:
            number = finite(value)
            if number is None:
                raise FileFormatError(f"{path}: layer {name!r} needs a finite number for {kind!r} at each width")
            if not bits.isdecimal() or not MIN_BITS <= int(bits) <= MAX_BITS:
                raise FileFormatError(
                    f"{path}: layer {name!r} has {bits!r} bits for {kind!r}; widths are 1 to {MAX_BITS}"
                )
            found.setdefault(kind, {})[int(bits)] = number
    return found
