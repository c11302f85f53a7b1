import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from arquant.base.errors import InputError
from arquant.certificates import bounds

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "reference" / "golden_vectors.json"

# k, n, alpha, lower, upper, radius / sigma
GOLDEN = [
    (0, 100, 0.001, 0.0, 0.06674569920300895, 0.0),
    (1, 100, 0.001, 1.0004953285956376e-05, 0.08862688870395757, 0.0),
    (50, 100, 0.001, 0.34479800642531777, 0.6552019935746822, 0.0),
    (66, 100, 0.001, 0.5016499513368726, 0.7966423174848727, 0.004135826463333555),
    (450, 500, 0.001, 0.8520867646488186, 0.9369208270196471, 1.045425252239225),
    (499, 500, 0.001, 0.9816844561338748, 0.9999979990013348, 2.0898520979331447),
    (500, 500, 0.002, 0.9876477074806245, 1.0, 2.2459909898114043),
    (9000, 10000, 0.001, 0.8904097336749064, 0.9090504003967174, 1.228710061029985),
    (99999, 100000, 0.001, 0.9999076696662654, 0.9999999899949967, 3.739126668543357),
    (1000000, 1000000, 0.001, 0.9999930922685795, 1.0, 4.346773698699431),
]


@pytest.mark.parametrize(("k", "n", "alpha", "lower", "upper", "radius"), GOLDEN)
def test_clopper_pearson_reproduces_the_golden_vectors(k, n, alpha, lower, upper, radius):
    found = bounds.clopper_pearson_lower(k, n, alpha)
    assert found == pytest.approx(lower, abs=1e-9)
    assert found <= lower
    assert bounds.clopper_pearson_upper(k, n, alpha) == pytest.approx(upper, abs=1e-9)
    assert bounds.clopper_pearson_upper(k, n, alpha) >= upper
    assert bounds.certified_radius(found, 1.0) == pytest.approx(radius, abs=1e-9)


@pytest.mark.reference
def test_the_whole_reference_file_is_reproduced():
    if not REFERENCE.exists():
        pytest.skip("no ../shared beside the repository")
    golden = json.loads(REFERENCE.read_text())
    for case in golden["clopper_pearson"]:
        k, n, alpha = case["k"], case["n"], case["alpha"]
        lower = bounds.clopper_pearson_lower(k, n, alpha)
        assert lower == pytest.approx(case["lower"], abs=1e-9)
        assert bounds.clopper_pearson_upper(k, n, alpha) == pytest.approx(case["upper"], abs=1e-9)
        assert bounds.certified_radius(lower, 1.0) == pytest.approx(case["radius_over_sigma"], abs=1e-9)
        assert (lower <= 0.5) == case["abstain"]
    for case in golden["predict_two_sided_binomial"]:
        assert bounds.predict_p_value(case["nA"], case["nB"]) == pytest.approx(case["p"], abs=1e-9)
    for case in golden["half_space"]:
        assert bounds.certified_radius(case["pA"], case["sigma"]) == pytest.approx(case["exact_radius"], abs=1e-9)


def exact_tail(k, n, p):
    """P(Binomial(n, p) >= k), exactly."""
    return sum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))


@settings(max_examples=60, deadline=None)
@example(n=3, k=2, alpha=1e-6)
@example(n=80, k=79, alpha=1e-6)
@example(n=1, k=0, alpha=1e-6)
@given(st.integers(1, 80), st.integers(0, 80), st.sampled_from([0.001, 0.01, 0.05, 0.5, 1e-6]))
def test_bounds_are_rounded_to_the_safe_side_in_exact_arithmetic(n, k, alpha):
    k = min(k, n)
    lower = bounds.clopper_pearson_lower(k, n, alpha)
    if k:
        assert exact_tail(k, n, Fraction(lower)) <= Fraction(alpha)
        assert exact_tail(k, n, Fraction(lower) * (1 + Fraction(1, 10**8))) > Fraction(alpha)
    upper = bounds.clopper_pearson_upper(k, n, alpha)
    if k < n:
        assert exact_tail(n - k, n, 1 - Fraction(upper)) <= Fraction(alpha)
        assert exact_tail(n - k, n, (1 - Fraction(upper)) * (1 + Fraction(1, 10**7))) > Fraction(alpha)
    assert 0 <= lower <= k / n <= upper <= 1


@pytest.mark.parametrize("alpha", [1e-6, 0.001, 0.3])
def test_the_bounds_of_a_unanimous_vote_are_rounded_to_the_safe_side(alpha):
    mpmath = pytest.importorskip("mpmath")
    counts = np.unique(np.geomspace(1, 1e13, 200).astype(np.int64))
    with mpmath.workdps(50):
        exact = [mpmath.exp(mpmath.log(alpha) / int(n)) for n in counts]
        for n, share in zip(counts, exact, strict=True):
            lower, upper = bounds.clopper_pearson_lower(n, n, alpha), bounds.clopper_pearson_upper(0, n, alpha)
            assert share - 1e-11 * min(share, 1 - share) - 4e-16 < lower <= share
            assert 1 - share <= upper < (1 - share) * (1 + 1e-11) + 4e-16


def test_bounds_stay_inside_0_and_1_at_extreme_levels():
    assert bounds.clopper_pearson_upper(0, 1, 1e-20) == 1.0
    assert 0 <= bounds.clopper_pearson_lower(1, 1, 1e-200) < 1e-199
    with pytest.raises(InputError, match="alpha must be at least 1e-200, got 1e-300"):
        bounds.clopper_pearson_lower(1, 1, 1e-300)
    assert bounds.clopper_pearson_lower(10**12, 10**12, 0.999) < 1.0


@given(st.integers(1, 10**6), st.floats(1e-9, 0.4), st.floats(0, 1))
def test_upper_mirrors_lower(n, alpha, share):
    k = int(share * n)
    mirrored = 1 - bounds.clopper_pearson_lower(n - k, n, alpha)
    assert bounds.clopper_pearson_upper(k, n, alpha) == pytest.approx(mirrored, abs=1e-10)


def test_bounds_grow_with_votes_and_with_alpha():
    votes = np.arange(501)
    lower = bounds.clopper_pearson_lower(votes, 500, 0.001)
    assert np.all(np.diff(lower) > 0)
    assert np.all(bounds.clopper_pearson_lower(votes[1:], 500, 0.01) > lower[1:])
    assert np.all(bounds.clopper_pearson_lower(10 * votes[1:], 5000, 0.001) > lower[1:])


def test_scalars_give_floats_and_arrays_broadcast():
    assert isinstance(bounds.clopper_pearson_lower(5, 10, 0.05), float)
    assert isinstance(bounds.certified_radius(0.9, 0.5), float)
    table = bounds.clopper_pearson_lower(np.array([[5], [10]]), np.array([10, 20]), 0.05)
    assert table.shape == (2, 2)
    assert table[0, 0] == bounds.clopper_pearson_lower(5, 10, 0.05)
    assert bounds.certified_radius(np.array([0.4, 0.9]), 0.5).shape == (2,)


@pytest.mark.parametrize(
    ("k", "n", "alpha", "named"),
    [
        (-1, 10, 0.05, "-1"),
        (11, 10, 0.05, "11"),
        (1.5, 10, 0.05, "1.5"),
        (0, 0, 0.05, "n=0"),
        (float("nan"), 10, 0.05, "nan"),
        (5, float("inf"), 0.05, "inf"),
        (5, 10, 0.0, "0"),
        (5, 10, 1.0, "1"),
        (5, 10, float("nan"), "nan"),
    ],
)
@pytest.mark.parametrize("bound", [bounds.clopper_pearson_lower, bounds.clopper_pearson_upper])
def test_impossible_counts_are_refused_and_named(bound, k, n, alpha, named):
    with pytest.raises(InputError, match=named):
        bound(k, n, alpha)


@pytest.mark.parametrize(("p", "sigma"), [(-0.1, 1), (1.1, 1), (float("nan"), 1), (0.9, 0), (0.9, -1), (0.9, math.inf)])
def test_impossible_probabilities_and_sigmas_are_refused(p, sigma):
    with pytest.raises(InputError):
        bounds.certified_radius(p, sigma)
    with pytest.raises(InputError):
        bounds.two_sided_radius(p, 0.1, sigma)


@pytest.mark.parametrize("kind", list(bounds.NORMS))
def test_nothing_is_certified_at_one_half_or_below(kind):
    assert bounds.radius_of(kind, 0.5, 0.5) == 0.0
    assert bounds.radius_of(kind, 0.0, 0.5) == 0.0
    assert bounds.radius_of(kind, 0.51, 0.5) > 0.0
    assert np.all(np.diff(bounds.radius_of(kind, np.linspace(0.5, 0.999, 50), 0.5)) > 0)


def test_radii_follow_their_formulas():
    assert bounds.l1_radius_uniform(0.75, 2.0) == pytest.approx(2 * math.sqrt(3) * 2.0 * 0.25)
    assert bounds.l1_radius_laplace(0.75, 2.0) == pytest.approx(2.0 / math.sqrt(2) * math.log(2))
    assert bounds.NORMS == {"grid": "l2", "gaussian": "l2", "uniform": "l1", "laplace": "l1"}
    with pytest.raises(InputError, match="cauchy"):
        bounds.radius_of("cauchy", 0.9, 1.0)


@given(st.floats(0.5, 1 - 1e-15), st.floats(1e-3, 10))
def test_radii_are_rounded_down(p, sigma):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        p_, sigma_ = mpmath.mpf(p), mpmath.mpf(sigma)
        exact = {
            bounds.certified_radius: sigma_ * mpmath.sqrt(2) * mpmath.erfinv(2 * p_ - 1),
            bounds.l1_radius_uniform: 2 * mpmath.sqrt(3) * sigma_ * (p_ - 0.5),
            bounds.l1_radius_laplace: -sigma_ / mpmath.sqrt(2) * mpmath.log(2 * (1 - p_)),
        }
        for radius, largest in exact.items():
            assert largest * (1 - 1e-12) - 1e-15 * sigma <= radius(p, sigma) <= largest


@given(st.floats(0.01, 0.999), st.floats(0.001, 0.9))
def test_the_two_sided_radius_is_rounded_down(p_lower, p_upper):
    mpmath = pytest.importorskip("mpmath")
    p_upper = min(p_upper, 1 - p_lower)
    with mpmath.workdps(40):
        first, second = (mpmath.erfinv(2 * mpmath.mpf(p) - 1) for p in (p_lower, p_upper))
        exact = (first - second) / mpmath.sqrt(2)
        assert bounds.two_sided_radius(p_lower, p_upper, 1.0) <= max(exact, 0)


def test_radii_at_the_ends():
    assert bounds.certified_radius(1.0, 0.5) == math.inf
    assert bounds.two_sided_radius(1.0, 0.0, 0.5) == math.inf
    assert bounds.two_sided_radius(0.0, 0.0, 0.5) == 0.0


@given(st.floats(0.01, 0.999), st.floats(0.001, 0.9))
def test_the_two_sided_radius_is_never_smaller_than_the_one_sided(p_lower, p_upper):
    two = bounds.two_sided_radius(p_lower, p_upper, 0.5)
    assert two >= bounds.certified_radius(p_lower, 0.5) - 1e-12
    if p_lower <= min(p_upper, 1 - p_lower):
        assert two == 0.0
    exact = 0.25 * (stats.norm.ppf(p_lower) - stats.norm.ppf(min(p_upper, 1 - p_lower)))
    assert two == pytest.approx(max(exact, 0), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "alpha", "ceiling"),
    [
        (10**5, 0.001, 3.8115),
        (10**5, 0.01, 3.9105),
        (10**4, 0.001, 3.1986),
        (500, 0.002, 2.2460),
        (10**6, 0.001, 4.3468),
    ],
)
def test_the_ceiling_is_that_of_a_unanimous_vote(n, alpha, ceiling):
    assert bounds.max_radius(n, alpha, 1.0) == pytest.approx(ceiling, abs=5e-5)
    assert bounds.max_radius(n, alpha, 1.0, "uniform") == pytest.approx(2 * math.sqrt(3) * (alpha ** (1 / n) - 0.5))


@pytest.mark.parametrize(
    ("n", "votes"), [(9, None), (10, 10), (50, 37), (100, 66), (256, 154), (500, 286), (1000, 550), (10**5, 50490)]
)
def test_the_fewest_votes_that_certify(n, votes):
    assert bounds.min_votes(n, 0.001) == votes


@pytest.mark.parametrize(
    "votes", [(10, 0), (11, 0), (66, 34), (67, 33), (510, 490), (600, 400), (5, 5), (0, 0), (3, 8)]
)
def test_predict_p_value_is_the_exact_binomial_test(votes):
    expected = stats.binomtest(votes[0], sum(votes)).pvalue if sum(votes) else 1.0
    assert bounds.predict_p_value(*votes) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InputError):
        bounds.predict_p_value(-1, 3)


@example(64, 0.001)
@example(65, 0.001)
@example(4096, 0.001)
@given(st.integers(1, 10**7), st.floats(1e-6, 0.5))
def test_looks_double_up_to_n_and_share_alpha(n, alpha):
    times = bounds.looks(n)
    assert times[-1] == n
    assert np.all(np.diff(times) > 0)
    assert np.all(times[:-1] == 64 * 2 ** np.arange(len(times) - 1))
    levels = bounds.look_alphas(alpha, n)
    assert len(levels) == len(times)
    assert math.fsum(levels) <= alpha
    assert math.fsum(levels) == pytest.approx(alpha, rel=1e-12)
    assert np.all(np.diff(levels) >= 0)
