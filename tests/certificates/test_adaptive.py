import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from arquant.base.errors import InputError
from arquant.certificates.adaptive import DEFAULT_TOLERANCE, Adaptive, adaptive_decision, level_at
from arquant.certificates.bounds import clopper_pearson_lower, look_alphas, looks
from arquant.certificates.claims import claim

N, ALPHA = 100_000, 0.001


def vote_counts(p, n, seed):
    """Votes at each look, one column per probability: the law of a real run."""
    steps = np.diff(np.concatenate([[0], looks(n)]))
    return np.cumsum(np.random.default_rng(seed).binomial(steps[:, None], p), axis=0)


def replay(counts, n, alpha, sigma, **rule):
    """Samples used and radius per image when the rule runs on the counts of `vote_counts`."""
    images = counts.shape[1]
    live, used, radius = np.arange(images), np.zeros(images), np.zeros(images)
    for j, seen in enumerate(looks(n)):
        stop, level = adaptive_decision(counts[j, live], j, n, alpha, **rule)
        claims = np.isin(stop, ["tolerance", "final"])
        radius[live[claims]] = claim(counts[j, live[claims]], int(seen), level, sigma).radius
        used[live[stop != "continue"]] = seen
        live = live[stop == "continue"]
    assert live.size == 0
    return used, radius


def resnet20_like(images):
    """Probabilities that give the published certified-accuracy curve of ResNet-20 at sigma 0.5; 33 % are not right."""
    radii = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 1.95, 2.15])
    accuracy = np.array([0.6698, 0.5536, 0.4282, 0.3141, 0.2196, 0.1390, 0.0814, 0.0377, 0.012, 0])
    share, rng = (np.arange(images) + 0.5) / images, np.random.default_rng(7)
    p = ndtr(np.interp(share, accuracy[::-1], radii[::-1]) / 0.5)
    wrong, nothing = ndtr(rng.exponential(0.5, images)), rng.uniform(0.33, 0.5, images)
    return np.where(share < 0.67, p, np.where(share < 0.85, wrong, nothing)), share < 0.67


def test_the_default_rule_saves_half_the_samples_at_a_negligible_loss():
    p, right = resnet20_like(1500)
    counts = vote_counts(p, N, seed=0)
    used, radius = replay(counts, N, ALPHA, 0.5)
    fixed = claim(counts[-1], N, ALPHA, 0.5).radius
    assert N / used.mean() > 2.2
    assert np.mean((fixed - radius) * right) < 0.005
    assert np.mean(((fixed > 0) & (radius == 0))[right]) < 0.002


def test_futility_alone_changes_no_certificate():
    p, _ = resnet20_like(1500)
    counts = vote_counts(np.minimum(p, 0.6), 10_000, seed=1)
    used, radius = replay(counts, 10_000, ALPHA, 0.5, tolerance=None)
    fixed = claim(counts[-1], 10_000, ALPHA, 0.5).radius
    assert used.mean() < 10_000
    assert np.all((radius == fixed) | (radius == 0))
    assert np.sum(radius != fixed) <= 1


RUNS = 10_000
ALLOWED = stats.binom.isf(1e-5, RUNS, 0.05)


@pytest.mark.parametrize("p", [0.5, 0.6, 0.9])
@pytest.mark.parametrize("tolerance", [0.02, 0.5, 10.0])
def test_claims_under_the_rule_cover_and_unpaid_stopping_does_not(p, tolerance):
    counts = vote_counts(np.full(RUNS, p), 1000, seed=2)
    _, radius = replay(counts, 1000, 0.05, 1.0, tolerance=tolerance, futility_beta=0.01)
    assert np.sum(radius > stats.norm.ppf(p)) <= ALLOWED
    # the planted bug: the full alpha at every look, stopping at whichever look proves most
    unpaid = clopper_pearson_lower(counts, looks(1000)[:, None], 0.05).max(axis=0)
    assert np.sum(unpaid > p) > ALLOWED
    # paid for, even the greediest stopping is sound
    paid = clopper_pearson_lower(counts, looks(1000)[:, None], look_alphas(0.05, 1000)[:, None]).max(axis=0)
    assert np.sum(paid > p) <= ALLOWED


def test_each_decision_is_taken_where_it_should_be():
    # 1024 samples are look 4: 10 % of the votes is hopeless, 52 % undecided, 90 % within 0.3 sigma of the end
    stop, level = adaptive_decision([102, 532, 922], 4, 10_000, ALPHA, tolerance=0.3)
    assert list(stop) == ["futility", "continue", "tolerance"]
    assert level == look_alphas(ALPHA, 10_000)[4]
    stop, _ = adaptive_decision([102, 532, 922], 4, 10_000, ALPHA)
    assert list(stop) == ["futility", "continue", "continue"]
    stop, level = adaptive_decision([1000, 9000], len(looks(10_000)) - 1, 10_000, ALPHA)
    assert list(stop) == ["final", "final"]
    assert level == ALPHA / 2
    assert adaptive_decision(9000, len(looks(10_000)) - 1, 10_000, ALPHA, tolerance=None)[1] == ALPHA


def test_an_image_is_given_up_at_the_level_of_futility_not_at_that_of_claims():
    # look 0, 64 samples: at 1e-3 even 19 votes would be hopeless, at 1e-4 no more than 16
    stop, _ = adaptive_decision(np.arange(15, 22), 0, 10_000, ALPHA, futility_beta=1e-4)
    hopeless = stats.binom.cdf(np.arange(15, 22), 64, 0.5) < 1e-4
    assert list(stop == "futility") == list(hopeless)
    assert 0 < hopeless.sum() < len(stop)


def test_a_rival_leads_at_the_level_of_futility():
    """The class cannot win any more once its largest probability is below the smallest of its rival, both at that level."""
    rivals = np.arange(30, 64)
    stop, _ = adaptive_decision(np.zeros_like(rivals), 0, 10_000, 0.05, runner_up=rivals, futility_beta=1e-12)
    most, least = 1 - 1e-12 ** (1 / 64), stats.beta.ppf(1e-12, rivals, 64 - rivals + 1)
    assert list(stop == "futility") == list(most < least)
    assert 0 < np.sum(stop == "futility") < len(rivals)


def test_tolerance_0_stops_early_and_pays_for_it():
    # 63 of 64 votes are 63 of 65 in proportion, and both looks have half of alpha: the 65th can add nothing
    stop, level = adaptive_decision([63], 0, 65, ALPHA, tolerance=0.0)
    assert (list(stop), level) == (["tolerance"], ALPHA / 2)


def test_a_vote_that_proves_nothing_yet_goes_on_whatever_the_tolerance():
    assert list(adaptive_decision([520], 4, 10_000, ALPHA, tolerance=100.0)[0]) == ["continue"]


@pytest.mark.parametrize(
    ("votes", "runner_up", "noise"),
    [(59, None, "grid"), (59, None, "uniform"), (59, None, "laplace"), (57, 3, "grid"), (38, 3, "gaussian")],
)
def test_the_tolerance_is_what_the_full_vote_would_add_at_the_present_shares(votes, runner_up, noise):
    rule = Adaptive(tolerance=1.0)
    now = claim(votes, 64, level_at(64, 1000, ALPHA, rule), 1.0, noise_kind=noise, runner_up=runner_up).radius[0]
    # of 1000 votes as many in proportion, in whole votes to the safe side
    votes_then, runner_up_then = votes * 1000 // 64, None if runner_up is None else -(-runner_up * 1000 // 64)
    last = level_at(1000, 1000, ALPHA, rule)
    then = claim(votes_then, 1000, last, 1.0, noise_kind=noise, runner_up=runner_up_then).radius[0]
    assert 0 < now < then

    def decision(tolerance):
        rest = {"tolerance": tolerance, "runner_up": runner_up, "noise_kind": noise}
        return str(adaptive_decision(votes, 0, 1000, ALPHA, **rest)[0][0])

    assert decision(then - now) == "tolerance"
    assert decision((then - now) * (1 - 1e-9)) == "continue"


def test_the_two_sided_rule_gives_up_only_when_the_rival_leads():
    few_votes_but_ahead = adaptive_decision([400], 4, 10_000, ALPHA, runner_up=[300], tolerance=0.0)[0]
    assert list(few_votes_but_ahead) == ["continue"]
    # of the class no more than 35.0 % is likely, and of its rival 35.2 % were counted but no more than 29.8 % are sure
    assert list(adaptive_decision([300], 4, 10_000, ALPHA, runner_up=[360])[0]) == ["continue"]
    assert list(adaptive_decision([200], 4, 10_000, ALPHA, runner_up=[400])[0]) == ["futility"]
    assert list(adaptive_decision([600], 4, 10_000, ALPHA, runner_up=[100], tolerance=5.0)[0]) == ["tolerance"]


def test_levels_belong_to_looks():
    assert level_at(10_000, 10_000, ALPHA, None) == ALPHA
    assert level_at(10_000, 10_000, ALPHA, Adaptive(tolerance=None)) == ALPHA
    assert level_at(64, 10_000, ALPHA, Adaptive()) == look_alphas(ALPHA, 10_000)[0]
    with pytest.raises(InputError, match="100 samples is no look"):
        level_at(100, 10_000, ALPHA, Adaptive())
    with pytest.raises(InputError, match="needs a tolerance stop"):
        level_at(64, 10_000, ALPHA, Adaptive(tolerance=None))


@pytest.mark.parametrize(
    "rule",
    [
        {"tolerance": -0.1},
        {"tolerance": float("nan")},
        {"tolerance": float("inf")},
        {"futility_beta": 0.0},
        {"futility_beta": 1.0},
    ],
)
def test_impossible_rules_are_refused(rule):
    with pytest.raises(InputError):
        Adaptive(**rule)


def test_a_look_that_does_not_exist_is_refused():
    for look in (-1, len(looks(1000))):
        with pytest.raises(InputError, match=f"no look {look}"):
            adaptive_decision([5], look, 1000, ALPHA)
    assert Adaptive().tolerance == DEFAULT_TOLERANCE
