"""The policy of least damage within a budget, when every layer's damage is known: an integer program."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from arquant.errors import InputError
from arquant.policy import Policy
from arquant.space import Space

GAP = 1e-4
"""Relative optimality gap: far below what any estimate of damage is worth, and it spares the solver its last minutes."""


def least_damage(space: Space, damage: NDArray[np.float64]) -> Policy:
    """The policy within the budget with the least total damage, up to a relative gap of 1e-4.

    `damage[layer, w - min_bits, a - min_bits]` says how bad these bits are for a searched layer, in any unit. One pair
    of widths is chosen per layer, subject to all limits together. Bits that the budget leaves over are then granted, so
    that no single bit can be added.
    """
    low, count = space.min_bits, space.max_bits - space.min_bits + 1
    layers, pairs = len(space.searched), count * count
    if damage.shape != (layers, count, count) or not np.isfinite(damage).all():
        raise InputError(f"damage must be finite, of shape {(layers, count, count)}; got shape {damage.shape}")
    costs = space.costs[:, :, low - 1 : space.max_bits, low - 1 : space.max_bits].reshape(len(space.costs), -1)
    scale = np.abs(space.budget.amounts)
    one_each = csr_array((np.ones(layers * pairs), np.arange(layers * pairs), np.arange(layers + 1) * pairs))
    spread = float(np.ptp(damage)) or 1.0
    solution = milp(
        damage.ravel() / spread,
        integrality=np.ones(layers * pairs),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(costs / scale[:, None], -np.inf, space.free_amounts / scale),
        ],
        options={"mip_rel_gap": GAP},
    )
    if solution.x is None:
        raise InputError(f"no policy found within {space.budget.text!r}: {solution.message}")
    chosen = solution.x.reshape(layers, pairs).argmax(axis=1)
    bits = np.stack(np.divmod(chosen, count), axis=1) + low
    return space.fit(bits)
