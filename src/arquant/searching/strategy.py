"""How a search chooses: the `Strategy` base class, its options, and the registry.

A strategy of your own is a class with one method, registered under a name:

    @register("mine")
    class Mine(Strategy):
        def _propose(self) -> Policy:
            return self.space.fit(self.rng.uniform(2, 8, (len(self.space.searched), 2)))

`arquant.searching.testing.StrategyConformance` holds the tests that every strategy must pass.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import InputError, MismatchError
from arquant.quantization.policy import Policy
from arquant.searching.space import Space

Arrays: TypeAlias = dict[str, NDArray[Any]]
State: TypeAlias = tuple[dict[str, Any], Arrays]
"""A JSON-able dict, and arrays for whatever is large; together they hold all that a strategy has learned."""

BUILT_IN = ("uniform", "random_search", "evolve", "additive", "ilp", "ddpg")
"""Modules of `arquant.searching.strategies` that register the strategies of this package."""


@dataclass(frozen=True)
class NoOptions:
    """The options of a strategy that has none."""


class Strategy(ABC):
    """Proposes policies and learns from their rewards.

    Guarantees, whatever the subclass does: every policy that `ask` returns lies in the space (fixed layers, range of
    bits, budget); `ask` repeated without a `tell` returns the same policy; a strategy restored from a saved state, even
    one saved between `ask` and `tell`, continues exactly like the one that was saved.

    Args:
        space: the policies to choose from.
        seed: together with `space`, `options` and the rewards told, it determines every policy.
        options: replaces fields of `defaults`; an unknown name or a value of the wrong type is an InputError.
    """

    name: ClassVar[str] = ""
    """The registered name, set by `register`."""
    defaults: ClassVar[Any] = NoOptions()
    """A frozen dataclass instance: the options and their default values."""
    reward: ClassVar[str] = "acr-cv"
    """The reward that a study uses unless the user names another."""
    racing: ClassVar[bool] = True
    """Whether a candidate may be abandoned early; `_learn_raced` is then told what its reward seemed to be."""
    seeding: ClassVar[bool] = True
    """Whether it learns from policies that it did not ask for, such as the uniform controls."""
    shortlist: ClassVar[int] = 3
    """How many of the best candidates get a second look unless the user says; with 1 the best score wins."""
    quantizer: ClassVar[str | None] = None
    """What fine-tuning learns, where that belongs to the method, whatever `learn` says; None means the study's own."""

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
        self._pending: Policy | None = None

    @abstractmethod
    def _propose(self) -> Policy:
        """The next policy to evaluate. All randomness comes from `self.rng`."""

    def _learn(self, policy: Policy, reward: float | None) -> None:  # noqa: B027 (may stay empty)
        """Take in the reward of `policy`, which need not be the one proposed last; None if its evaluation failed."""

    def _learn_raced(self, policy: Policy, reward: float) -> None:
        """Take in a policy that was abandoned as clearly worse than the best: `reward`, at most the best one's, is what a
        part of its fine-tuning or votes suggests, not its reward.
        """
        self._learn(policy, reward)

    def _save(self) -> State:
        """What `_learn` and `_propose` changed, beside `self.rng`."""
        return {}, {}

    def _load(self, data: dict[str, Any], arrays: Arrays) -> None:  # noqa: B027 (may stay empty)
        """Put back what `_save` returned."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to propose; `ask` then repeats an earlier policy."""
        return False

    @final
    def ask(self) -> Policy:
        """The next policy to evaluate; the same one until it is told."""
        if self._pending is None:
            policy = self._propose()
            if not self.space.contains(policy):
                raise AssertionError(f"strategy {self.name!r} proposed {policy!r}, which is outside its space")
            self._pending = policy
        return self._pending

    @final
    def tell(self, policy: Policy, reward: float | None, *, raced: bool = False) -> None:
        """Report the reward of `policy`; None, NaN or an infinity means that its evaluation failed.

        `raced` means that the evaluation was abandoned, so that the reward only says: worse than the best.

        The policy may be one that was never asked for (a control, another study's result): `seeding` says whether it is
        learned from. One outside the space is an InputError.
        """
        if not self.space.contains(policy):
            raise InputError(f"{policy!r} is not a policy of this search: other layers, fixed bits, range or budget")
        value = None if reward is None or not math.isfinite(reward) else float(reward)
        asked = policy == self._pending
        if asked or self.seeding:
            self.told += 1
            self.answered += asked
            self.failed += value is None
            if raced and value is not None:
                self._learn_raced(policy, value if self.best is None else min(value, self.best))
            else:
                self.best = value if self.best is None or (value is not None and value > self.best) else self.best
                self._learn(policy, value)
        if asked:
            self._pending = None

    @final
    def state(self) -> State:
        """All that was learned, as a JSON-able dict and arrays; what it holds does not change afterwards."""
        data, arrays = self._save()
        pending = None if self._pending is None else self.space.bits(self._pending).tolist()
        common = {
            **self._identity(),
            "rng": self.rng.bit_generator.state,
            "told": self.told,
            "answered": self.answered,
            "failed": self.failed,
            "best": self.best,
            "pending": pending,
        }
        return {**common, "own": data}, {key: np.array(array) for key, array in arrays.items()}

    @final
    def restore(self, state: State) -> None:
        """Continue where `state` was taken; a state of another strategy, space or options is a MismatchError."""
        data, arrays = state
        for key, value in self._identity().items():
            if data.get(key) != value:
                raise MismatchError(f"the saved state is of another search: {key} {data.get(key)!r}, here {value!r}")
        self.rng.bit_generator.state = data["rng"]
        self.told, self.answered = data["told"], data["answered"]
        self.failed, self.best = data["failed"], data["best"]
        pending = data["pending"]
        self._pending = None if pending is None else self.space.policy(np.array(pending, dtype=np.int64))
        self._load(data["own"], arrays)

    def _identity(self) -> dict[str, Any]:
        """What a saved state must agree in."""
        space = self.space
        return {
            "strategy": self.name,
            "searched": list(space.searched),
            "budget": space.budget.text,
            "widths": [space.min_bits, space.max_bits],
            "fixed": {name: str(bits) for name, bits in space.fixed.items()},
            "options": asdict(self.options),
        }

    def describe(self) -> dict[str, Any]:
        """JSON-able facts for a report: name, seed, options, and how many results it was told."""
        options = asdict(self.options)
        return {"strategy": self.name, "seed": self.seed, "options": options, "told": self.told, "failed": self.failed}


S = TypeVar("S", bound=type[Strategy])
_registry: dict[str, type[Strategy]] = {}


def register(name: str) -> Callable[[S], S]:
    """Class decorator: make the strategy known under `name`; a name that is taken by another class is an InputError."""

    def add(strategy: S) -> S:
        known = _registry.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (strategy.__module__, strategy.__qualname__):
            raise InputError(f"strategy {name!r} is already registered by {known.__module__}.{known.__qualname__}")
        strategy.name = name
        _registry[name] = strategy
        return strategy

    return add


def strategies() -> dict[str, type[Strategy]]:
    """All registered strategies by name: those of this package, then those registered since."""
    for module in BUILT_IN:
        import_module(f"arquant.searching.strategies.{module}")
    return dict(_registry)


def find_strategy(name: str) -> type[Strategy]:
    """The class registered under `name`; an unknown name is an InputError that lists the close ones."""
    known = strategies()
    if name not in known:
        close = get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else f"known are {', '.join(sorted(known))}"
        raise InputError(f"unknown strategy {name!r}; {hint}")
    return known[name]


def parse_options(owner: str, defaults: Any, options: Mapping[str, Any]) -> Any:
    """`defaults`, a dataclass instance, with the fields that `options` names replaced; text is converted.

    `{"episodes": "150"}` and `{"episodes": 1.5e2}` set an integer field to 150; unknown names, and values that are not
    of the field's type, are InputErrors.
    """
    known = {item.name: getattr(defaults, item.name) for item in fields(defaults)}
    changes = {}
    for name, value in options.items():
        if name not in known:
            close = get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else f"its options are {', '.join(known) or 'none'}"
            raise InputError(f"strategy {owner!r} has no option {name!r}; {hint}")
        changes[name] = _convert(owner, name, value, type(known[name]))
    return replace(defaults, **changes)


def _convert(owner: str, name: str, value: Any, kind: type) -> Any:
    if kind is bool:
        choices = {True: True, False: False, "true": True, "false": False}
        key = value.lower() if isinstance(value, str) else value
        if isinstance(key, bool | str) and key in choices:
            return choices[key]
    elif kind is str and isinstance(value, str):
        return value
    elif kind in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isfinite(number) and (kind is float or number.is_integer()):
            return kind(number)
    raise InputError(f"option {name!r} of strategy {owner!r} must be of type {kind.__name__}, got {value!r}")
