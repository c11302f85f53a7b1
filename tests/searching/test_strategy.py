"""The protocol: registry, options, and what the base class guarantees for any subclass."""

import json
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.searching import strategy as module
from arquant.searching.strategy import Strategy, find_strategy, parse_options, register, strategies
from arquant.searching.testing import StrategyConformance, toy_space
from tests.support.small_search import small_space


@dataclass(frozen=True)
class Options:
    count: int = 3
    rate: float = 0.5
    fast: bool = False
    mode: str = "slow"


class Plain(Strategy):
    """The example of the module's docstring."""

    defaults = Options()

    def _propose(self):
        return self.space.fit(self.rng.uniform(2, 8, (len(self.space.searched), 2)))


class TestPlain(StrategyConformance):
    @pytest.fixture
    def strategy_factory(self):
        return Plain


def test_the_suite_asks_for_a_factory():
    with pytest.raises(NotImplementedError, match="strategy_factory"):
        StrategyConformance.strategy_factory.__wrapped__(StrategyConformance())


class Outside(Plain):
    def _propose(self):
        return self.space.uniform(8)


def test_a_policy_outside_the_space_is_never_returned():
    with pytest.raises(AssertionError, match="outside its space"):
        Outside(toy_space()).ask()


class Deaf(Plain):
    """Learns nothing it did not ask for."""

    seeding = False


@pytest.mark.parametrize(("strategy", "told"), [(Plain, 2), (Deaf, 1)])
def test_seeding_decides_whether_foreign_results_count(strategy, told):
    space = toy_space()
    searching = strategy(space)
    asked = searching.ask()
    searching.tell(space.uniform(3), 0.1)
    searching.tell(asked, 0.2)
    assert searching.told == told


def test_the_names_of_this_package():
    expected = {"uniform", "pact", "random", "evolve", "additive", "arq-paper", "haq", "arq"}
    assert expected <= set(strategies())
    assert all(strategy.name == name for name, strategy in strategies().items())


@pytest.mark.parametrize(
    ("name", "reward", "racing", "seeding"),
    [
        ("arq-paper", "irs", False, False),
        ("haq", "val", False, False),
        ("arq", "acr-cv", True, True),
        ("uniform", "acr-cv", True, True),
    ],
)
def test_what_strategies_declare(name, reward, racing, seeding):
    found = find_strategy(name)
    assert (found.reward, found.racing, found.seeding) == (reward, racing, seeding)


@pytest.mark.parametrize(
    ("name", "hint"), [("arq_paper", "did you mean arq-paper"), ("evolv", "did you mean evolve"), ("zzz", "known are")]
)
def test_an_unknown_name_is_refused_with_a_hint(name, hint):
    with pytest.raises(InputError, match=f"unknown strategy '{name}'; {hint}"):
        find_strategy(name)


def test_registering(monkeypatch):
    monkeypatch.setattr(module, "_registry", dict(module._registry))
    added = register("added")(type("Added", (Plain,), {}))
    assert find_strategy("added") is added
    assert added.name == "added"
    with pytest.raises(InputError, match=r"'added' is already registered by .*Added"):
        register("added")(Plain)
    with pytest.raises(InputError, match="already registered"):
        register("added")(type("Added", (Plain,), {"__module__": "elsewhere"}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Options()),
        ({"count": "1e2", "rate": "0.25"}, Options(count=100, rate=0.25)),
        ({"count": 4.0, "rate": 1}, Options(count=4, rate=1.0)),
        ({"fast": "True", "mode": "quick"}, Options(fast=True, mode="quick")),
        ({"fast": False}, Options()),
    ],
)
def test_options_are_converted(given, expected):
    options = parse_options("plain", Options(), given)
    assert options == expected
    assert [type(value) for value in vars(options).values()] == [int, float, bool, str]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cuont": 3}, "strategy 'plain' has no option 'cuont'; did you mean count?"),
        ({"zzz": 3}, "its options are count, rate, fast, mode"),
        ({"count": 2.5}, "'count' of strategy 'plain' must be of type int, got 2.5"),
        ({"count": True}, "must be of type int, got True"),
        ({"count": "many"}, "must be of type int, got 'many'"),
        ({"rate": "nan"}, "must be of type float, got 'nan'"),
        ({"rate": None}, "must be of type float, got None"),
        ({"fast": 1}, "must be of type bool, got 1"),
        ({"fast": "yes"}, "must be of type bool, got 'yes'"),
        ({"mode": 3}, "must be of type str, got 3"),
    ],
)
def test_options_that_do_not_fit_are_refused(given, message):
    with pytest.raises(InputError) as caught:
        parse_options("plain", Options(), given)
    assert message in str(caught.value)


def test_a_state_of_other_options_is_refused():
    state = Plain(toy_space(), 0, {"count": 4}).state()
    with pytest.raises(MismatchError, match="options"):
        Plain(toy_space(), 0).restore(state)


@pytest.mark.parametrize("other", [toy_space("bops<=2bit"), toy_space(max_bits=5)])
def test_a_state_of_another_space_is_refused(other):
    strategy = Plain(toy_space("bops<=6bit"), 0)
    strategy.ask()
    with pytest.raises(MismatchError, match=r"budget|widths"):
        Plain(other, 0).restore(strategy.state())


def test_the_state_is_json_and_arrays():
    strategy = Plain(toy_space(), 5)
    strategy.ask()
    data, arrays = strategy.state()
    assert json.loads(json.dumps(data)) == data
    assert all(isinstance(array, np.ndarray) for array in arrays.values())


def test_importing_the_registry_does_not_import_the_agent():
    code = "import sys, arquant.searching.strategy; sys.exit('arquant.strategies.ddpg' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_reward_of_an_abandoned_policy_is_never_the_best():
    space = small_space()
    strategy = find_strategy("evolve")(space, 0)
    strategy.tell(space.uniform(2), 0.5)
    strategy.tell(space.uniform(3), 0.9, raced=True)
    assert [reward for _, reward in strategy._history] == [0.5, 0.5]
    assert strategy.best == 0.5
    again = find_strategy("evolve")(space, 0)
    again.restore(strategy.state())
    assert again.best == 0.5


def test_the_agent_does_not_learn_from_abandoned_policies():
    space = small_space()
    agent = find_strategy("arq")(space, 0)
    first = agent.ask()
    agent.tell(first, 0.5)
    count = len(agent._replay.rewards)
    second = agent.ask()
    agent.tell(second, 0.1, raced=True)
    assert len(agent._replay.rewards) == count == 1
    assert agent.told == 2
    assert second in agent._history
    assert agent.ask() != second
