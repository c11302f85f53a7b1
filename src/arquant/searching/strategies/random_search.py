"""Draw random policies that use the budget up, as a control."""

import numpy as np

from arquant.quantization.policy import Policy
from arquant.searching.space import Space
from arquant.searching.strategies.history import Remembering
from arquant.searching.strategy import register

TRIES = 20
"""How often a proposal is drawn anew because it was seen before; then it is repeated."""


@register("random")
class RandomSearch(Remembering):
    """Independent random policies, each close under the budget, none twice as long as new ones are found."""

    def _propose(self) -> Policy:
        for _ in range(TRIES):
            policy = random_policy(self.space, self.rng)
            if not self._tried(policy):
                break
        return policy


def random_policy(space: Space, rng: np.random.Generator) -> Policy:
    """Return a random policy within the budget to which no single bit can be added.

    Every width is drawn evenly from the range; then, while the budget is exceeded, a width chosen at random is lowered
    by one; then widths chosen at random are raised by one as long as the budget allows it.
    """

    def allowed() -> bool:
        return space.allows(bits.reshape(-1, 2))

    bits = rng.integers(space.min_bits, space.max_bits + 1, 2 * len(space.searched))
    while not allowed():
        bits[rng.choice(np.flatnonzero(bits > space.min_bits))] -= 1
    raisable = np.flatnonzero(bits < space.max_bits)
    while raisable.size:
        i = rng.choice(raisable)
        bits[i] += 1
        refused = not allowed()
        bits[i] -= refused
        if refused or bits[i] == space.max_bits:
            raisable = raisable[raisable != i]
    return space.policy(bits.reshape(-1, 2))
