"""Model what widths cost by group of layers: few enough numbers that a handful of candidates determine them.

    reward = level - sum over groups g of  w_loss_g x mean of 4^-(w - min_bits)  +  a_loss_g x mean of 4^-(a - min_bits)

4^-bits is the power of rounding noise; the means are over the layers of a group, weighted by their multiply-accumulates.
Fitted on as many candidates of ResNet-20 as it has numbers, this ranks policies as well as scoring each of them does
(`docs/strategies.md`). With one fewer its optimum can be far off: a loss is then confounded with the level.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from arquant.quantization.policy import Policy
from arquant.searching.space import BitArray, Space
from arquant.searching.strategies.groups import group_layers

Vector = NDArray[np.float64]
RIDGE = 0.04
"""weight of the squared losses in the fit, both in standard deviations of the rewards"""
SMALLEST_LOSS = 0.02
"""what the data call harmless still does a little harm: this share of the mean loss"""
POOL = 1000
"""policies to choose the next experiment from"""


class Grouping:
    """The groups of a space, and the features that the model sees of a policy.

    Args:
        most: how many groups there may be.
    """

    def __init__(self, space: Space, most: int) -> None:
        self.space = space
        layers = [space.layers[name] for name in space.searched]
        self.label = group_layers(layers, most)
        self.count = int(self.label.max()) + 1
        work = np.array([layer.macs for layer in layers], dtype=np.float64)
        totals = np.bincount(self.label, work, self.count)
        self.shares: Vector = np.where(totals[self.label] > 0, work / np.maximum(totals[self.label], 1.0), 0.0)

    @property
    def parameters(self) -> int:
        """Count what the model has to determine: the losses, and the level."""
        return 2 * self.count + 1

    def features(self, bits: BitArray) -> Vector:
        """Return the mean noise power of the weights of each group, then of the activations; 1 at `min_bits`."""
        power = self.shares[:, None] * 4.0 ** -(bits - self.space.min_bits)
        return np.concatenate([np.bincount(self.label, power[:, side], self.count) for side in (0, 1)])

    def pool(self, rng: np.random.Generator) -> list[Policy]:
        """Draw policies within the budget that have the same widths throughout a group, from all cheapest to maximal ones."""
        low, high = self.space.min_bits, self.space.max_bits
        drawn = rng.integers(low, min(high, low + 4) + 1, (POOL, self.count, 2))
        order = np.argsort(rng.random((POOL, 2 * self.count)), axis=1)
        found = [self.space.policy(np.full((len(self.label), 2), low, dtype=np.int64))]
        found += [self.space.policy(self._lowered(*pair)[self.label]) for pair in zip(drawn, order, strict=True)]
        return list(dict.fromkeys(found))

    def _lowered(self, widths: BitArray, order: NDArray[np.int64]) -> BitArray:
        """Return the widths with one after the other, in this order, at its minimum until the budget allows them."""
        flat = widths.copy().reshape(-1)
        for place in order:
            if self.space.allows(flat.reshape(-1, 2)[self.label]):
                break
            flat[place] = self.space.min_bits
        return flat.reshape(-1, 2)


def least_certain(grouping: Grouping, pool: Sequence[Policy], known: Sequence[Policy]) -> Policy:
    """Return the policy of the pool about whose reward the model, told of the `known` ones, would be the least certain.

    Taken one after the other these are a greedy D-optimal design: it needs no rewards.
    """
    design = _design(grouping, pool)
    seen = _design(grouping, known) if known else np.zeros((0, design.shape[1]))
    precision = seen.T @ seen + RIDGE * np.eye(design.shape[1])
    variance = np.einsum("ij,ij->i", design, np.linalg.solve(precision, design.T).T)
    # rounded, so that the last digits of a sum, which may depend on the processor, decide nothing
    return pool[int(np.argmax(np.round(variance, 6)))]


def _design(grouping: Grouping, policies: Sequence[Policy]) -> NDArray[np.float64]:
    rows = [grouping.features(grouping.space.bits(policy)) for policy in policies]
    return np.concatenate([np.ones((len(rows), 1)), np.stack(rows)], axis=1)


class GroupedModel:
    """The fitted losses of a grouping; without a result all losses are taken to be equal."""

    def __init__(self, grouping: Grouping, results: Sequence[tuple[BitArray, float]]) -> None:
        self.grouping = grouping
        self.losses: Vector = np.ones(2 * grouping.count)
        self._level = 0.0
        if results:
            self._fit(np.stack([grouping.features(bits) for bits, _ in results]), np.array([r for _, r in results]))

    def _fit(self, features: NDArray[np.float64], rewards: Vector) -> None:
        centre, unit = features.mean(axis=0), float(rewards.std()) or 1.0
        rows = np.concatenate([centre - features, np.sqrt(RIDGE) * np.eye(features.shape[1])])
        targets = np.concatenate([(rewards - rewards.mean()) / unit, np.zeros(features.shape[1])])
        fitted = nnls(rows, targets)[0]
        if fitted.any():
            self.losses = unit * np.round(np.maximum(fitted, SMALLEST_LOSS * fitted.mean()), 6)
        self._level = float(rewards.mean() + centre @ self.losses)

    def predict(self, bits: BitArray) -> float:
        """Return the expected reward of a policy with these bits in the searched layers."""
        return self._level - float(self.grouping.features(bits) @ self.losses)

    def best_policy(self, weights: float = 1.0) -> Policy:
        """Return the policy within the budget that loses least, layer by layer, as nearly as a greedy descent finds it.

        Args:
            weights: factor of the weights' losses. A long fine-tuning mends more of what few bits do to weights than of
                what they do to activations.
        """
        grouping = self.grouping
        by_group = self.losses.reshape(2, -1).T * (weights, 1.0)
        return grouping.space.least_damaged(grouping.shares[:, None] * by_group[grouping.label])
