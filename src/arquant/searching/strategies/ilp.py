"""Solve for the policy of least damage under a budget, given the sensitivity of each layer: an integer linear program.

Sensitivities come as a file (`sensitivity_table`), which `arquant sensitivity` writes.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from arquant.base.errors import FileFormatError, InputError
from arquant.base.json_numbers import finite
from arquant.quantization.policy import Policy
from arquant.searching.sensitivity_table import read_table_file
from arquant.searching.space import BitArray, Space
from arquant.searching.strategies.history import Remembering
from arquant.searching.strategy import register

GAP = 1e-6
"""Relative gap at which the solver may stop."""
TOLERANCE = 1e-6
"""Relative amount by which the solver may overstep a limit without noticing."""


def least_damage(space: Space, damage: NDArray[np.float64]) -> Policy:
    """Return the policy within the budget with the least total damage, up to a relative gap of 1e-6.

    `damage[layer, w - min_bits, a - min_bits]` says how bad these bits are for a searched layer, in any unit. One pair
    of widths is chosen per layer, subject to all limits together. Where costs differ so much between layers that the
    solver oversteps a limit without noticing, and finds nothing below it, its answer is cut to the budget.
    """
    count = space.max_bits - space.min_bits + 1
    shape = (len(space.searched), count, count)
    if damage.shape != shape or not np.isfinite(damage).all():
        raise InputError(f"damage must be finite and of shape {shape}, got shape {damage.shape}")
    found = [bits for margin in (0.0, 2 * TOLERANCE) if (bits := _solve(space, damage, margin)) is not None]
    if not found:
        raise InputError(f"the solver found no policy within {space.budget.text!r}")
    within = next((bits for bits in found if space.allows(bits)), None)
    return space.fit(found[0]) if within is None else space.policy(within)


def _solve(space: Space, damage: NDArray[np.float64], margin: float) -> BitArray | None:
    layers, count, _ = damage.shape
    low, size = space.min_bits, damage.size
    layer_of = np.repeat(np.arange(layers), count * count)
    one_pair_each = coo_array((np.ones(size), (layer_of, np.arange(size)))).tocsr()
    costs = space.costs[:, :, low - 1 : space.max_bits, low - 1 : space.max_bits].reshape(-1, size)
    scale = np.abs(space.free_amounts)[:, None]
    within = LinearConstraint(costs / scale, -np.inf, np.sign(space.free_amounts) - margin)
    found = milp(
        damage.ravel() / (float(np.abs(damage).max()) or 1.0),
        integrality=np.ones(size, dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(one_pair_each, 1, 1), within],
        options={"mip_rel_gap": GAP, "presolve": False},  # its presolve at times prints a debug line to stdout
    )
    if found.x is None:
        return None
    pair = found.x.reshape(layers, count * count).argmax(axis=1)
    return np.stack(np.divmod(pair, count), axis=1).astype(np.int64) + low


def read_sensitivities(path: str | Path, space: Space) -> NDArray[np.float64]:
    """Read the sensitivities [layer, 0 for `w` or 1 for `a`, bits - min_bits] of the searched layers from a JSON file."""
    data = read_table_file(path)
    widths = range(space.min_bits, space.max_bits + 1)
    places = product(space.searched, ("w", "a"), widths)
    values = [_number(path, data.get("layers"), (name, kind, str(bits))) for name, kind, bits in places]
    return np.array(values).reshape(len(space.searched), 2, len(widths))


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
class Ilp(Remembering):
    """Proposes the one policy that a table of sensitivities makes best; then it is finished."""

    defaults = Options()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options: Options = self.options
        if not options.table:
            raise InputError("strategy 'ilp' needs the option 'table': a file with the sensitivity of each layer")
        weights, activations = np.moveaxis(read_sensitivities(options.table, self.space), 1, 0)
        damage = options.weight_factor * weights[:, :, None] + activations[:, None, :]
        self._policy = least_damage(self.space, damage)

    def _propose(self) -> Policy:
        return self._policy

    @property
    def finished(self) -> bool:
        """True once the policy was told."""
        return self._policy in self._history
