"""Define what a search may choose from: the layers, the bits that are fixed, the range of the others, and the budget."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import InputError
from arquant.models.tracing.layer import Layer, Layers
from arquant.quantization.budget import Budget
from arquant.quantization.policy import MAX_BITS, Bits, BitsLike, Policy

BitArray = NDArray[np.int64]
"""Bits of the searched layers, shape (layers, 2): column 0 is `w`, column 1 is `a`."""


@dataclass(frozen=True)
class Space:
    """The policies that a strategy may propose.

    Each of them keeps the layers that the budget fixes (first, last, kept ones) at their bits, gives all others
    `budget.min_bits` to `max_bits`, and is within the budget.
    """

    budget: Budget
    max_bits: int = MAX_BITS

    def __post_init__(self) -> None:
        if not self.min_bits <= self.max_bits <= MAX_BITS:
            raise InputError(f"max_bits must be from min_bits={self.min_bits} to {MAX_BITS}, got {self.max_bits}")
        if not self.searched:
            raise InputError(f"nothing to search: all {len(self.layers)} layers have fixed bits; keep fewer of them")

    @property
    def layers(self) -> Layers:
        """All layers of the network in execution order."""
        return self.budget.layers

    @property
    def fixed(self) -> Mapping[str, Bits]:
        """The bits of the layers that are not searched."""
        return self.budget.fixed

    @property
    def min_bits(self) -> int:
        """The smallest width of a searched layer."""
        return self.budget.min_bits

    @cached_property
    def searched(self) -> tuple[str, ...]:
        """Names of the layers whose bits are chosen, in execution order."""
        return tuple(name for name in self.layers.names if name not in self.fixed)

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """Shares of the searched layers in each limit: [limit, layer, w - 1, a - 1]."""
        costs: NDArray[np.float64] = self.budget.costs[:, [name in self.searched for name in self.layers.names]]
        return costs

    @cached_property
    def free_amounts(self) -> NDArray[np.float64]:
        """The amount of each limit that is left for the searched layers."""
        spent = np.zeros(len(self.budget.amounts))
        for place, name in enumerate(self.layers.names):
            if name in self.fixed:
                spent += self.budget.costs[:, place, self.fixed[name].w - 1, self.fixed[name].a - 1]
        return self.budget.amounts - spent

    def policy(self, bits: BitArray) -> Policy:
        """Return the policy with these bits in the searched layers, all layers named in execution order."""
        chosen = {name: Bits(int(w), int(a)) for name, (w, a) in zip(self.searched, bits, strict=True)}
        return Policy({name: self.fixed.get(name) or chosen[name] for name in self.layers.names})

    def bits(self, policy: Policy) -> BitArray:
        """Return the bits of the searched layers in `policy`."""
        return np.array([(policy[name].w, policy[name].a) for name in self.searched], dtype=np.int64)

    def allows(self, bits: BitArray) -> bool:
        """Return True if a policy with these bits in the searched layers is within the budget."""
        shares = self.costs[:, np.arange(len(bits)), bits[:, 0] - 1, bits[:, 1] - 1]
        return bool((shares.sum(axis=1) <= self.free_amounts + 1e-13 * np.abs(self.budget.amounts)).all())

    def contains(self, policy: Policy) -> bool:
        """Return True if `policy` names these layers, keeps the fixed bits, and is within the range and the budget."""
        if set(policy) != set(self.layers.names) or any(policy[name] != bits for name, bits in self.fixed.items()):
            return False
        bits = self.bits(policy)
        return bool((bits >= self.min_bits).all() and (bits <= self.max_bits).all()) and self.budget.allows(policy)

    def uniform(self, bits: BitsLike) -> Policy:
        """Return the policy with the same bits in all searched layers; it need not fit the budget."""
        pair = Bits.parse(bits)
        return self.policy(np.array([(pair.w, pair.a)] * len(self.searched), dtype=np.int64))

    def is_uniform(self, policy: Policy) -> bool:
        """Return True if all searched layers have the same widths."""
        return len({policy[name] for name in self.searched}) == 1

    @cached_property
    def uniform_pairs(self) -> tuple[Bits, ...]:
        """The uniform (w, a) pairs within the budget to which no bit can be added, most bits first.

        Sorted by w x a, then by how balanced they are, then by `a`: after fine-tuning, activations suffer more.
        """
        widths = range(self.min_bits, self.max_bits + 1)
        fitting = {(w, a) for w in widths for a in widths if self.budget.allows(self.uniform(Bits(w, a)))}
        maximal = [(w, a) for w, a in fitting if not {(w + 1, a), (w, a + 1)} & fitting]
        return tuple(Bits(w, a) for w, a in sorted(maximal, key=lambda p: (-p[0] * p[1], abs(p[0] - p[1]), -p[1])))

    def least_damaged(self, losses: NDArray[np.float64]) -> Policy:
        """Return the policy within the budget that loses least, as nearly as `Budget.project_greedy` finds it.

        Args:
            losses: (layers, 2): what the rounding noise of weights and of activations costs in each searched layer; a layer
                of bits (w, a) loses `losses[layer] @ (4^-w, 4^-a)`, others nothing.
        """
        share = dict(zip(self.searched, losses, strict=True))

        def damage(layer: Layer, bits: Bits) -> float:
            w, a = share.get(layer.name, (0.0, 0.0))
            return float(w * 4.0**-bits.w + a * 4.0**-bits.a)

        return self.fit(self.bits(self.budget.project_greedy(self.uniform(self.max_bits), damage)))

    def fit(self, wishes: NDArray[np.floating] | BitArray) -> Policy:
        """Return the policy that follows `wishes`, real-valued bits of shape (layers, 2), as far as the budget goes.

        Every width starts at `min_bits`; bits are then granted one at a time, first where a width lags its wish the
        most, ties in execution order, skipping what the budget refuses. The result is within the budget and maximal:
        no single bit can be added to it. Only the differences between wishes matter, not their level.
        """
        low = self.min_bits
        lags = [(low + step - wish, i) for i, wish in enumerate(wishes.ravel()) for step in range(self.max_bits - low)]
        order = [i for _, i in sorted(lags)]

        def granted(count: int) -> BitArray:
            return (low + np.bincount(order[:count], minlength=wishes.size)).astype(np.int64).reshape(-1, 2)

        fits, fails = 0, len(order) + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if self.allows(granted(middle)) else (fits, middle)
        bits = granted(fits)
        refused: set[int] = set()
        for i in order[fits:]:
            if i not in refused:
                bits.ravel()[i] += 1
                if not self.allows(bits):
                    bits.ravel()[i] -= 1
                    refused.add(i)
        return self.policy(bits)
