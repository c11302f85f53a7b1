import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.searching.strategies.evolve import Evolve
from arquant.searching.strategy import Proposal
from arquant.searching.testing import toy_reward, toy_space


def test_it_begins_with_the_uniform_pairs():
    space = toy_space()
    strategy = Evolve(space)
    for bits in ("w3a3", "w2a4", "w4a2"):
        assert strategy.ask() == [Proposal(space.uniform(bits))]
        strategy.tell(space.uniform(bits), 0.0)
    assert len({bits for name, bits in strategy.ask()[0].policy.items() if name in space.searched}) > 1


def test_children_resemble_the_best_parent():
    space = toy_space()
    strategy = Evolve(space, 0, {"tournament": 20, "crossover": 0, "mutations": 1})
    population = [(space.bits(space.uniform(pair)), float(str(pair) == "w2a4")) for pair in space.uniform_pairs]
    children = [space.bits(strategy._child(population)) for _ in range(20)]
    assert all(np.abs(child - [2, 4]).sum() < np.abs(child - [4, 2]).sum() for child in children)
    assert len({child.tobytes() for child in children}) > 5


def test_crossing_takes_each_layer_from_a_parent():
    space = toy_space("bytes<=4bit")
    strategy = Evolve(space, 0, {"tournament": 1, "crossover": 1, "mutations": 1})
    low, high = np.full((len(space.searched), 2), 2), np.full((len(space.searched), 2), 6)
    mixed = [strategy._crossed([(low, 0.0), (high, 0.0)]) for _ in range(20)]
    assert all((bits[:, 0] == bits[:, 1]).all() for bits in mixed)
    assert {2, 6} <= set(np.unique([bits for bits in mixed if len(np.unique(bits)) == 2]))


def test_only_the_latest_become_parents():
    space = toy_space()
    strategy = Evolve(space, 0, {"population": 2, "tournament": 2})
    for pair, reward in zip(space.uniform_pairs, (9.0, 1.0, 0.0), strict=True):
        strategy.tell(space.uniform(pair), reward)
    population = list(strategy._history)[-2:]
    parents = {str(strategy._parent(population).tolist()) for _ in range(20)}
    assert str(space.bits(space.uniform(3)).tolist()) not in parents


def test_children_are_new_and_failures_are_not_bred():
    space = toy_space()
    strategy, reward = Evolve(space), toy_reward(space)
    seen = []
    for episode in range(60):
        seen.append(strategy.ask()[0].policy)
        strategy.tell(seen[-1], None if episode % 3 == 2 else reward(seen[-1]))
    assert len(set(seen)) == 60
    assert len(list(strategy._history)) == 40


@pytest.mark.parametrize(
    "options", [{"tournament": 0}, {"tournament": 9, "population": 8}, {"crossover": 1.5}, {"mutations": 0.5}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match="evolve needs"):
        Evolve(toy_space(), 0, options)
