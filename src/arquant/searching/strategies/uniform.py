"""Try the same bits everywhere, as controls: `uniform` every pair worth trying, `pact` and `pact-dorefa` one width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arquant.quantization.policy import Bits, Policy
from arquant.searching.context import SearchContext
from arquant.searching.space import Space
from arquant.searching.strategies.arq import longer_looks
from arquant.searching.strategies.one_policy import OnePolicy
from arquant.searching.strategy import Proposal, Strategy, parse_options, register


@dataclass(frozen=True)
class Options:
    """Options of `uniform`."""

    all: bool = False
    """Try pairs to which a bit could be added, too."""


@register("uniform")
class Uniform(Strategy):
    """Proposes the uniform (w, a) pairs within the budget to which no bit can be added, most bits first, each once.

    Each is fine-tuned as long as the finalists of `arq`, at most as long as what ships. After the last one it is finished,
    and `ask` repeats the pair with the highest reward.
    """

    defaults = Options()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policies = [self.space.uniform(pair) for pair in _pairs(self.space, every=self.options.all)]
        self._steps: int | None = None
        self._rewards: dict[Policy, float] = {}

    @classmethod
    def foreseen(
        cls, spaces: Sequence[Space], options: Mapping[str, Any], short: int, full: int
    ) -> tuple[list[int], list[int]]:
        """Return the steps of every pair of every budget."""
        chosen: Options = parse_options(cls.name, cls.defaults, options)
        long = _long_look(short, full) or short
        return [long for space in spaces for _ in _pairs(space, every=chosen.all)], [long]

    def prepare(self, context: SearchContext) -> None:
        """Learn how long a candidate and what ships are fine-tuned."""
        images = len(context.calibrate)
        self._steps = _long_look(*(recipe.steps_on(images) for recipe in (context.recipe, context.final_recipe)))

    def _propose(self) -> Proposal:
        left = [policy for policy in self._policies if policy not in self._rewards]
        if not left:
            return Proposal(max(self._policies, key=self._rewards.__getitem__), self._steps)
        waiting = [proposal.policy for proposal in self._pending]
        return Proposal(next((policy for policy in left if policy not in waiting), left[0]), self._steps)

    def _learn(self, proposal: Proposal, reward: float | None) -> None:
        if proposal.policy in self._policies and proposal.steps == self._steps:
            self._rewards[proposal.policy] = -np.inf if reward is None else reward

    @property
    def finished(self) -> bool:
        """True once every pair was told."""
        return len(self._rewards) == len(self._policies)


@register("pact")
class Pact(OnePolicy):
    """Proposes one width for everything, the largest that fits; with learned clips this is the paper's PACT.

    The paper fixes 3 or 4 bits beforehand; under a budget that lies between two widths this takes the lower one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        widths = range(self.space.max_bits, self.space.min_bits - 1, -1)
        self.policy = next(self.space.uniform(b) for b in widths if self.space.budget.allows(self.space.uniform(b)))


def _pairs(space: Space, *, every: bool) -> Sequence[Bits]:
    """Return the pairs within the budget: those to which no bit can be added, or every one."""
    if not every:
        return space.uniform_pairs
    widths = range(space.max_bits, space.min_bits - 1, -1)
    pairs = (Bits(w, a) for w in widths for a in widths)
    fitting = (pair for pair in pairs if space.budget.allows(space.uniform(pair)))
    return sorted(fitting, key=lambda pair: (-pair.w * pair.a, abs(pair.w - pair.a), -pair.a))


def _long_look(short: int, full: int) -> int | None:
    """Return the steps of the finalists of `arq`; None where they are those of a candidate."""
    return next(reversed(longer_looks(short, full)), None)
