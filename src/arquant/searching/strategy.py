"""Define how a search chooses: proposals, the `Strategy` base class, its options, and the registry of strategies.

A strategy of your own is a class with one method, registered under a name:

    @register("mine")
    class Mine(Strategy):
        def _propose(self) -> Policy:
            return self.space.fit(self.rng.uniform(2, 8, (len(self.space.searched), 2)))

`--strategy mine` then searches with it. One that wants to see the network has `prepare` too, and gets a `SearchContext`.
`arquant.searching.testing.StrategyConformance` has the tests that every strategy must pass.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar, final

import numpy as np

from arquant.base.errors import InputError
from arquant.base.options import meant
from arquant.quantization.policy import Policy
from arquant.searching.context import SearchContext
from arquant.searching.space import Space


@dataclass(frozen=True)
class Proposal:
    """A policy to evaluate, and how far to fine-tune it first."""

    policy: Policy
    steps: int | None = None
    """fine-tuning steps of this look; None takes those of the search's recipe"""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise InputError(f"a proposal needs at least 1 fine-tuning step, got {self.steps}")


@dataclass(frozen=True)
class NoOptions:
    """The options of a strategy that has none."""


class Strategy(ABC):
    """Proposes policies and learns from their rewards.

    Guarantees, whatever the subclass does: every proposal lies in the space (fixed layers, range of bits, budget); `ask`
    repeated without a `tell` returns the same proposals. Space, seed, options, context and what was asked and told, in
    that order, determine every proposal, so a study that replays its journal continues as if it had never stopped.

    Args:
        space: the policies to choose from.
        seed: of `self.rng`, the only source of randomness.
        options: replaces fields of `defaults`; an unknown name or a value of the wrong type is an InputError.
    """

    name: ClassVar[str] = ""
    """The registered name, set by `register`."""
    defaults: ClassVar[Any] = NoOptions()
    """A frozen dataclass instance: the options and their default values."""
    seeding: ClassVar[bool] = True
    """True if it learns from policies that it did not ask for, such as the uniform controls."""

    def __init__(self, space: Space, seed: int = 0, options: Mapping[str, Any] | None = None) -> None:
        self.space = space
        self.seed = seed
        self.options = parse_options(self.name or type(self).__name__, self.defaults, options or {})
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.told = 0
        """How many results were told, failures included."""
        self.answered = 0
        """How many of them were of its own proposals; a study of several budgets tells it other tracks' results too."""
        self.failed = 0
        """How many of them were failures."""
        self.best: float | None = None
        """The highest reward of a complete evaluation."""
        self._pending: list[Proposal] = []
        self._nothing_new = False

    def prepare(self, context: SearchContext) -> None:  # noqa: B027 (may stay empty)
        """Look at the network. A study calls this once before the first `ask`, also when it resumes.

        Put what takes long through `context.kept`, which finds it again after a kill.
        """

    @abstractmethod
    def _propose(self) -> Policy | Proposal:
        """Return the next policy to evaluate. One that is pending already means: nothing more until something is told."""

    def _learn(self, proposal: Proposal, reward: float | None) -> None:  # noqa: B027 (may stay empty)
        """Take in a reward, not necessarily of the latest proposal; None if the evaluation failed."""

    def _learn_raced(self, proposal: Proposal, reward: float) -> None:
        """Take in a proposal that was abandoned as clearly worse than the best.

        `reward` is what a part of its fine-tuning or votes suggests, at most the best one's; it is not its reward.
        """
        self._learn(proposal, reward)

    @property
    def finished(self) -> bool:
        """True if there is nothing left to propose; `ask` then repeats an earlier policy."""
        return False

    @classmethod
    def foreseen(
        cls, spaces: Sequence[Space], options: Mapping[str, Any], short: int, full: int
    ) -> tuple[list[int], list[int]]:
        """Return the fine-tuning steps of the first candidates, about, and of those that then follow again and again.

        Args:
            spaces: one per budget of the search, which take turns.
            options: of the strategy.
            short, full: steps of a candidate, and of what ships.
        """
        return [], [short]

    @final
    def ask(self, count: int = 1) -> list[Proposal]:
        """Return the proposals to evaluate next: at least one, at most `count`, none twice.

        They stay the same until one of them is told; a larger count adds to them.
        """
        if count < 1:
            raise InputError(f"ask for at least 1 proposal, got {count}")
        while len(self._pending) < count and not self._nothing_new:
            proposed = self._propose()
            proposal = Proposal(proposed) if isinstance(proposed, Policy) else proposed
            if not self.space.contains(proposal.policy):
                raise AssertionError(f"strategy {self.name!r} proposed {proposal!r}, which is outside its space")
            self._nothing_new = proposal in self._pending
            if not self._nothing_new:
                self._pending.append(proposal)
        return self._pending[:count]

    @final
    def tell(self, proposal: Proposal | Policy, reward: float | None, *, raced: bool = False) -> None:
        """Report a reward; None, NaN or an infinity means that the evaluation failed. The order does not matter.

        It may be of a policy that was never asked for (a control, another study's result): `seeding` says if it is
        learned from. A policy outside the space is an InputError.

        Args:
            raced: the evaluation was abandoned, so the reward only says: worse than the best.
        """
        told = self._find_pending(proposal) if isinstance(proposal, Policy) else proposal
        if not self.space.contains(told.policy):
            raise InputError(
                f"{told.policy!r} is not a policy of this search: other layers, fixed bits, range or budget"
            )
        value = None if reward is None or not math.isfinite(reward) else float(reward)
        asked = told in self._pending
        if asked or self.seeding:
            self.told += 1
            self.answered += asked
            self.failed += value is None
            if raced and value is not None:
                self._learn_raced(told, value if self.best is None else min(value, self.best))
            else:
                self.best = value if self.best is None or (value is not None and value > self.best) else self.best
                self._learn(told, value)
        if asked:
            self._pending.remove(told)
        self._nothing_new = False

    def overhear(self, proposal: Proposal, reward: float | None, *, raced: bool = False) -> None:
        """Take in a result of another budget of the same search; by default only what this budget allows is told."""
        if self.space.contains(proposal.policy):
            self.tell(proposal, reward, raced=raced)

    def _find_pending(self, policy: Policy) -> Proposal:
        return next((pending for pending in self._pending if pending.policy == policy), Proposal(policy))

    def describe(self) -> dict[str, Any]:
        """Return JSON-able facts for a report: name, seed, options, and how many results it was told."""
        options = asdict(self.options)
        return {"strategy": self.name, "seed": self.seed, "options": options, "told": self.told, "failed": self.failed}


S = TypeVar("S", bound=type[Strategy])
_registry: dict[str, type[Strategy]] = {}


def register(name: str) -> Callable[[S], S]:
    """Make a strategy known under `name`, as a class decorator; a name that another class has is an InputError."""

    def add(strategy: S) -> S:
        known = _registry.get(name)
        if known is not None and place_of(known) != place_of(strategy):
            raise InputError(f"strategy {name!r} is already registered by {place_of(known)}")
        strategy.name = name
        _registry[name] = strategy
        return strategy

    return add


def registered() -> dict[str, type[Strategy]]:
    """Return the strategies registered so far, by name; `method.methods` has all that a search takes."""
    return dict(_registry)


def place_of(strategy: type[Strategy]) -> str:
    """Return where a class is defined. A module that is imported anew defines an equal class there."""
    return f"{strategy.__module__}.{strategy.__qualname__}"


def parse_options(owner: str, defaults: Any, options: Mapping[str, Any]) -> Any:
    """Return `defaults`, a dataclass instance, with the fields that `options` names replaced; text is converted.

    `{"episodes": "150"}` and `{"episodes": 1.5e2}` set an integer field to 150; unknown names, and values that are not
    of the field's type, are InputErrors.
    """
    known = {item.name: getattr(defaults, item.name) for item in fields(defaults)}
    changes = {}
    for name, value in options.items():
        if name not in known:
            hint = meant(name, known) or f"; its options are {', '.join(known) or 'none'}"
            raise InputError(f"strategy {owner!r} has no option {name!r}{hint}")
        changes[name] = _converted(owner, name, value, type(known[name]))
    return replace(defaults, **changes)


def _converted(owner: str, name: str, value: Any, kind: type) -> Any:
    if isinstance(value, kind) and kind in (bool, str):
        return value
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isfinite(number) and (kind is float or number.is_integer()):
            return kind(number)
    raise InputError(f"option {name!r} of strategy {owner!r} must be of type {kind.__name__}, got {value!r}")
