"""Searching pays: on a separable, noisy reward, learning strategies end above random search and the uniform policies."""

from functools import cache

import numpy as np
import pytest

from arquant.searching.method import find_method
from arquant.searching.testing import toy_reward, toy_space

EVALUATIONS = 30
SEEDS = range(3)
SHORTLIST = 3
OPTIONS = {"arq-ddpg": {"episodes": EVALUATIONS, "hidden": 64}}


@cache
def found(name: str) -> float:
    """The mean over seeds of the exact reward of the best of a shortlist, chosen by noisy rewards."""
    ends = []
    for seed in SEEDS:
        space = toy_space()
        noisy, exact = toy_reward(space, seed=seed, noise=0.01), toy_reward(space, seed=seed)
        strategy = find_method(name).strategy(space, seed, OPTIONS.get(name))
        told = []
        for _ in range(EVALUATIONS):
            policy = strategy.ask()[0].policy
            told.append((noisy(policy), policy))
            strategy.tell(*reversed(told[-1]))
        best = sorted(told, key=lambda pair: -pair[0])[:SHORTLIST]
        ends.append(max(exact(policy) for _, policy in best))
    return float(np.mean(ends))


@pytest.mark.parametrize("name", ["evolve", "additive", "arq", "arq-ddpg"])
def test_learning_beats_random_search_and_uniform_policies(name):
    random, uniform = found("random"), found("uniform")
    assert found(name) > max(random, uniform) + 0.01
