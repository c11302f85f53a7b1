"""The space of a search: what it contains, and how wishes are fitted to a budget."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arquant.base.errors import InputError
from arquant.models.tracing.layers import find_layers
from arquant.quantization.policy import Bits, Policy
from arquant.searching.testing import toy_classifier, toy_layers, toy_space
from tests.support.networks import layers_of

BUDGETS = ("bops<=2bit", "bops<=2.5bit", "bops<=3bit", "bytes<=3bit", "bops<=4bit,bytes<=2.5bit", "bops<=100%")
SPACES = {text: toy_space(text) for text in BUDGETS}
N = len(SPACES["bops<=3bit"].searched)


def wishes(low: float = -20, high: float = 20):
    return st.lists(st.floats(low, high), min_size=2 * N, max_size=2 * N).map(lambda row: np.array(row).reshape(-1, 2))


def test_first_last_and_kept_layers_are_not_searched():
    space = toy_space(keep={"conv2": 5})
    assert space.searched == ("conv1", "conv3", "conv4", "conv5")
    assert dict(space.fixed) == {"conv0": Bits(8, 8), "conv2": Bits(5, 5), "fc": Bits(8, 8)}


def test_bits_and_policy_are_inverse():
    space = SPACES["bops<=3bit"]
    bits = np.arange(2 * N).reshape(-1, 2) % 7 + 2
    policy = space.policy(bits)
    assert list(policy) == list(space.layers.names)
    assert (space.bits(policy) == bits).all()
    assert policy["conv1"] == Bits(2, 3)
    assert policy["fc"] == Bits(8, 8)


def test_uniform_pairs_of_the_three_bit_budget():
    assert SPACES["bops<=3bit"].uniform_pairs == (Bits(3, 3), Bits(2, 4), Bits(4, 2))


def test_uniform_pairs_leave_out_what_can_be_improved():
    assert SPACES["bytes<=3bit"].uniform_pairs == (Bits(3, 8),)
    assert SPACES["bops<=100%"].uniform_pairs == (Bits(8, 8),)
    assert SPACES["bops<=2bit"].uniform_pairs == (Bits(2, 2),)


def test_allows_agrees_with_the_budget():
    rng = np.random.default_rng(0)
    for space in SPACES.values():
        for _ in range(50):
            bits = rng.integers(2, rng.integers(3, 10), (N, 2))
            assert space.allows(bits) == space.budget.allows(space.policy(bits))


@pytest.mark.parametrize(
    ("policy", "inside"),
    [
        (SPACES["bops<=3bit"].uniform(3), True),
        (SPACES["bops<=3bit"].uniform("w3a4"), False),
        (SPACES["bops<=3bit"].uniform(3).with_({"fc": 7}), False),
        (SPACES["bops<=3bit"].uniform(3).with_({"conv1": 1}), False),
        (Policy({"conv1": 3}), False),
    ],
)
def test_contains(policy, inside):
    assert SPACES["bops<=3bit"].contains(policy) is inside


@settings(max_examples=60)
@given(st.sampled_from(BUDGETS), wishes())
def test_fit_is_within_the_budget_and_no_bit_can_be_added(budget, wished):
    space = SPACES[budget]
    policy = space.fit(wished)
    assert space.contains(policy)
    bits = space.bits(policy)
    for i in np.ndindex(*bits.shape):
        more = bits.copy()
        more[i] += 1
        assert more[i] > 8 or not space.budget.allows(space.policy(more))


@settings(max_examples=40)
@given(wishes(), st.integers(-30, 30))
def test_fit_depends_on_differences_only(wished, shift):
    space = SPACES["bops<=3bit"]
    rounded = np.round(wished * 4) / 4
    assert space.fit(rounded) == space.fit(rounded + shift)


@given(st.sampled_from(BUDGETS), st.integers(0, 2**32 - 1))
def test_fit_keeps_bits_that_use_the_budget_up(budget, seed):
    space = SPACES[budget]
    policy = space.fit(np.random.default_rng(seed).uniform(2, 8, (N, 2)))
    assert space.fit(space.bits(policy)) == policy


def test_fit_gives_first_where_the_wish_is_greatest():
    space = SPACES["bops<=2.5bit"]
    cheap = space.searched.index("conv2")
    wished = np.full((N, 2), 2.0)
    wished[cheap] = 8.0
    bits = space.bits(space.fit(wished))
    assert bits[cheap].tolist() == [8, 8]
    assert np.delete(bits, cheap, axis=0).max() < 5


def test_three_bits_are_found_for_equal_wishes_on_resnet20():
    space = toy_space(layers=layers_of("resnet20"))
    assert space.fit(np.zeros((len(space.searched), 2))) == space.uniform(3)


@pytest.mark.parametrize("max_bits", [1, 9])
def test_the_range_is_checked(max_bits):
    with pytest.raises(InputError, match=f"got {max_bits}"):
        toy_space(max_bits=max_bits)


def test_nothing_to_search_is_refused():
    with pytest.raises(InputError, match="nothing to search: all 7 layers"):
        toy_space(keep={"*": 3})


def test_an_unreachable_budget_is_refused():
    with pytest.raises(InputError, match="cannot be met"):
        toy_space("bops<=1bit")


@pytest.mark.parametrize("convolutions", [2, 6])
def test_the_toy_network_has_the_layers_of_the_toy_space(convolutions):
    found, stated = find_layers(toy_classifier(convolutions)), toy_layers(convolutions)
    facts = ("name", "kind", "in_channels", "out_channels", "kernel", "stride", "padding", "groups", "positions", "macs",
             "weight_shape", "input_size")  # fmt: skip
    for real, paper in zip(found, stated, strict=True):
        assert [getattr(real, name) for name in facts] == [getattr(paper, name) for name in facts]
