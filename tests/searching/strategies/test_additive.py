"""The additive model: it recovers known sensitivities, and proposes what is best under them."""

import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.searching.strategies.additive import Additive, AdditiveModel, _posterior
from arquant.searching.strategies.random_search import random_policy
from arquant.searching.testing import toy_reward, toy_space


def results(space, count, *, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    reward = toy_reward(space, seed=seed, noise=noise)
    policies = [random_policy(space, rng) for _ in range(count)]
    return [(space.bits(policy), reward(policy)) for policy in policies]


def test_it_predicts_what_it_has_not_seen():
    space = toy_space("bops<=4bit")
    told, unseen = np.split(np.arange(60), [40])
    everything = results(space, 60, noise=0.002)
    model = AdditiveModel(space, [everything[i] for i in told])
    predicted = [model.predict(everything[i][0]) for i in unseen]
    actual = [everything[i][1] for i in unseen]
    assert np.corrcoef(predicted, actual)[0, 1] > 0.98


def test_without_exploration_it_proposes_the_optimum():
    space = toy_space()
    model = AdditiveModel(space, results(space, 60))
    reward = toy_reward(space)
    proposed = model.best_policy(model.losses(0.0, np.random.default_rng(0)))
    rng = np.random.default_rng(1)
    assert reward(proposed) >= max(reward(random_policy(space, rng)) for _ in range(500))


def test_losses_are_positive_and_stray_as_asked():
    space = toy_space()
    model = AdditiveModel(space, results(space, 5, noise=0.1))
    rng = np.random.default_rng(0)
    narrow, wide = (np.stack([model.losses(explore, rng) for _ in range(200)]) for explore in (0.1, 1.0))
    assert (wide > 0).all()
    assert (narrow.std(axis=0) < wide.std(axis=0)).all()


def test_more_evidence_leaves_less_doubt():
    space = toy_space()
    spreads = []
    for count in (3, 30, 100):
        model = AdditiveModel(space, results(space, count, noise=0.01))
        rng = np.random.default_rng(0)
        losses = np.stack([model.losses(1.0, rng) for _ in range(100)])
        spreads.append(float((losses.std(axis=0) / losses.mean()).mean()))
    assert spreads[0] > spreads[1] > spreads[2]


def test_the_posterior_is_that_of_bayes():
    """Against the textbook formulas with explicit inverses, and the evidence against the normal density of y."""
    rng = np.random.default_rng(0)
    design, y, mean = rng.normal(size=(7, 3)), rng.normal(size=7), rng.normal(size=3)
    root = rng.normal(size=(3, 3))
    prior, noise = root @ root.T + np.eye(3), 0.7
    evidence, got_mean, factor = _posterior(design, y, (mean, prior), noise)
    covariance = np.linalg.inv(np.linalg.inv(prior) + design.T @ design / noise**2)
    expected = covariance @ (np.linalg.inv(prior) @ mean + design.T @ y / noise**2)
    marginal = design @ prior @ design.T + noise**2 * np.eye(7)
    residual = y - design @ mean
    density = -0.5 * residual @ np.linalg.solve(marginal, residual) - 0.5 * np.linalg.slogdet(marginal)[1]
    assert np.allclose(got_mean, expected)
    assert np.allclose(factor @ factor.T, covariance)
    assert evidence == pytest.approx(density)


def test_it_finds_the_best_policy_under_noise():
    space = toy_space()
    reward, exact = toy_reward(space, noise=0.01), toy_reward(space)
    strategy = Additive(space)
    for _ in range(30):
        policy = strategy.ask()[0].policy
        strategy.tell(policy, reward(policy))
    model = AdditiveModel(space, results(space, 200))
    ideal = exact(model.best_policy(model.losses(0.0, np.random.default_rng(0))))
    uniform = max(exact(space.uniform(pair)) for pair in space.uniform_pairs)
    assert exact(strategy.ask()[0].policy) > uniform + 0.7 * (ideal - uniform)


def test_a_negative_exploration_is_refused():
    with pytest.raises(InputError, match="'explore' must not be negative, got -1"):
        Additive(toy_space(), 0, {"explore": -1})
