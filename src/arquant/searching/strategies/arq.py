"""Search as a designed experiment: a few short fine-tunings tell what widths cost, a few long ones choose among the best. Ours.

1. *Design*: two candidates per group of layers and one more, each the one that the model of `grouped_model` is least certain
   about.
2. *Optimum*: the policy that the fitted model makes best, fine-tuned as shortly; a search may stop here.
3. *Finals*: the model's optima, with the weights' losses at their full value and at less, beside every uniform pair, are
   looked at again after four times as many steps, the best of them after thirteen times as many: successive halving.
4. More of the same for as long as the search lasts: short candidates varied layer by layer, and a look at the best.

What it proposes depends on results alone, not on how long the search may last: 25 trials and then 25 more are 50 trials.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from arquant.base.errors import InputError
from arquant.quantization.policy import Policy
from arquant.searching.context import SearchContext
from arquant.searching.space import BitArray, Space
from arquant.searching.strategies.additive import AdditiveModel, propose
from arquant.searching.strategies.grouped_model import GroupedModel, Grouping, least_certain
from arquant.searching.strategies.groups import MOST_GROUPS
from arquant.searching.strategy import Proposal, Strategy, parse_options, register

LOOKS = (4, 13)
"""lengths of the longer looks, as multiples of a candidate's fine-tuning"""
WEIGHTS = (1.0, 0.5, 0.25, 0.125)
"""shares of the weights' losses with which the model's optima enter the finals: 60 steps of ResNet-20 underrate w2a4"""
VARIED = 6
"""short candidates between two later looks"""


@dataclass(frozen=True)
class Options:
    """Options of `arq`."""

    groups: int = MOST_GROUPS
    """most groups of layers that the model tells apart"""
    survivors: int = 3
    """how many of the first long look get the second"""
    explore: float = 0.5
    """how far later candidates stray from the model's optimum"""

    def __post_init__(self) -> None:
        for name in ("groups", "survivors"):
            if getattr(self, name) < 1:
                raise InputError(f"option {name!r} must be at least 1, got {getattr(self, name)}")
        if self.explore < 0:
            raise InputError(f"option 'explore' must not be negative, got {self.explore}")


@register("arq")
class Arq(Strategy):
    """Designs an experiment of short fine-tunings, fits what widths cost, and looks longer at the best."""

    defaults = Options()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._grouping = Grouping(self.space, self.options.groups)
        self._pool: list[Policy] = []
        self._looks: tuple[int, ...] = ()
        self._results: dict[Proposal, float | None] = {}
        self._batch: list[Proposal] = []
        self._stages: Iterator[Callable[[], list[Proposal]]] = chain(
            (self._optimum, self._first_finals, self._second_finals),
            chain.from_iterable(repeat((self._variations, self._best_variations, self._best_of_all))),
        )

    @classmethod
    def foreseen(
        cls, spaces: Sequence[Space], options: Mapping[str, Any], short: int, full: int
    ) -> tuple[list[int], list[int]]:
        """Return the steps of design, optima and finals, where none is a repetition; then those of variations."""
        chosen: Options = parse_options(cls.name, cls.defaults, options)
        looks = list(longer_looks(short, full))
        first, second = looks[:1], looks[1:]
        opening = [short] * (Grouping(spaces[0], chosen.groups).parameters + len(spaces))
        for space in spaces:
            opening += first * (len(WEIGHTS) + len(space.uniform_pairs)) + second * chosen.survivors
        return opening, [short] * VARIED + first * 2 + second

    def prepare(self, context: SearchContext) -> None:
        """Learn how long a candidate and what ships are fine-tuned: no look is longer than that."""
        images = len(context.calibrate)
        self._looks = longer_looks(*(recipe.steps_on(images) for recipe in (context.recipe, context.final_recipe)))

    def overhear(self, proposal: Proposal, reward: float | None, *, raced: bool = False) -> None:
        """Learn from other budgets too: what a width costs does not depend on them."""
        if self.space.contains(proposal.policy):
            self.tell(proposal, reward, raced=raced)
        else:
            self._learn(proposal, reward)

    def _learn(self, proposal: Proposal, reward: float | None) -> None:
        self._results[proposal] = reward

    def _propose(self) -> Policy | Proposal:
        for proposal in self._batch:
            if proposal not in self._results and proposal not in self._pending:
                return proposal
        return self._experiment() or (self._pending[0] if self._pending else self._next_stage())

    def _experiment(self) -> Policy | None:
        """Return the next policy of the design; None once there are results enough to determine the model."""
        known = [each.policy for each in (*self._results, *self._pending) if each.steps is None]
        if len(known) >= self._grouping.parameters:
            return None
        self._pool = self._pool or self._grouping.pool(self.rng)
        untried = [policy for policy in self._pool if policy not in known]
        return least_certain(self._grouping, untried, known) if untried else None

    def _next_stage(self) -> Proposal:
        """Begin the next stage that has something new; where the space has nothing left, repeat the best."""
        for _ in range(6):
            proposals = next(self._stages)()
            self._batch = [proposal for proposal in proposals if proposal not in self._results]
            if self._batch:
                return self._batch[0]
        return max((each for each in self._results if self.space.contains(each.policy)), key=self._value)

    def _short(self) -> list[tuple[BitArray, float]]:
        """Return the bits and rewards of all candidates that were fine-tuned shortly."""
        found = [(each.policy, value) for each, value in self._results.items() if each.steps is None]
        return [(self.space.bits(policy), value) for policy, value in found if value is not None]

    def _value(self, proposal: Proposal) -> float:
        """Return the reward of a proposal that this budget allows; less than any where it failed or is not allowed."""
        value = self._results.get(proposal)
        return float("-inf") if value is None or not self.space.contains(proposal.policy) else value

    def _model(self) -> GroupedModel:
        return GroupedModel(self._grouping, self._short())

    def _optimum(self) -> list[Proposal]:
        return [Proposal(self._model().best_policy())]

    def _first_finals(self) -> list[Proposal]:
        model = self._model()
        optima = [model.best_policy(share) for share in WEIGHTS]
        uniform = [self.space.uniform(pair) for pair in self.space.uniform_pairs]
        return [Proposal(policy, steps) for steps in self._looks[:1] for policy in dict.fromkeys([*optima, *uniform])]

    def _second_finals(self) -> list[Proposal]:
        return self._promoted(self._looks[:1], self._looks[1:], self.options.survivors)

    def _variations(self) -> list[Proposal]:
        """Return candidates that a model with a loss for each layer makes best, under losses drawn from its posterior."""
        results = self._short()
        if not results:
            return []
        model, tried = AdditiveModel(self.space, results), [proposal.policy for proposal in self._results]
        for _ in range(VARIED):
            tried.append(propose(model, tried.__contains__, self.options.explore, self.rng))
        return [Proposal(policy) for policy in dict.fromkeys(tried[-VARIED:])]

    def _best_variations(self) -> list[Proposal]:
        return self._promoted((None,), self._looks[:1], 2)

    def _best_of_all(self) -> list[Proposal]:
        return self._promoted(self._looks[:1], self._looks[1:], 1)

    def _promoted(self, below: Sequence[int | None], above: Sequence[int], count: int) -> list[Proposal]:
        """Return the best of a shorter look that had none of the longer look yet, at that length."""
        seen = {proposal.policy for proposal in self._results if proposal.steps in above}
        rivals = [each for each in self._results if each.steps in below and each.policy not in seen]
        best = sorted((each for each in rivals if self._value(each) > float("-inf")), key=self._value, reverse=True)
        return [Proposal(each.policy, steps) for steps in above for each in best[:count]]


def longer_looks(short: int, full: int) -> tuple[int, ...]:
    """Return the steps of the longer looks: none is longer than what ships is fine-tuned."""
    longest = [min(factor * short, full) for factor in LOOKS]
    return tuple(steps for steps in dict.fromkeys(longest) if steps > short)
