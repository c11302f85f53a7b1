from dataclasses import replace

import pytest

from arquant.quantization.policy import Bits
from arquant.searching.strategies.arq import longer_looks
from arquant.searching.strategies.uniform import Pact, Uniform
from arquant.searching.strategy import Proposal
from arquant.searching.testing import toy_context, toy_space


def test_every_pair_once_then_the_best_of_them():
    space = toy_space()
    strategy = Uniform(space)
    rewards = {Bits(3, 3): 0.2, Bits(2, 4): 0.5, Bits(4, 2): None}
    for bits, reward in rewards.items():
        assert not strategy.finished
        assert strategy.ask() == [Proposal(space.uniform(bits))]
        strategy.tell(space.uniform(bits), reward)
    assert strategy.finished
    assert strategy.ask() == [Proposal(space.uniform("w2a4"))]


def test_pairs_told_before_are_not_asked_for():
    space = toy_space()
    strategy = Uniform(space)
    strategy.tell(space.uniform(3), 0.1)
    assert strategy.ask() == [Proposal(space.uniform("w2a4"))]


@pytest.mark.parametrize(
    ("budget", "bits"), [("bops<=3bit", 3), ("bops<=2.9bit", 2), ("bops<=100%", 8), ("bytes<=5bit", 5)]
)
def test_pact_has_one_width_the_largest_that_fits(budget, bits):
    space = toy_space(budget)
    strategy = Pact(space)
    assert strategy.ask() == [Proposal(space.uniform(bits))]
    strategy.tell(space.uniform(bits), 0.1)
    assert strategy.finished


def test_a_round_holds_no_pair_twice():
    space = toy_space()
    strategy = Uniform(space)
    pairs = [Proposal(space.uniform(bits)) for bits in ("w3a3", "w2a4", "w4a2")]
    assert strategy.ask(5) == pairs
    strategy.tell(pairs[1], 0.5)
    assert strategy.ask(5) == [pairs[0], pairs[2]], "told ones do not come back while others are in flight"


def test_all_pairs_that_fit_if_asked_for():
    space = toy_space()
    found = [proposal.policy for proposal in Uniform(space, 0, {"all": True}).ask(20)]
    assert found == [space.uniform(bits) for bits in ("w3a3", "w2a4", "w4a2", "w2a3", "w3a2", "w2a2")]


@pytest.mark.parametrize(("short", "full", "look"), [(60, 1000, 780), (60, 300, 300), (60, 40, None)])
def test_every_pair_is_looked_at_as_long_as_the_last_finalists(tmp_path, short, full, look):
    context = toy_context(toy_space(), tmp_path)
    recipes = {"recipe": replace(context.recipe, steps=short), "final_recipe": replace(context.recipe, steps=full)}
    strategy = Uniform(toy_space())
    strategy.prepare(replace(context, **recipes))
    pairs = [Proposal(toy_space().uniform(bits), look) for bits in ("w3a3", "w2a4", "w4a2")]
    assert strategy.ask(5) == pairs
    assert look is None or look == longer_looks(short, full)[-1], "that of arq"
    for proposal, reward in zip(pairs, (0.2, 0.5, 0.1), strict=True):
        if look is not None:
            strategy.tell(Proposal(proposal.policy), 0.9)
            assert proposal in strategy.ask(5), "a shorter look does not stand for it"
        strategy.tell(proposal, reward)
    assert strategy.ask() == [pairs[1]]
    assert Uniform.foreseen([toy_space()], {}, short, full) == ([look or short] * 3, [look or short])
