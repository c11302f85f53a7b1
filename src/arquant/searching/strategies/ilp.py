"""Propose the policy of least damage under a budget, given the sensitivity of each layer.

Sensitivities come as a file (`sensitivity_table`), which `arquant sensitivity` writes.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from arquant.base.errors import FileFormatError, InputError
from arquant.base.json_numbers import finite
from arquant.searching.sensitivity_table import read_table_file
from arquant.searching.space import Space
from arquant.searching.strategies.importance import Importance
from arquant.searching.strategies.integer_program import least_damage
from arquant.searching.strategies.one_policy import OnePolicy
from arquant.searching.strategy import register


def read_sensitivities(path: str | Path, space: Space) -> Importance:
    """Read the sensitivities of the searched layers from a JSON file."""
    data = read_table_file(path)
    widths = range(space.min_bits, space.max_bits + 1)
    places = product(space.searched, ("w", "a"), widths)
    values = [_number(path, data.get("layers"), (name, kind, str(bits))) for name, kind, bits in places]
    table = np.array(values).reshape(len(space.searched), 2, len(widths))
    return Importance(table[:, 0], table[:, 1])


def _number(path: str | Path, table: Any, keys: tuple[str, ...]) -> float:
    value = table
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    number = finite(value)
    if number is None:
        raise FileFormatError(f"{path}: layer {keys[0]!r} needs a finite number for {keys[1]!r} at {keys[2]} bits")
    return number


@dataclass(frozen=True)
class Options:
    """Options of `ilp`."""

    table: str = ""
    """The file of sensitivities; required."""
    weight_factor: float = 1.0
    """Factor of the weights' sensitivities beside the activations'; LIMPQ takes 2 for ResNet-50."""


@register("ilp")
class Ilp(OnePolicy):
    """Proposes the one policy that a table of sensitivities makes best; then it is finished."""

    defaults = Options()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options: Options = self.options
        if not options.table:
            raise InputError("strategy 'ilp' needs the option 'table': a file with the sensitivity of each layer")
        found = read_sensitivities(options.table, self.space)
        self.policy = least_damage(self.space, found.damage(options.weight_factor))
