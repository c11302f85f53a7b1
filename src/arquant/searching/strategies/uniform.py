"""Controls with the same bits everywhere: `uniform` tries every pair worth trying, `pact` one width."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arquant.quantization.policy import Bits, Policy
from arquant.searching.strategy import Arrays, State, Strategy, register


@register("uniform")
class Uniform(Strategy):
    """The uniform (w, a) pairs within the budget to which no bit can be added, most bits first, each once.

    After the last one it is finished, and `ask` repeats the pair with the highest reward.
    """

    def _pairs(self) -> Sequence[Bits]:
        return self.space.uniform_pairs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policies = [self.space.uniform(pair) for pair in self._pairs()]
        self._rewards: dict[Policy, float] = {}

    def _propose(self) -> Policy:
        left = [policy for policy in self._policies if policy not in self._rewards]
        return left[0] if left else max(self._policies, key=self._rewards.__getitem__)

    def _learn(self, policy: Policy, reward: float | None) -> None:
        if policy in self._policies:
            self._rewards[policy] = -np.inf if reward is None else reward

    @property
    def finished(self) -> bool:
        """Whether every pair was told."""
        return len(self._rewards) == len(self._policies)

    def _save(self) -> State:
        return {}, {"rewards": np.array([self._rewards.get(policy, np.nan) for policy in self._policies])}

    def _load(self, data: dict[str, Any], arrays: Arrays) -> None:
        pairs = zip(self._policies, arrays["rewards"].tolist(), strict=True)
        self._rewards = {policy: reward for policy, reward in pairs if not np.isnan(reward)}


@register("pact")
class Pact(Uniform):
    """PACT as the paper compares with it: one width for everything, the largest that fits, with learned clips.

    The paper fixes 3 or 4 bits beforehand; under a budget that lies between two widths this takes the lower one.
    """

    quantizer = "pact"

    def _pairs(self) -> Sequence[Bits]:
        widths = range(self.space.max_bits, self.space.min_bits - 1, -1)
        return [next(Bits(b, b) for b in widths if self.space.budget.allows(self.space.uniform(b)))]
