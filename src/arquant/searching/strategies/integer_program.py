"""Solve for the policy of least damage under a budget: one pair of widths per layer, an integer linear program."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, vstack

from arquant.base.errors import InputError
from arquant.quantization.policy import Policy
from arquant.searching.space import BitArray, Space

GAP = 1e-6
"""Relative gap at which the solver may stop."""
TOLERANCE = 1e-6
"""Relative amount by which the solver may overstep a limit without noticing."""
Ties = Sequence[Sequence[int]]
"""Groups of searched layers, by place, that get the same widths."""


def least_damage(space: Space, damage: NDArray[np.float64], ties: Ties = ()) -> Policy:
    """Return the policy within the budget with the least total damage, up to a relative gap of 1e-6.

    `damage[layer, w - min_bits, a - min_bits]` says how bad these bits are for a searched layer, in any unit; infinity
    forbids them, but never those of `min_bits`. All limits hold together. Where costs differ so much between layers that
    the solver oversteps a limit without noticing, and finds nothing below it, its answer is cut to the budget.
    """
    count = space.max_bits - space.min_bits + 1
    shape = (len(space.searched), count, count)
    if damage.shape != shape or not (damage > -np.inf).all() or not np.isfinite(damage[:, 0, 0]).all():
        raise InputError(f"damage must be finite and of shape {shape}, got shape {damage.shape}")
    found = [bits for margin in (0.0, 2 * TOLERANCE) if (bits := _solve(space, damage, ties, margin)) is not None]
    if not found:
        raise InputError(f"the solver found no policy within {space.budget.text!r}")
    within = next((bits for bits in found if space.allows(bits)), None)
    if within is None and not ties and np.isfinite(damage).all():
        return space.fit(found[0])
    return space.policy(_lowered(space, found[0], ties) if within is None else within)


def _solve(space: Space, damage: NDArray[np.float64], ties: Ties, margin: float) -> BitArray | None:
    layers, count, _ = damage.shape
    low, size, pairs = space.min_bits, damage.size, count * count
    layer_of = np.repeat(np.arange(layers), pairs)
    one_pair_each = coo_array((np.ones(size), (layer_of, np.arange(size))))
    equal = [_equal(group[0], other, pairs, size) for group in ties for other in group[1:]]
    sums = np.concatenate([np.ones(layers), np.zeros(pairs * len(equal))])
    costs = space.costs[:, :, low - 1 : space.max_bits, low - 1 : space.max_bits].reshape(-1, size)
    scale = np.abs(space.free_amounts)[:, None]
    within = LinearConstraint(costs / scale, -np.inf, np.sign(space.free_amounts) - margin)
    allowed = np.isfinite(damage).ravel()
    harm = np.where(allowed, damage.ravel(), 0.0)
    found = milp(
        harm / (float(np.abs(harm).max()) or 1.0),
        integrality=np.ones(size, dtype=np.int64),
        bounds=Bounds(0, allowed.astype(np.float64)),
        constraints=[LinearConstraint(vstack([one_pair_each, *equal]).tocsr(), sums, sums), within],
        options={"mip_rel_gap": GAP, "presolve": False},  # its presolve at times prints a debug line to stdout
    )
    if found.x is None:
        return None
    pair = found.x.reshape(layers, pairs).argmax(axis=1)
    return np.stack(np.divmod(pair, count), axis=1).astype(np.int64) + low


def _equal(first: int, other: int, pairs: int, size: int) -> coo_array:
    """Return rows that are 0 where two layers have the same pair of widths."""
    rows, ones = np.arange(pairs), np.ones(pairs)
    places = np.concatenate([first * pairs + rows, other * pairs + rows])
    return coo_array((np.concatenate([ones, -ones]), (np.concatenate([rows, rows]), places)), shape=(pairs, size))


def _lowered(space: Space, bits: BitArray, ties: Ties) -> BitArray:
    """Give layers, or groups of tied ones, `min_bits` from the last to the first until the budget holds."""
    group_of = {place: tuple(group) for group in ties for place in group}
    lowered = bits.copy()
    for place in reversed(range(len(bits))):
        if space.allows(lowered):
            break
        lowered[list(group_of.get(place, (place,)))] = space.min_bits
    return lowered
