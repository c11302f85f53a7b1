"""The protocol: registry, options, and what the base class guarantees for any subclass."""

import subprocess
import sys
from dataclasses import asdict, dataclass

import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.searching import strategy as module
from arquant.searching.strategies.ddpg import ArqDdpg
from arquant.searching.strategies.evolve import Evolve
from arquant.searching.strategy import Proposal, Strategy, parse_options, register, registered
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
    (asked,) = searching.ask()
    searching.tell(space.uniform(3), 0.1)
    searching.tell(asked, 0.2)
    assert searching.told == told


def test_registering(monkeypatch):
    monkeypatch.setattr(module, "_registry", dict(module._registry))
    added = register("added")(type("Added", (Plain,), {}))
    assert registered()["added"] is added
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


class Looking(Plain):
    """Trains once in `prepare`, and takes rounds of two fidelities of what came out."""

    def prepare(self, context):
        self.folder = context.folder

        def compute():
            model = context.quantized()
            context.train(model)
            return {name: part.detach().numpy() for name, part in model.module.fc.named_parameters()}

        self.wishes = context.kept("weights", compute, options=asdict(self.options))["weight"]

    def _propose(self):
        wishes = np.resize(self.wishes, (len(self.space.searched), 2)) + self.rng.normal(size=(1, 2))
        return Proposal(self.space.fit(20 * wishes), steps=60 + 60 * (self.told % 2))


class TestLooking(StrategyConformance):
    @pytest.fixture
    def strategy_factory(self):
        return Looking


class Forgetful(Looking):
    """Computes what it needs without keeping it."""

    def prepare(self, context):
        model = context.quantized()
        context.train(model)
        self.wishes = model.module.fc.weight.detach().numpy()


def test_the_suite_notices_work_that_is_done_twice(tmp_path):
    with pytest.raises(AssertionError):
        StrategyConformance().test_what_is_prepared_is_found_again(Forgetful, tmp_path)


class Ambient(Plain):
    """Draws from a generator that outlives it: no replay can repeat that."""

    shared = np.random.default_rng(0)

    def _propose(self):
        return self.space.fit(self.shared.uniform(2, 8, (len(self.space.searched), 2)))


def test_the_suite_notices_a_strategy_that_cannot_be_replayed():
    with pytest.raises(AssertionError):
        StrategyConformance().test_a_journal_replays_it(Ambient)


class Fidelities(Plain):
    """One policy at two fidelities."""

    def _propose(self):
        return Proposal(self.space.uniform(3), steps=10 if len(self._pending) else 20)

    def _learn(self, proposal, reward):
        self.learned = proposal


def test_one_policy_at_two_fidelities_is_two_proposals():
    space = toy_space()
    strategy = Fidelities(space)
    long, short = strategy.ask(4)
    assert (long.steps, short.steps) == (20, 10)
    strategy.tell(short, 0.1)
    assert strategy.learned == short
    assert strategy.ask() == [long]
    strategy.tell(space.uniform(3), 0.1)
    assert strategy.learned == long, "a bare policy is that of the proposal in flight"
    assert (strategy.told, strategy.answered) == (2, 2)


@pytest.mark.parametrize("count", [0, -1])
def test_asking_for_nothing_is_refused(count):
    with pytest.raises(InputError, match=f"got {count}"):
        Plain(toy_space()).ask(count)


def test_a_proposal_without_steps_to_take_is_refused():
    with pytest.raises(InputError, match="got 0"):
        Proposal(toy_space().uniform(3), steps=0)


def test_importing_the_registry_does_not_import_the_agent():
    code = "import sys, arquant.searching.strategy; sys.exit('arquant.searching.strategies.ddpg' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_reward_of_an_abandoned_policy_is_never_the_best():
    space = small_space()
    strategy = Evolve(space, 0)
    strategy.tell(space.uniform(2), 0.5)
    strategy.tell(space.uniform(3), 0.9, raced=True)
    assert [reward for _, reward in strategy._history] == [0.5, 0.5]
    assert strategy.best == 0.5


def test_the_agent_does_not_learn_from_abandoned_policies():
    space = small_space()
    agent = ArqDdpg(space, 0)
    (first,) = agent.ask()
    agent.tell(first, 0.5)
    count = len(agent._replay.rewards)
    (second,) = agent.ask()
    agent.tell(second, 0.1, raced=True)
    assert len(agent._replay.rewards) == count == 1
    assert agent.told == 2
    assert second.policy in agent._history
    assert agent.ask() != [second]
