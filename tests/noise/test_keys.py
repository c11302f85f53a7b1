import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import InputError
from arquant.noise.keys import PURPOSES, fresh_seed, noise_key

FROZEN = ("select", "certify")
addresses = st.tuples(
    st.integers(0, 2**128), st.sampled_from(PURPOSES), st.text("0123456789abcdef", min_size=1, max_size=4)
).map(lambda address: address if address[1] in FROZEN else (*address[:2], None))


def test_known_answers() -> None:
    """A change here changes every published certificate's noise."""
    assert noise_key(0, "check").words == (907200542465978069, 1217520781364932423)
    assert noise_key(0, "certify", "abc").words == (11008446658630373076, 14129210057774800313)
    assert noise_key(7, "certify", "abc").id == "ad1b9f15e46a3878"


@given(addresses, addresses)
def test_keys_differ_exactly_where_seed_purpose_or_fingerprint_do(first, second) -> None:
    a, b = noise_key(*first), noise_key(*second)
    assert (a.words == b.words) == (first == second)
    assert (a.id == b.id) == (first == second)
    assert all(0 <= word < 2**64 for word in a.words)


def test_numpy_seeds_are_the_same_seeds() -> None:
    assert noise_key(np.int64(5), "train") == noise_key(5, "train")


def test_repr_does_not_reveal_the_key() -> None:
    key = noise_key(0, "certify", "abc")
    assert str(key.words[0]) not in repr(key)


@pytest.mark.parametrize("seed", [-1, 0.5, True, "0", None])
def test_bad_seed(seed) -> None:
    with pytest.raises(InputError, match="seed"):
        noise_key(seed, "train")


def test_bad_purpose() -> None:
    with pytest.raises(InputError, match=r"purpose.*guess"):
        noise_key(0, "guess")


@pytest.mark.parametrize("purpose", FROZEN)
@pytest.mark.parametrize("fingerprint", [None, ""])
def test_claims_need_a_frozen_model(purpose, fingerprint) -> None:
    with pytest.raises(InputError, match="fingerprint"):
        noise_key(0, purpose, fingerprint)


@pytest.mark.parametrize("purpose", sorted(set(PURPOSES) - set(FROZEN)))
def test_other_purposes_take_no_fingerprint(purpose) -> None:
    with pytest.raises(InputError, match="abc"):
        noise_key(0, purpose, "abc")


def test_fresh_seeds_are_new_and_usable() -> None:
    seeds = {fresh_seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**128 for seed in seeds)
    noise_key(fresh_seed(), "predict")


def test_fresh_seeds_have_128_bits_that_no_seeded_generator_repeats() -> None:
    """False alarm: 2^-160 that all of twenty are small."""
    seeds = []
    for _ in range(20):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        seeds.append(fresh_seed())
    assert len(set(seeds)) == 20
    assert max(seeds) >= 2**120
