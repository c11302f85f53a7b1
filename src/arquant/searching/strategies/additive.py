"""Learn what each width costs in reward from whole evaluations, then solve for the best policy. This one is ours.

Single-layer sensitivities measured without fine-tuning rank policies wrongly. Here they are estimated from the rewards of
complete, fine-tuned candidates instead, by Bayesian regression on a model of quantization error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import InputError
from arquant.quantization.policy import Policy
from arquant.searching.space import BitArray, Space
from arquant.searching.strategies.history import Remembering
from arquant.searching.strategies.random_search import random_policy
from arquant.searching.strategy import register

Vector = NDArray[np.float64]

TOTALS = tuple(float(10**exponent) for exponent in np.linspace(-1.5, 1.5, 7))
"""Candidates for the prior total loss at `min_bits`, in standard deviations of the rewards."""
RATIOS = (0.25, 1.0, 4.0)
"""Candidates for how much more the activations lose than the weights, a priori."""
NOISES = (0.1, 0.2, 0.35, 0.6, 0.9)
"""Candidates for the noise of a reward, in standard deviations of the rewards."""
SMALLEST_LOSS = 0.02
"""Where the data say that bits do no good at all, they still do a little."""
DRAWS = 8
"""How often losses are drawn to find a policy that was not tried yet."""


class AdditiveModel:
    """reward = constant - sum over widths j of loss_j x 4^-(bits_j - min_bits) + noise.

    4^-bits is the power of rounding noise, so loss_j is what width j costs at `min_bits`. A priori the losses of the
    weights (and of the activations) share an unknown mean and scatter around it as widely; the scale of both and of the
    noise are those of the highest marginal likelihood on a grid.
    """

    def __init__(self, space: Space, results: list[tuple[BitArray, float]]) -> None:
        self._space = space
        rewards = np.array([reward for _, reward in results])
        self._centre, self._unit = float(rewards.mean()), float(rewards.std()) or 1.0
        errors = np.stack([self._errors(bits) for bits, _ in results])
        design = np.concatenate([np.ones((len(errors), 1)), -errors], axis=1)
        y = (rewards - self._centre) / self._unit
        fits = (
            _posterior(design, y, self._prior(*scales), noise) for *scales, noise in product(TOTALS, RATIOS, NOISES)
        )
        _, self._mean, self._factor = max(fits, key=lambda fit: fit[0])

    def _errors(self, bits: BitArray) -> Vector:
        """Return 4^-(bits - min_bits): first all weights, then all activations."""
        return np.asarray(4.0 ** -(bits.T.ravel() - self._space.min_bits), dtype=np.float64)

    def _prior(self, total: float, ratio: float) -> tuple[Vector, NDArray[np.float64]]:
        n = len(self._space.searched)
        means = np.array([total / (1 + ratio), total * ratio / (1 + ratio)]) / n
        mean = np.concatenate([[0.0], np.repeat(means, n)])
        covariance = np.zeros((2 * n + 1, 2 * n + 1))
        covariance[0, 0] = 100.0
        for kind, scale in enumerate(means):
            part = slice(1 + kind * n, 1 + (kind + 1) * n)
            covariance[part, part] = scale**2 * (np.ones((n, n)) + np.eye(n))
        return mean, covariance

    def predict(self, bits: BitArray) -> float:
        """Return the expected reward of a policy with these bits in the searched layers."""
        return self._centre + self._unit * float(self._mean[0] - self._errors(bits) @ self._mean[1:])

    def losses(self, explore: float, rng: np.random.Generator) -> Vector:
        """Draw losses of the weights, then of the activations, relative to their mean; each at least `SMALLEST_LOSS`.

        They are the posterior mean plus `explore` times a draw of the deviation from it.
        """
        drawn = self._mean + explore * self._factor @ rng.standard_normal(len(self._mean))
        unit = max(float(drawn[1:].mean()), 1e-6)
        # Rounded, so that the last digits of a sum, which may depend on the number of threads, decide nothing.
        return np.maximum(np.round(drawn[1:] / unit, 6), SMALLEST_LOSS)

    def best_policy(self, losses: Vector) -> Policy:
        """Return the policy within the budget that loses least."""
        return self._space.least_damaged(losses.reshape(2, -1).T)


def _posterior(
    design: NDArray[np.float64], y: Vector, prior: tuple[Vector, NDArray[np.float64]], noise: float
) -> tuple[float, Vector, NDArray[np.float64]]:
    """Return log evidence, posterior mean and a factor F of the posterior covariance F F^T of a Bayesian linear model."""
    mean, covariance = prior
    root = np.linalg.cholesky(covariance)
    scaled = design @ root / noise
    residual = (y - design @ mean) / noise
    precision = np.eye(len(mean)) + scaled.T @ scaled
    lower = np.linalg.cholesky(precision)
    whitened = np.linalg.solve(lower, scaled.T @ residual)
    evidence = (
        -0.5 * (residual @ residual - whitened @ whitened) - np.log(np.diag(lower)).sum() - len(y) * np.log(noise)
    )
    factor = np.asarray(root @ np.linalg.solve(lower.T, np.eye(len(mean))), dtype=np.float64)
    return float(evidence), mean + factor @ whitened, factor


@dataclass(frozen=True)
class Options:
    """Options of `additive`."""

    explore: float = 0.5
    """How far the losses stray from their posterior mean: 1 is Thompson sampling, 0 no exploration."""

    def __post_init__(self) -> None:
        if self.explore < 0:
            raise InputError(f"option 'explore' must not be negative, got {self.explore}")


@register("additive")
class Additive(Remembering):
    """Begins with the uniform pairs; then proposes what would be best if losses drawn from the posterior were true."""

    defaults = Options()

    def _propose(self) -> Policy:
        if (seed := self._untried_uniform()) is not None:
            return seed
        results = list(self._history)
        if not results:
            return random_policy(self.space, self.rng)
        return propose(AdditiveModel(self.space, results), self._tried, self.options.explore, self.rng)


def propose(model: AdditiveModel, tried: Callable[[Policy], bool], explore: float, rng: np.random.Generator) -> Policy:
    """Return the best policy under losses drawn from the model; draw again, ever wider, while it is one already tried."""
    for attempt in range(DRAWS):
        policy = model.best_policy(model.losses(explore * 1.5**attempt, rng))
        if not tried(policy):
            break
    return policy
