"""Test what every strategy must do, as pytest tests to inherit:

class TestMine(StrategyConformance):
    @pytest.fixture
    def strategy_factory(self):
        return Mine
"""

import json
import random
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.quantization.policy import Bits, Policy
from arquant.searching.space import Space
from arquant.searching.strategy import Proposal, Strategy
from arquant.searching.testing.search import toy_context, toy_layers, toy_reward, toy_space

StrategyFactory: TypeAlias = Callable[[Space, int, Mapping[str, Any] | None], Strategy]
Reward: TypeAlias = Callable[[Policy], float | None]

BUDGETS = (
    "bops<=2bit",
    "bops<=2.2bit",
    "bops<=3bit",
    "bops@paper<=4bit",
    "bytes<=2.5bit",
    "bops<=3bit,bytes<=2.3bit",
    "bytes<=4bit,bops<=2.5bit",
    "bops<=100%",
)
EPISODES = 8
ROUNDS = (1, 2, 5, 1, 3)
"""how many proposals are asked for at a time"""


class StrategyConformance:
    """Tests of the guarantees that `arquant.searching.strategy.Strategy` states; override `strategy_factory`."""

    @pytest.fixture
    def strategy_factory(self) -> StrategyFactory:
        """Makes a strategy of a space, a seed and options; a class derived from `Strategy` is one."""
        raise NotImplementedError("override the fixture strategy_factory")

    @pytest.fixture
    def prepared(self, strategy_factory: StrategyFactory, tmp_path: Path) -> StrategyFactory:
        """Makes a strategy that has seen the toy network."""

        def make(space: Space, seed: int, options: Mapping[str, Any] | None) -> Strategy:
            strategy = strategy_factory(space, seed, options)
            strategy.prepare(toy_context(space, tmp_path, seed=seed))
            return strategy

        return make

    def test_a_seed_determines_every_policy(self, prepared: StrategyFactory) -> None:
        """Two runs with the same seed and rewards propose the same."""
        space = toy_space()
        first, second = (_run(prepared(space, 3, None), toy_reward(space)) for _ in range(2))
        assert first == second

    def test_global_random_numbers_are_left_alone(self, prepared: StrategyFactory) -> None:
        """Neither read nor advanced: the states of `random`, NumPy and torch are as before."""
        before = _global_states()
        space = toy_space()
        _run(prepared(space, 0, None), toy_reward(space), 4)
        assert _global_states() == before

    @pytest.mark.parametrize("budget", BUDGETS)
    def test_every_policy_is_within_the_budget(self, prepared: StrategyFactory, budget: str) -> None:
        """Each limit holds for each policy, and every layer has bits within the range."""
        space = toy_space(budget)
        for policy in _run(prepared(space, 0, None), toy_reward(space)):
            policy.check(space.layers)
            for limit in space.budget.limits:
                assert limit.cost.cost(policy, space.layers) <= limit.amount * (1 + 1e-12)
            assert all(2 <= bits.w <= 8 and 2 <= bits.a <= 8 for bits in policy.values())

    def test_fixed_layers_keep_their_bits(self, prepared: StrategyFactory) -> None:
        """First, last and kept layers are the same in every policy."""
        space = toy_space("bops<=3.5bit", keep={"conv2": "w5a7"})
        for policy in _run(prepared(space, 0, None), toy_reward(space)):
            assert (policy["conv0"], policy["fc"], policy["conv2"]) == (Bits(8, 8), Bits(8, 8), Bits(5, 7))

    def test_the_range_of_bits_is_respected(self, prepared: StrategyFactory) -> None:
        """`min_bits` and `max_bits` hold for the searched layers."""
        space = toy_space("bops<=4bit", min_bits=3, max_bits=5)
        for policy in _run(prepared(space, 0, None), toy_reward(space)):
            assert ((space.bits(policy) >= 3) & (space.bits(policy) <= 5)).all()

    def test_one_searched_layer_is_enough(self, prepared: StrategyFactory) -> None:
        """A network of three layers, the first and the last of them fixed."""
        space = toy_space(layers=toy_layers(2))
        assert len(space.searched) == 1
        assert all(space.contains(policy) for policy in _run(prepared(space, 0, None), toy_reward(space)))

    def test_one_possible_policy_is_enough(self, prepared: StrategyFactory) -> None:
        """A budget that leaves no choice."""
        space = toy_space("bops<=2bit", max_bits=2)
        assert set(_run(prepared(space, 0, None), toy_reward(space), 4)) == {space.uniform(2)}

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_several_at_once(self, prepared: StrategyFactory, count: int) -> None:
        """At least one and at most so many proposals, different ones, in the space, the same when asked again."""
        space = toy_space()
        reward, strategy = toy_reward(space), prepared(space, 0, None)
        for _ in range(EPISODES // 2):
            asked = strategy.ask(count)
            assert 1 <= len(asked) <= count
            assert len(set(asked)) == len(asked)
            assert all(space.contains(proposal.policy) for proposal in asked)
            assert strategy.ask(count) == asked
            for proposal in asked:
                strategy.tell(proposal, reward(proposal.policy))

    def test_results_come_in_any_order(self, prepared: StrategyFactory) -> None:
        """The proposals that are not told yet stay, in their order, before new ones."""
        space = toy_space()
        reward, strategy = toy_reward(space), prepared(space, 0, None)
        for place in (-1, 0, 1, -1, 0):
            asked = strategy.ask(3)
            told = asked[place % len(asked)]
            strategy.tell(told, reward(told.policy))
            left = [proposal for proposal in asked if proposal != told]
            assert strategy.ask(3)[: len(left)] == left
        assert strategy.answered == 5

    def test_a_journal_replays_it(self, prepared: StrategyFactory) -> None:
        """The same questions and results, read from text, give the same proposals to the end."""
        space = toy_space()
        original, again = (prepared(space, 1, None) for _ in range(2))
        lines = [json.loads(line) for line in _journal(original, toy_reward(space))]
        for line in lines:
            if "ask" in line:
                assert [_plain(proposal) for proposal in again.ask(line["ask"])] == line["proposals"]
            else:
                policy, steps = line["proposal"]
                again.tell(Proposal(Policy(policy), steps), line["reward"], raced=line["raced"])
        assert (again.told, again.failed, again.best) == (original.told, original.failed, original.best)
        assert again.ask(5) == original.ask(5)

    def test_what_is_prepared_is_found_again(self, strategy_factory: StrategyFactory, tmp_path: Path) -> None:
        """A second `prepare` in the same folder trains nothing, computes no kept result and ends the same."""
        space = toy_space()
        contexts = [toy_context(space, tmp_path) for _ in range(2)]
        first, second = (strategy_factory(space, 0, None) for _ in contexts)
        first.prepare(contexts[0])
        second.prepare(contexts[1])
        assert contexts[1].work == []
        assert _run(first, toy_reward(space)) == _run(second, toy_reward(space))

    @pytest.mark.parametrize(
        ("failure", "working"),
        [(None, ()), (float("nan"), (0, 1)), (float("inf"), range(0, EPISODES, 2)), (float("-inf"), (3,))],
    )
    def test_failed_evaluations_do_not_stop_it(
        self, prepared: StrategyFactory, failure: float | None, working: Collection[int]
    ) -> None:
        """All fail, all but the first, every second one, all but one."""
        space = toy_space()
        reward, strategy = toy_reward(space), prepared(space, 0, None)
        for episode in range(EPISODES):
            policy = strategy.ask()[0].policy
            assert space.contains(policy)
            strategy.tell(policy, reward(policy) if episode in working else failure)
        assert (strategy.told, strategy.failed) == (EPISODES, EPISODES - len(working))

    def test_abandoned_evaluations_do_not_stop_it(self, prepared: StrategyFactory) -> None:
        """Whose rewards only say: worse than the best."""
        space = toy_space()
        reward, strategy = toy_reward(space), prepared(space, 0, None)
        for episode in range(EPISODES):
            policy = strategy.ask()[0].policy
            assert space.contains(policy)
            strategy.tell(policy, reward(policy), raced=episode % 2 == 1)
        assert (strategy.told, strategy.failed) == (EPISODES, 0)

    def test_equal_rewards_do_not_stop_it(self, prepared: StrategyFactory) -> None:
        """A reward without any variation."""
        space = toy_space()
        assert all(space.contains(policy) for policy in _run(prepared(space, 0, None), lambda _: 0.5))

    def test_asking_again_gives_the_same_proposal(self, prepared: StrategyFactory) -> None:
        """Until it is told; and asking again does not change what follows."""
        space = toy_space()
        patient, impatient = (prepared(space, 0, None) for _ in range(2))
        reward = toy_reward(space)
        for _ in range(EPISODES):
            asked = patient.ask()
            assert [impatient.ask() for _ in range(3)] == [asked] * 3
            for strategy in (patient, impatient):
                strategy.tell(asked[0], reward(asked[0].policy))

    def test_results_it_did_not_ask_for_are_harmless(self, prepared: StrategyFactory) -> None:
        """They are learned from or ignored, and the proposal in flight stays in flight."""
        space = toy_space()
        strategy = prepared(space, 0, None)
        foreign = space.fit(np.arange(2 * len(space.searched), dtype=np.float64).reshape(-1, 2))
        for _ in range(EPISODES):
            asked = strategy.ask()
            strategy.tell(foreign, -0.5)
            if asked[0].policy != foreign:
                assert strategy.ask() == asked
                strategy.tell(asked[0], -0.4)

    def test_a_policy_outside_the_space_is_refused(self, prepared: StrategyFactory) -> None:
        """Over budget, with other bits for a fixed layer, or for another network."""
        space = toy_space()
        inside = space.uniform(3)
        for outside in (space.uniform(8), inside.with_({"fc": 3}), Policy({"other": 3})):
            with pytest.raises(InputError):
                prepared(space, 0, None).tell(outside, 0.0)

    def test_an_unknown_option_is_refused(self, prepared: StrategyFactory) -> None:
        """With an error that names it."""
        with pytest.raises(InputError, match="no_such_option"):
            prepared(toy_space(), 0, {"no_such_option": 1})

    def test_it_describes_itself(self, prepared: StrategyFactory) -> None:
        """In plain JSON, with its name, seed, options and counts."""
        space = toy_space()
        strategy = prepared(space, 7, None)
        _run(strategy, toy_reward(space), 3)
        facts = json.loads(json.dumps(strategy.describe(), allow_nan=False))
        assert (facts["strategy"], facts["seed"], facts["told"], facts["failed"]) == (strategy.name, 7, 3, 0)
        assert isinstance(facts["options"], dict)


def _run(strategy: Strategy, reward: Reward, episodes: int = EPISODES) -> list[Policy]:
    policies = []
    for _ in range(episodes):
        (proposal,) = strategy.ask()
        policies.append(proposal.policy)
        strategy.tell(proposal, reward(proposal.policy))
    return policies


def _journal(strategy: Strategy, reward: Callable[[Policy], float]) -> list[str]:
    """Run rounds of several proposals, told last first, some failed and some abandoned; return a line per event."""
    lines: list[dict[str, Any]] = []
    for number, count in enumerate(ROUNDS):
        asked = strategy.ask(count)
        lines.append({"ask": count, "proposals": [_plain(proposal) for proposal in asked]})
        for proposal in reversed(asked):
            value = None if len(lines) % 5 == 4 else reward(proposal.policy)
            raced = value is not None and number % 3 == 2
            strategy.tell(proposal, value, raced=raced)
            lines.append({"proposal": _plain(proposal), "reward": value, "raced": raced})
    return [json.dumps(line) for line in lines]


def _plain(proposal: Proposal) -> list[Any]:
    return [json.loads(json.dumps(proposal.policy.widths())), proposal.steps]


def _global_states() -> list[Any]:
    numbers = np.random.get_state()  # noqa: NPY002 (to see that it is not used)
    torch = sys.modules.get("torch")
    drawn = None if torch is None else torch.get_rng_state().tolist()
    threads = None if torch is None else torch.get_num_threads()
    return [
        random.getstate(),
        [part if np.isscalar(part) else np.asarray(part).tolist() for part in numbers],
        drawn,
        threads,
    ]
