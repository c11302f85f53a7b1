import pytest

from arquant.quantization.policy import Bits
from arquant.searching.method import find_method
from arquant.searching.shortlist import shortlisted
from arquant.searching.strategies.uniform import Pact, Uniform
from arquant.searching.strategy import Proposal
from arquant.searching.testing import toy_space
from tests.searching.test_shortlist import studied


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


@pytest.mark.parametrize("budget", ["bops<=2bit", "bops<=4bit", "bops<=5.5bit", "bytes<=3bit"])
@pytest.mark.parametrize("low", [1, 2])
def test_there_are_never_more_pairs_than_the_shortlist_of_the_method_holds(budget, low):
    assert len(toy_space(budget, min_bits=low).uniform_pairs) <= find_method("uniform").shortlist


def test_every_pair_gets_the_second_look_of_a_finalist(tmp_path):
    with studied(tmp_path, Uniform, budgets=("bops<=4bit",)) as study:
        (track,) = study.tracks
        pairs = track.space.uniform_pairs
        assert len(pairs) > 3
        members = shortlisted(track, study.standings, find_method("uniform").shortlist)
        assert {each.policy for each in members} == {track.space.uniform(pair) for pair in pairs}
