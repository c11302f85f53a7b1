import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.searching.strategies.random_search import RandomSearch, random_policy
from arquant.searching.testing import toy_space
from tests.support.networks import layers_of

BUDGETS = ("bops<=2bit", "bops<=3bit", "bytes<=3bit", "bops<=4bit,bytes<=2.5bit", "bops<=100%")
SPACES = {text: toy_space(text) for text in BUDGETS}


@given(st.sampled_from(BUDGETS), st.integers(0, 2**32 - 1))
def test_policies_use_the_budget_up(budget, seed):
    space = SPACES[budget]
    policy = random_policy(space, np.random.default_rng(seed))
    assert space.contains(policy)
    bits = space.bits(policy)
    for i in np.ndindex(*bits.shape):
        more = bits.copy()
        more[i] += 1
        assert more[i] > 8 or not space.allows(more)


def test_policies_lie_close_under_the_budget_on_resnet20():
    space = toy_space(layers=layers_of("resnet20"))
    rng = np.random.default_rng(0)
    usage = [space.budget.usage(random_policy(space, rng)) for _ in range(20)]
    assert min(usage) > 0.99


def test_every_width_is_tried_everywhere():
    space = toy_space("bops<=4bit")
    rng = np.random.default_rng(0)
    drawn = np.stack([space.bits(random_policy(space, rng)) for _ in range(300)])
    assert all(set(np.unique(drawn[:, i, j])) >= {2, 3, 4, 5, 6} for i, j in np.ndindex(*drawn.shape[1:]))


def test_no_policy_comes_twice():
    space = toy_space()
    strategy = RandomSearch(space)
    seen = []
    for _ in range(100):
        seen += strategy.ask()
        strategy.tell(seen[-1], 0.0)
    assert len(set(seen)) == 100


def test_seeds_differ():
    space = toy_space()
    assert len({RandomSearch(space, seed).ask()[0] for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", range(3))
def test_rewards_do_not_matter(seed):
    space = toy_space()
    runs = []
    for sign in (1.0, -1.0):
        strategy = RandomSearch(space, seed)
        policies = []
        for i in range(10):
            policies += strategy.ask()
            strategy.tell(policies[-1], sign * i)
        runs.append(policies)
    assert runs[0] == runs[1]
