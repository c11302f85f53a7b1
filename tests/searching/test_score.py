"""Rewards against closed forms; the control variate is unbiased and less noisy; scores stay scores."""

import numpy as np
import pytest
from scipy.special import ndtri

from arquant.base.errors import InputError, MismatchError
from arquant.certificates.bounds import clopper_pearson_lower, clopper_pearson_upper, l1_radius_laplace
from arquant.certificates.certificate import Certificate
from arquant.certification.incremental import incremental_claims
from arquant.certification.options import CertificateOptions
from arquant.certification.smoothing_certifier import Smoothing
from arquant.searching.score import Ballots, Score, difference, find_reward, label_share, register_reward
from tests.support.small_search import cache_of

SCORING = Smoothing(0.5)


def row(right, n, *, label=0, wrong=1):
    """A row of votes with the first `right` for the label."""
    return np.where(np.arange(n) < right, label, wrong)


def ballots(rights, n, *, cached=None, cached_n=None, scoring=SCORING, **options):
    labels = np.zeros(len(rights), np.int64)
    cached_n = cached_n or n
    reference = np.stack([row(k, cached_n) for k in (cached or rights)])
    return Ballots(
        np.stack([row(k, n) for k in rights]).astype(np.uint8), cache_of(reference, labels, **options), scoring
    )


def test_acr_is_the_mean_certified_radius_of_the_label():
    score = find_reward("acr").score(ballots([450, 500, 100], 500))
    radii = [0.5 * ndtri(0.8520867646), 0.5 * ndtri(0.9862794856), 0.0]
    assert score.per_image == pytest.approx(radii, abs=1e-8)
    assert score.value == pytest.approx(np.mean(radii))
    assert score.standard_error == pytest.approx(np.std(radii, ddof=1) / np.sqrt(3))


def test_the_class_that_counts_is_the_label_whatever_the_float_model_chose():
    rights, other = [450, 500, 100], np.array([1, 1, 0])
    for name in ("acr", "val", "acc", "acr-signed", "acr-cv", "acr+acc"):
        wanted = find_reward(name).score(ballots(rights, 500)).per_image
        assert find_reward(name).score(ballots(rights, 500, selected=other)).per_image.tolist() == wanted.tolist()


def test_rewards_have_the_radii_of_the_noise():
    grid, laplace = (ballots([450], 500, scoring=Smoothing(0.5, noise)).radii()[0] for noise in ("grid", "laplace"))
    assert laplace == l1_radius_laplace(clopper_pearson_lower(450, 500, 0.001), 0.5) != grid


def test_acr_signed_has_a_floor_and_goes_below_zero():
    n = 200
    score = find_reward("acr-signed").score(ballots([0, 60, 180], n))
    bounds = [1 / (n + 2), *clopper_pearson_lower(np.array([60, 180]), n, 0.001)]
    assert score.per_image == pytest.approx(0.5 * ndtri(np.array(bounds)))
    assert score.per_image[0] < score.per_image[1] < 0 < score.per_image[2]


def test_accuracies():
    votes = ballots([0, 110, 160, 200], 200)
    assert find_reward("val").score(votes).per_image.tolist() == [0, 0.55, 0.8, 1]
    assert find_reward("acc").score(votes).per_image.tolist() == [0, 0, 1, 1]
    assert find_reward("acc@0").score(votes).value == find_reward("acc").score(votes).value
    assert find_reward("acc@0.5").score(votes).per_image.tolist() == [0, 0, 0, 1]
    assert find_reward("acc@5").score(votes).value == 0
    assert find_reward(f"acc@{float(votes.radii()[2])!r}").score(votes).per_image.tolist() == [0, 0, 1, 1]


def test_acr_plus_acc_is_two_for_the_float_model_itself():
    assert find_reward("acr+acc").score(ballots([0, 110, 160, 200], 200)).value == pytest.approx(2)
    better = ballots([0, 200, 200, 200], 200, cached=[0, 110, 160, 200])
    assert find_reward("acr+acc").score(better).value > 2
    with pytest.raises(InputError, match=r"200 votes per image of the float model certify none.*larger --reference-n"):
        find_reward("acr+acc").score(ballots([0, 100], 200))


def test_irs_of_the_float_model_itself_is_the_price_of_the_zero_disagreements():
    votes = ballots([130, 180, 40], 200, cached=[1300, 1800, 400], cached_n=2000)
    # the first 200 cached votes must be the same as the candidate's
    votes.reference.votes[:, :200] = votes.votes
    cached = votes.reference.for_class(np.zeros(3, np.int64))
    p_lower = clopper_pearson_lower(cached, 2000, 0.001)
    zeta = clopper_pearson_upper(0, 200, 0.001)
    wanted = [0.5 * (np.maximum(ndtri(p - zeta), 0) - np.maximum(ndtri(p), 0)) for p in p_lower]
    assert find_reward("irs").score(votes).per_image == pytest.approx(wanted, abs=1e-9)


def test_irs_has_the_levels_the_branch_and_the_noise_of_the_scoring():
    scoring = Smoothing(0.5, "laplace", alpha_zeta=0.002, gamma=0.8, claims=CertificateOptions(alpha=0.01))
    votes = ballots([150, 190], 200, cached=[1500, 1900], cached_n=2000, scoring=scoring)
    votes.reference.votes[:, :200] = votes.votes
    options = {"alpha": 0.01, "alpha_zeta": 0.002, "gamma": 0.8}
    claims = incremental_claims(votes.reference, votes.votes, "irs", sigma=0.5, noise="laplace", **options)
    assert claims.branch.tolist() == ["irs", "fresh"]
    original = l1_radius_laplace(clopper_pearson_lower(votes.reference.for_class(votes.labels), 2000, 0.01), 0.5)
    assert find_reward("irs").score(votes).per_image == pytest.approx(claims.radius - original)


def test_irs_gives_no_credit_where_the_float_model_is_wrong():
    votes = ballots([200, 200], 200, cached=[0, 200], selected=np.array([1, 0]))
    values = find_reward("irs").score(votes).per_image
    assert values[0] == 0
    assert values[1] < 0


def test_irs_and_acr_cv_need_the_cached_noise():
    votes = ballots([100, 180], 200)
    fresh = Ballots(votes.votes, votes.reference, SCORING, replayed=False)
    for name in ("irs", "acr-cv"):
        with pytest.raises(InputError, match="cached noise"):
            find_reward(name).score(fresh)
    assert find_reward("acr").score(fresh).value > 0


def test_acr_cv_of_the_float_model_itself_is_its_acr():
    rng = np.random.default_rng(0)
    reference = (rng.random((50, 1000)) > rng.uniform(0.3, 1, 50)[:, None]).astype(np.uint8)
    cache = cache_of(reference, np.zeros(50, np.int64))
    itself = Ballots(reference[:, :100], cache, SCORING)
    assert find_reward("acr-cv").score(itself).per_image == pytest.approx(itself.reference_radii(), abs=1e-9)


def test_the_control_variate_is_unbiased_and_less_noisy():
    """Votes with known probabilities: p of the candidate 0.8, of the float model 0.85, both right 0.78."""
    rng = np.random.default_rng(1)
    runs, n, cached = 4000, 100, 1000
    both, only_float, only_candidate = 0.78, 0.07, 0.02
    uniform = rng.random((runs, cached))
    float_right = uniform < both + only_float
    candidate_right = (uniform < both) | ((uniform >= 1 - only_candidate) & ~float_right)
    labels = np.zeros(runs, np.int64)
    cache = cache_of(~float_right, labels)
    votes = Ballots((~candidate_right[:, :n]).astype(np.uint8), cache, SCORING)
    plain, improved = votes.right / n, label_share(votes)
    assert abs(plain.mean() - 0.8) < 4 * plain.std() / np.sqrt(runs)
    assert abs(improved.mean() - 0.8) < 4 * improved.std() / np.sqrt(runs)
    # the variance left is (1 - rho^2), plus rho^2 n / cached for the cache itself
    rho2 = (both - 0.8 * 0.85) ** 2 / (0.8 * 0.2 * 0.85 * 0.15)
    assert improved.var() / plain.var() == pytest.approx(1 - rho2 * (1 - n / cached), rel=0.12)
    assert improved.var() < 0.6 * plain.var()


def test_the_control_variate_without_a_case_takes_the_rate_of_all_images():
    cache = cache_of(np.stack([row(100, 100), row(80, 100)]), np.zeros(2, np.int64))
    cache.votes[0, 99] = 1  # wrong once, but not among the replayed samples
    candidate = np.stack([row(40, 40), row(40, 40)]).astype(np.uint8)
    cache.votes[1, :40] = row(20, 40)
    shares = label_share(Ballots(candidate, cache, SCORING))
    assert shares == pytest.approx([1.0, 1.0])


def test_a_difference_is_paired_and_needs_equal_kinds():
    reward = find_reward("acr")
    first, second = reward.score(ballots([100, 150], 200)), reward.score(ballots([150, 200], 200))
    gap, error = difference(first, second)
    assert gap == pytest.approx(second.value - first.value)
    assert error < first.standard_error + second.standard_error
    with pytest.raises(MismatchError, match="different kinds"):
        difference(first, find_reward("val").score(ballots([100, 150], 200)))


def test_a_reward_of_ones_own():
    @register_reward("half")
    def half(votes):
        return votes.radii() / 2

    score = find_reward("half").score(ballots([200], 200))
    assert score.value == pytest.approx(find_reward("acr").score(ballots([200], 200)).value / 2)
    with pytest.raises(InputError, match="already registered"):
        register_reward("half")(lambda votes: votes.radii())


@pytest.mark.parametrize(("name", "hint"), [("arc", "acr"), ("acc@x", "acc@0.5"), ("acc@-1", "acc@0.5")])
def test_an_unknown_reward_is_named_with_what_was_meant(name, hint):
    with pytest.raises(InputError, match=hint):
        find_reward(name)


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(InputError, match="finite"):
        Score.of("mine", np.array([1.0, np.nan]), 10)


def test_a_score_is_no_certificate_and_says_that_it_is_an_estimate():
    score = find_reward("acr").score(ballots([150, 180], 200))
    assert not isinstance(score, Certificate)
    assert not hasattr(score, "radius")
    assert score.estimate().estimate == "acr"
    assert score.estimate().low < score.value < score.estimate().high


def test_votes_for_other_images_are_refused():
    with pytest.raises(MismatchError):
        Ballots(np.zeros((3, 10), np.uint8), cache_of(np.zeros((2, 10)), np.zeros(2, np.int64)), SCORING)


@pytest.mark.parametrize(
    ("name", "n", "sigma"),
    [
        ("acc@0.5", 200, 0.25),
        ("acc@1", 200, 0.5),
        ("acr", 9, 0.5),
        ("acc", 9, 0.5),
        ("acr-cv", 9, 0.5),
        ("irs", 9, 0.5),
    ],
)
def test_a_reward_that_no_votes_can_earn_is_refused(name: str, n: int, sigma: float) -> None:
    with pytest.raises(InputError, match=r"the same for every candidate.*larger --search-n"):
        find_reward(name).check(Smoothing(sigma), n)
    find_reward(name).check(Smoothing(sigma), 10_000)


def test_irs_needs_votes_of_the_candidate_as_well_as_of_the_float_model() -> None:
    reward, scoring = find_reward("irs"), Smoothing(0.5)
    reward.check(scoring, 12, cached=200)
    with pytest.raises(InputError, match="8 votes per image beside 200 of the float model prove too little"):
        reward.check(scoring, 8, cached=200)
    find_reward("acr-cv").check(scoring, 8, cached=200)
    reward.check(scoring, 200, cached=12)


def test_the_paper_s_objective_is_refused_for_other_noise() -> None:
    find_reward("acr-signed").check(Smoothing(0.5), 1)
    with pytest.raises(InputError, match="defined for Gaussian noise, not for 'laplace'"):
        find_reward("acr-signed").check(Smoothing(0.5, "laplace"), 200)
