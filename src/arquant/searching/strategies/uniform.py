"""Try the same bits everywhere, as controls: `uniform` every pair worth trying, `pact` and `pact-dorefa` one width."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from arquant.quantization.policy import Bits, Policy
from arquant.searching.strategy import NoOptions, Proposal, Strategy, register


@dataclass(frozen=True)
class Options:
    """Options of `uniform`."""

    all: bool = False
    """Try pairs to which a bit could be added, too."""


@register("uniform")
class Uniform(Strategy):
    """Proposes the uniform (w, a) pairs within the budget to which no bit can be added, most bits first, each once.

    After the last one it is finished, and `ask` repeats the pair with the highest reward.
    """

    defaults: ClassVar[Any] = Options()

    def _pairs(self) -> Sequence[Bits]:
        if not self.options.all:
            return self.space.uniform_pairs
        widths = range(self.space.max_bits, self.space.min_bits - 1, -1)
        pairs = (Bits(w, a) for w in widths for a in widths)
        return sorted(filter(self._fits, pairs), key=lambda pair: (-pair.w * pair.a, abs(pair.w - pair.a), -pair.a))

    def _fits(self, pair: Bits) -> bool:
        return self.space.budget.allows(self.space.uniform(pair))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policies = [self.space.uniform(pair) for pair in self._pairs()]
        self._rewards: dict[Policy, float] = {}

    def _propose(self) -> Policy:
        left = [policy for policy in self._policies if policy not in self._rewards]
        if not left:
            return max(self._policies, key=self._rewards.__getitem__)
        waiting = [proposal.policy for proposal in self._pending]
        return next((policy for policy in left if policy not in waiting), left[0])

    def _learn(self, proposal: Proposal, reward: float | None) -> None:
        if proposal.policy in self._policies:
            self._rewards[proposal.policy] = -np.inf if reward is None else reward

    @property
    def finished(self) -> bool:
        """True once every pair was told."""
        return len(self._rewards) == len(self._policies)


@register("pact")
class Pact(Uniform):
    """Proposes one width for everything, the largest that fits; with learned clips this is the paper's PACT.

    The paper fixes 3 or 4 bits beforehand; under a budget that lies between two widths this takes the lower one.
    """

    defaults = NoOptions()

    def _pairs(self) -> Sequence[Bits]:
        widths = range(self.space.max_bits, self.space.min_bits - 1, -1)
        return [next(Bits(b, b) for b in widths if self._fits(Bits(b, b)))]
