"""What every strategy must do, as pytest tests to inherit:

class TestMine(StrategyConformance):
    @pytest.fixture
    def strategy_factory(self):
        return Mine
"""

import io
import json
import random
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.quantization.policy import Bits, Policy
from arquant.searching.space import Space
from arquant.searching.strategy import State, Strategy
from arquant.searching.testing.search import toy_layers, toy_reward, toy_space

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


class StrategyConformance:
    """Tests of the guarantees that `arquant.searching.strategy.Strategy` states; override `strategy_factory`."""

    @pytest.fixture
    def strategy_factory(self) -> StrategyFactory:
        """Makes a strategy of a space, a seed and options; a class derived from `Strategy` is one."""
        raise NotImplementedError("override the fixture strategy_factory")

    def test_a_seed_determines_every_policy(self, strategy_factory: StrategyFactory) -> None:
        """Two runs with the same seed and rewards propose the same."""
        space = toy_space()
        first, second = (_run(strategy_factory(space, 3, None), toy_reward(space)) for _ in range(2))
        assert first == second

    def test_global_random_numbers_are_left_alone(self, strategy_factory: StrategyFactory) -> None:
        """Neither read nor advanced: the states of `random`, NumPy and torch are as before."""
        before = _global_states()
        space = toy_space()
        _run(strategy_factory(space, 0, None), toy_reward(space), 4)
        assert _global_states() == before

    @pytest.mark.parametrize("budget", BUDGETS)
    def test_every_policy_is_within_the_budget(self, strategy_factory: StrategyFactory, budget: str) -> None:
        """Each limit holds for each policy, and every layer has bits within the range."""
        space = toy_space(budget)
        for policy in _run(strategy_factory(space, 0, None), toy_reward(space)):
            policy.check(space.layers)
            for limit in space.budget.limits:
                assert limit.cost.cost(policy, space.layers) <= limit.amount * (1 + 1e-12)
            assert all(2 <= bits.w <= 8 and 2 <= bits.a <= 8 for bits in policy.values())

    def test_fixed_layers_keep_their_bits(self, strategy_factory: StrategyFactory) -> None:
        """First, last and kept layers are the same in every policy."""
        space = toy_space("bops<=3.5bit", keep={"conv2": "w5a7"})
        for policy in _run(strategy_factory(space, 0, None), toy_reward(space)):
            assert (policy["conv0"], policy["fc"], policy["conv2"]) == (Bits(8, 8), Bits(8, 8), Bits(5, 7))

    def test_the_range_of_bits_is_respected(self, strategy_factory: StrategyFactory) -> None:
        """`min_bits` and `max_bits` hold for the searched layers."""
        space = toy_space("bops<=4bit", min_bits=3, max_bits=5)
        for policy in _run(strategy_factory(space, 0, None), toy_reward(space)):
            assert ((space.bits(policy) >= 3) & (space.bits(policy) <= 5)).all()

    def test_one_searched_layer_is_enough(self, strategy_factory: StrategyFactory) -> None:
        """A network of three layers, the first and the last of them fixed."""
        space = toy_space(layers=toy_layers(2))
        assert len(space.searched) == 1
        assert all(space.contains(policy) for policy in _run(strategy_factory(space, 0, None), toy_reward(space)))

    def test_one_possible_policy_is_enough(self, strategy_factory: StrategyFactory) -> None:
        """A budget that leaves no choice."""
        space = toy_space("bops<=2bit", max_bits=2)
        assert set(_run(strategy_factory(space, 0, None), toy_reward(space), 4)) == {space.uniform(2)}

    @pytest.mark.parametrize(("after", "asked"), [(0, False), (1, True), (5, False), (6, True)])
    def test_a_restored_strategy_continues_alike(
        self, strategy_factory: StrategyFactory, after: int, asked: bool
    ) -> None:
        """Through files, at any episode, before or after `ask`; into a strategy of another seed."""
        space = toy_space()
        original = strategy_factory(space, 1, None)
        _run(original, toy_reward(space), after)
        if asked:
            original.ask()
        restored = strategy_factory(space, 99, None)
        restored.restore(_through_files(original.state()))
        assert _run(restored, toy_reward(space)) == _run(original, toy_reward(space))
        assert _same(restored.state(), original.state())

    def test_a_saved_state_does_not_change(self, strategy_factory: StrategyFactory) -> None:
        """What `state` returned is not overwritten by what is learned later."""
        space = toy_space()
        strategy = strategy_factory(space, 0, None)
        _run(strategy, toy_reward(space), 4)
        state = strategy.state()
        copy = _through_files(state)
        _run(strategy, toy_reward(space), 4)
        assert _same(state, copy)

    def test_a_state_of_another_search_is_refused(self, strategy_factory: StrategyFactory) -> None:
        """Other layers, or another strategy."""
        state = strategy_factory(toy_space(), 0, None).state()
        with pytest.raises(MismatchError):
            strategy_factory(toy_space(layers=toy_layers(4)), 0, None).restore(state)
        with pytest.raises(MismatchError):
            strategy_factory(toy_space(), 0, None).restore(({**state[0], "strategy": "another"}, state[1]))

    @pytest.mark.parametrize(
        ("failure", "working"),
        [(None, ()), (float("nan"), (0, 1)), (float("inf"), range(0, EPISODES, 2)), (float("-inf"), (3,))],
    )
    def test_failed_evaluations_do_not_stop_it(
        self, strategy_factory: StrategyFactory, failure: float | None, working: Collection[int]
    ) -> None:
        """All fail, all but the first, every second one, all but one."""
        space = toy_space()
        reward, strategy = toy_reward(space), strategy_factory(space, 0, None)
        for episode in range(EPISODES):
            policy = strategy.ask()
            assert space.contains(policy)
            strategy.tell(policy, reward(policy) if episode in working else failure)
        assert (strategy.told, strategy.failed) == (EPISODES, EPISODES - len(working))

    def test_abandoned_evaluations_do_not_stop_it(self, strategy_factory: StrategyFactory) -> None:
        """Whose rewards only say: worse than the best."""
        space = toy_space()
        reward, strategy = toy_reward(space), strategy_factory(space, 0, None)
        for episode in range(EPISODES):
            policy = strategy.ask()
            assert space.contains(policy)
            strategy.tell(policy, reward(policy), raced=episode % 2 == 1)
        assert (strategy.told, strategy.failed) == (EPISODES, 0)

    def test_equal_rewards_do_not_stop_it(self, strategy_factory: StrategyFactory) -> None:
        """A reward without any variation."""
        space = toy_space()
        assert all(space.contains(policy) for policy in _run(strategy_factory(space, 0, None), lambda _: 0.5))

    def test_asking_again_gives_the_same_policy(self, strategy_factory: StrategyFactory) -> None:
        """Until it is told; and asking again does not change what follows."""
        space = toy_space()
        patient, impatient = (strategy_factory(space, 0, None) for _ in range(2))
        reward = toy_reward(space)
        for _ in range(EPISODES):
            policy = patient.ask()
            assert [impatient.ask() for _ in range(3)] == [policy] * 3
            patient.tell(policy, reward(policy))
            impatient.tell(policy, reward(policy))

    def test_results_it_did_not_ask_for_are_harmless(self, strategy_factory: StrategyFactory) -> None:
        """They are learned from or ignored, and the policy in flight stays in flight."""
        space = toy_space()
        strategy = strategy_factory(space, 0, None)
        foreign = space.fit(np.arange(2 * len(space.searched), dtype=np.float64).reshape(-1, 2))
        for _ in range(EPISODES):
            policy = strategy.ask()
            strategy.tell(foreign, -0.5)
            if policy != foreign:
                assert strategy.ask() == policy
                strategy.tell(policy, -0.4)

    def test_a_policy_outside_the_space_is_refused(self, strategy_factory: StrategyFactory) -> None:
        """Over budget, with other bits for a fixed layer, or for another network."""
        space = toy_space()
        inside = space.uniform(3)
        for outside in (space.uniform(8), inside.with_({"fc": 3}), Policy({"other": 3})):
            with pytest.raises(InputError):
                strategy_factory(space, 0, None).tell(outside, 0.0)

    def test_an_unknown_option_is_refused(self, strategy_factory: StrategyFactory) -> None:
        """With an error that names it."""
        with pytest.raises(InputError, match="no_such_option"):
            strategy_factory(toy_space(), 0, {"no_such_option": 1})

    def test_it_describes_itself(self, strategy_factory: StrategyFactory) -> None:
        """In plain JSON, with its name, seed, options and counts."""
        space = toy_space()
        strategy = strategy_factory(space, 7, None)
        _run(strategy, toy_reward(space), 3)
        facts = json.loads(json.dumps(strategy.describe(), allow_nan=False))
        assert (facts["strategy"], facts["seed"], facts["told"], facts["failed"]) == (strategy.name, 7, 3, 0)
        assert isinstance(facts["options"], dict)


def _run(strategy: Strategy, reward: Reward, episodes: int = EPISODES) -> list[Policy]:
    policies = []
    for _ in range(episodes):
        policies.append(strategy.ask())
        strategy.tell(policies[-1], reward(policies[-1]))
    return policies


def _through_files(state: State) -> State:
    data, arrays = state
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        return json.loads(json.dumps(data, allow_nan=False)), dict(loaded)


def _same(one: State, other: State) -> bool:
    (data, arrays), (other_data, other_arrays) = one, other
    equal = all(np.array_equal(arrays[key], other_arrays.get(key, np.empty(0)), equal_nan=True) for key in arrays)
    return data == other_data and list(arrays) == list(other_arrays) and equal


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
