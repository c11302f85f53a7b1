import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from arquant.base.errors import InputError
from arquant.certificates.bounds import (
    certified_radius,
    clopper_pearson_lower,
    clopper_pearson_upper,
    l1_radius_laplace,
    two_sided_radius,
)
from arquant.certificates.claims import claim


def test_a_one_sided_claim_is_clopper_pearson_and_its_radius():
    found = claim([450, 250, 500], 500, 0.001, 0.5)
    assert found.p_upper is None
    assert found.p_lower[0] == clopper_pearson_lower(450, 500, 0.001)
    assert found.radius[0] == certified_radius(found.p_lower[0], 0.5)
    assert found.radius[1] == 0.0
    assert claim(450, 500, 0.001, 0.5, noise_kind="laplace").radius[0] == l1_radius_laplace(found.p_lower[0], 0.5)


@given(st.integers(0, 500), st.integers(0, 500))
def test_a_two_sided_claim_halves_alpha_and_is_positive_only_where_the_bounds_part(votes, runner_up):
    runner_up = min(runner_up, 500 - votes)
    found = claim(votes, 500, 0.01, 0.5, runner_up=runner_up)
    assert found.p_upper is not None
    assert found.p_lower[0] == clopper_pearson_lower(votes, 500, 0.005)
    assert found.p_upper[0] == clopper_pearson_upper(runner_up, 500, 0.005)
    assert found.radius[0] == two_sided_radius(found.p_lower[0], found.p_upper[0], 0.5)
    if found.p_lower[0] <= found.p_upper[0] and found.p_lower[0] <= 0.5:
        assert found.radius[0] == 0.0


def test_a_two_sided_claim_certifies_below_one_half():
    assert claim(400, 1000, 0.001, 0.5).radius[0] == 0.0
    assert claim(400, 1000, 0.001, 0.5, runner_up=100).radius[0] > 0.0


def test_two_sided_claims_cover_with_many_classes():
    # one class at 0.4 and six at 0.1: the most-voted other class is a random one, and still needs no correction
    p = np.array([0.4] + [0.1] * 6)
    counts = np.random.default_rng(0).multinomial(300, p, size=20_000)
    found = claim(counts[:, 0], 300, 0.05, 1.0, runner_up=counts[:, 1:].max(axis=1))
    exact = (stats.norm.ppf(0.4) - stats.norm.ppf(0.1)) / 2
    assert np.sum(found.radius > exact) <= stats.binom.isf(1e-5, 20_000, 0.05)
    assert np.mean(found.radius > 0) > 0.99


def test_two_sided_claims_need_gaussian_noise():
    with pytest.raises(InputError, match="laplace"):
        claim(450, 500, 0.001, 0.5, noise_kind="laplace", runner_up=3)
    with pytest.raises(InputError, match="cauchy"):
        claim(450, 500, 0.001, 0.5, noise_kind="cauchy")
