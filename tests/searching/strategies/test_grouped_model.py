"""The model of what widths cost finds planted losses, and the design that it learns from determines them."""

import numpy as np
import pytest

from arquant.searching.strategies.grouped_model import GroupedModel, Grouping, least_certain
from arquant.searching.testing import toy_space


@pytest.fixture
def grouping():
    return Grouping(toy_space("bops<=3bit"), 3)


def designed(grouping, count, seed=0):
    pool, known = grouping.pool(np.random.default_rng(seed)), []
    for _ in range(count):
        known.append(least_certain(grouping, [policy for policy in pool if policy not in known], known))
    return known


def test_features_are_the_mean_noise_power_of_a_group(grouping):
    space = grouping.space
    lowest = np.full((len(space.searched), 2), space.min_bits)
    assert grouping.features(lowest) == pytest.approx(np.ones(2 * grouping.count))
    assert grouping.features(lowest + np.array([1, 2])) == pytest.approx(np.repeat([1 / 4, 1 / 16], grouping.count))


def test_the_pool_is_within_the_budget_and_uniform_in_each_group(grouping):
    pool = grouping.pool(np.random.default_rng(1))
    assert len(pool) == len(set(pool)) > 50
    for policy in pool:
        assert grouping.space.contains(policy)
        bits = grouping.space.bits(policy)
        assert all(len({tuple(row) for row in bits[grouping.label == group]}) == 1 for group in range(grouping.count))


def test_the_design_tells_all_losses_and_the_level_apart(grouping):
    count = grouping.parameters
    features = np.stack([grouping.features(grouping.space.bits(policy)) for policy in designed(grouping, count)])
    design = np.concatenate([np.ones((count, 1)), features], axis=1)
    assert design.shape == (count, count)
    assert np.linalg.matrix_rank(design, tol=0.05) == count


def test_it_recovers_planted_losses_and_their_best_policy(grouping):
    space, planted = grouping.space, np.array([0.01, 0.02, 0.04, 0.02, 0.05, 0.15])[: 2 * grouping.count]

    def reward(bits):
        return 0.5 - float(grouping.features(bits) @ planted)

    model = GroupedModel(grouping, [(space.bits(p), reward(space.bits(p))) for p in designed(grouping, 9)])
    assert model.losses == pytest.approx(planted, abs=0.03)
    best = model.best_policy()
    assert space.contains(best)
    everything = grouping.pool(np.random.default_rng(5))
    others = sorted((reward(space.bits(policy)) for policy in everything), reverse=True)
    assert reward(space.bits(best)) >= others[len(others) // 100]
    assert model.predict(space.bits(best)) == pytest.approx(reward(space.bits(best)), abs=0.02)


def test_cheaper_weights_leave_more_bits_to_the_activations(grouping):
    space = grouping.space
    model = GroupedModel(grouping, [])
    full, light = (space.bits(model.best_policy(share)) for share in (1.0, 0.05))
    assert light[:, 0].sum() < full[:, 0].sum()
    assert light[:, 1].sum() > full[:, 1].sum()


@pytest.mark.parametrize("rewards", [[0.4], [0.4, 0.4, 0.4]])
def test_results_that_say_nothing_leave_all_losses_equal(grouping, rewards):
    space = grouping.space
    results = [(space.bits(policy), reward) for policy, reward in zip(designed(grouping, 3), rewards, strict=False)]
    assert GroupedModel(grouping, results).best_policy() == GroupedModel(grouping, []).best_policy()
