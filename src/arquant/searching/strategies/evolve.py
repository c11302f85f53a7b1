"""Search by regularised evolution, as a control.

The oldest member dies, not the worst, so that a lucky score does not live for ever.
"""

from dataclasses import dataclass

import numpy as np

from arquant.base.errors import InputError
from arquant.quantization.policy import Policy
from arquant.searching.space import BitArray
from arquant.searching.strategies.history import Remembering
from arquant.searching.strategies.random_search import TRIES, random_policy
from arquant.searching.strategy import register


@dataclass(frozen=True)
class Options:
    """Options of `evolve`."""

    population: int = 20
    """How many of the latest policies may become parents."""
    tournament: int = 5
    """How many of them are drawn, the best of which becomes a parent."""
    crossover: float = 0.3
    """Probability that a child has two parents: each layer's bits come from either."""
    mutations: float = 2.0
    """Mean number of widths that a child changes by one bit, beside what the budget then takes or gives; at least 1."""

    def __post_init__(self) -> None:
        if not 1 <= self.tournament <= self.population:
            raise InputError(f"evolve needs 1 <= tournament <= population, got {self}")
        if not 0 <= self.crossover <= 1 or self.mutations < 1:
            raise InputError(f"evolve needs crossover within [0, 1] and mutations >= 1, got {self}")


@register("evolve")
class Evolve(Remembering):
    """Starts from the uniform pairs and breeds from the latest policies.

    A child is crossed, mutated and fitted to the budget (`Space.fit`), so that a bit added in one place is paid for in
    another. Failed policies are not proposed again and never become parents.
    """

    defaults = Options()

    def _propose(self) -> Policy:
        if (seed := self._untried_uniform()) is not None:
            return seed
        population = list(self._history)[-self.options.population :]
        for _ in range(TRIES):
            policy = self._child(population) if population else random_policy(self.space, self.rng)
            if not self._tried(policy):
                break
        return policy

    def _child(self, population: list[tuple[BitArray, float]]) -> Policy:
        bits = self._crossed(population)
        # The jitter, below half a bit, decides at random which of the equal widths pays for a mutation.
        wishes = bits + self.rng.uniform(-0.4, 0.4, bits.shape)
        count = min(1 + self.rng.poisson(self.options.mutations - 1), bits.size)
        where = self.rng.choice(bits.size, count, replace=False)
        wishes.ravel()[where] += self.rng.choice([-1.0, 1.0], count)
        return self.space.fit(wishes)

    def _crossed(self, population: list[tuple[BitArray, float]]) -> BitArray:
        bits = self._parent(population)
        if self.rng.random() >= self.options.crossover:
            return bits
        return np.where(self.rng.random((len(bits), 1)) < 0.5, bits, self._parent(population))

    def _parent(self, population: list[tuple[BitArray, float]]) -> BitArray:
        drawn: list[int] = self.rng.integers(len(population), size=self.options.tournament).tolist()
        bits, _ = max((population[i] for i in drawn), key=lambda member: member[1])
        return bits
