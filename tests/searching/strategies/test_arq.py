"""The default strategy: a design, the model's optimum, finals by successive halving, and more of the same."""

import numpy as np
import pytest

from arquant.searching.strategies.arq import Arq
from arquant.searching.strategy import Proposal
from arquant.searching.testing import toy_context, toy_reward, toy_space

SHORT, FIRST, LAST = None, 8, 20
"""steps of the toy context: 2, four times as many, and the 20 of the final fine-tuning in place of 26"""


@pytest.fixture
def prepared(tmp_path):
    def make(space=None, **options):
        space = space or toy_space("bops<=3bit")
        strategy = Arq(space, 0, options)
        strategy.prepare(toy_context(space, tmp_path))
        return strategy

    return make


def played(strategy, count, reward=None):
    """Ask and tell; return the proposals."""
    reward, asked = reward or toy_reward(strategy.space), []
    for _ in range(count):
        asked.append(strategy.ask()[0])
        strategy.tell(asked[-1], reward(asked[-1].policy))
    return asked


def planted(strategy):
    """A reward that the model can express, with losses that grow with depth, of activations faster."""
    grouping, count = strategy._grouping, strategy._grouping.count
    losses = np.concatenate([0.01 * np.arange(1, count + 1), 0.03 * np.arange(1, count + 1) ** 2])
    return lambda policy: 0.5 - float(grouping.features(grouping.space.bits(policy)) @ losses)


def test_two_candidates_a_group_then_the_optimum_then_the_finals(prepared):
    strategy = prepared()
    design = strategy._grouping.parameters
    asked = played(strategy, design + 30)
    steps = [proposal.steps for proposal in asked]
    assert steps[: design + 1] == [SHORT] * (design + 1)
    uniform = [strategy.space.uniform(pair) for pair in strategy.space.uniform_pairs]
    first = [proposal.policy for proposal in asked if proposal.steps == FIRST][: len(uniform) + 4]
    assert set(uniform) <= set(first)
    finals = steps[design + 1 :]
    assert finals[: finals.index(LAST)] == [FIRST] * finals.index(LAST)
    assert finals[finals.index(LAST) :][:4] == [LAST, LAST, LAST, SHORT]


def test_the_finals_go_to_the_best_of_the_longer_look(prepared):
    strategy = prepared()
    reward = toy_reward(strategy.space)
    asked = played(strategy, strategy._grouping.parameters + 15)
    first = {proposal.policy: reward(proposal.policy) for proposal in asked if proposal.steps == FIRST}
    last = [proposal.policy for proposal in asked if proposal.steps == LAST]
    assert len(last) == 3
    assert set(last) == set(sorted(first, key=first.__getitem__, reverse=True)[:3])


def test_its_optimum_beats_every_uniform_pair_and_the_design(prepared):
    strategy = prepared()
    reward = planted(strategy)
    *design, optimum = played(strategy, strategy._grouping.parameters + 1, reward)
    uniform = [strategy.space.uniform(pair) for pair in strategy.space.uniform_pairs]
    assert reward(optimum.policy) > max(reward(policy) for policy in uniform)
    assert reward(optimum.policy) >= max(reward(proposal.policy) for proposal in design)


def test_no_look_is_longer_than_what_ships_is_fine_tuned(prepared):
    assert {proposal.steps for proposal in played(prepared(), 40)} == {SHORT, FIRST, LAST}


def test_a_round_of_the_design_holds_different_experiments(prepared):
    strategy = prepared()
    design = strategy._grouping.parameters
    asked = strategy.ask(design + 5)
    assert len(set(asked)) == design
    one_by_one = prepared()
    assert asked == played(one_by_one, design)


def test_what_another_budget_found_out_is_not_measured_again(prepared):
    tight, wide = prepared(toy_space("bops<=2.5bit")), prepared(toy_space("bops<=5bit"))
    reward = planted(wide)
    for proposal in played(wide, wide._grouping.parameters, reward):
        tight.overhear(proposal, reward(proposal.policy))
    (optimum,) = tight.ask()
    assert optimum.steps is SHORT
    assert tight.space.contains(optimum.policy)
    assert reward(optimum.policy) > max(reward(tight.space.uniform(pair)) for pair in tight.space.uniform_pairs)


def test_failures_count_as_tried(prepared):
    strategy = prepared()
    for _ in range(strategy._grouping.parameters + 4):
        strategy.tell(strategy.ask()[0], None)
    assert isinstance(strategy.ask()[0], Proposal)
