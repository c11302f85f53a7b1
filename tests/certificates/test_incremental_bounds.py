import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from arquant.base.errors import InputError
from arquant.certificates.bounds import certified_radius, clopper_pearson_lower, clopper_pearson_upper
from arquant.certificates.incremental_bounds import Replay, best_of, directional, irs, paired

# Two half-spaces on the same noise: margins a and a', correlation rho -> P(both), P(f only), P(f_P only)
HALF_SPACES = {
    (1.0, 1.0, 0.999): (0.8370276880723563, 0.004317057996186646, 0.004317057996186646),
    (1.0, 0.9, 0.99): (0.8108671172720974, 0.030477628796445555, 0.0050727573811431),
    (1.2816, 1.2816, 0.95): (0.8779303262240863, 0.0220781736782385, 0.0220781736782385),
    (0.5244, 0.5244, 0.9): (0.6375867299312905, 0.062413091803886545, 0.062413091803886545),
    (2.0, 1.8, 0.98): (0.9629854102488389, 0.014264457802981911, 0.0010842706382353517),
}

METHODS = {
    "irs": lambda replay, alpha: irs(replay, 1.0, alpha=alpha / 2, alpha_zeta=alpha / 2, gamma=1.0),
    "irs, gamma": lambda replay, alpha: irs(replay, 1.0, alpha=alpha / 2, alpha_zeta=alpha / 2, gamma=0.9),
    "directional": lambda replay, alpha: directional(replay, 1.0, alpha=alpha / 2, alpha_zeta=alpha / 2),
    "paired": lambda replay, alpha: paired(replay, 1.0, alpha=alpha / 2, alpha_zeta=alpha / 2),
    "best-of": lambda replay, alpha: best_of(replay, 1.0, alpha=alpha),
}


def shared_replay(cells, rest, n):
    """Counts when the replayed samples fell into cells (both, lost, gained, neither) and the original won `rest` more."""
    both, lost, gained = cells[..., 0], cells[..., 1], cells[..., 2]
    replayed = cells.sum(axis=-1)
    return Replay(both + lost + rest, n, replayed, lost + gained, lost, gained, both + gained)


def drawn_replay(chances, n, n_p, runs, seed):
    """Replays of `runs` images whose original voted on n samples, the first n_p of which the candidate shares."""
    rng = np.random.default_rng(seed)
    cells = rng.multinomial(n_p, [*chances, 1 - sum(chances)], size=runs)
    return shared_replay(cells, rng.binomial(n - n_p, chances[0] + chances[1], size=runs), n)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", HALF_SPACES)
def test_coverage_on_shared_noise_is_exact(name, case):
    """All outcomes of 14 shared samples and 20 more of the original, each with its probability: no simulation."""
    chances, n_p, n, alpha = HALF_SPACES[case], 14, 34, 0.1
    cells = np.array([c for c in itertools.product(range(n_p + 1), repeat=3) if sum(c) <= n_p])
    cells = np.column_stack([cells, n_p - cells.sum(axis=1)])
    rest = np.arange(n - n_p + 1)
    weight = stats.multinomial.pmf(cells, n_p, [*chances, 1 - sum(chances)])[:, None]
    weight = weight * stats.binom.pmf(rest, n - n_p, chances[0] + chances[1])
    found = METHODS[name](shared_replay(cells[:, None, :], rest[None, :], n), alpha)
    assert weight.sum() == pytest.approx(1.0)
    assert weight[found.p_lower > chances[0] + chances[2]].sum() <= alpha


RUNS = 10_000


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", [(1.0, 0.9, 0.99), (0.5244, 0.5244, 0.9)])
def test_radii_at_real_sizes_exceed_the_margin_no_more_often_than_stated(name, case):
    replay = drawn_replay(HALF_SPACES[case], 10_000, 500, RUNS, seed=1)
    found = METHODS[name](replay, 0.05)
    assert np.sum(found.radius > case[1]) <= stats.binom.isf(1e-5, RUNS, 0.05)


def test_a_disagreement_that_is_not_bounded_fails_the_coverage_test():
    replay = drawn_replay(HALF_SPACES[1.0, 0.9, 0.99], 10_000, 500, RUNS, seed=1)
    planted = clopper_pearson_lower(replay.cached_votes, replay.cached_n, 0.025) - replay.lost / replay.n
    assert np.sum(certified_radius(np.clip(planted, 0, 1), 1.0) > 0.9) > stats.binom.isf(1e-5, RUNS, 0.05)


@pytest.mark.parametrize(
    ("p", "disagreement", "means"),
    [
        (0.70, 0.01, {"irs": 0.395, "directional": 0.418, "paired": 0.414, "best-of": 0.414}),
        (0.70, 0.15, {"irs": 0.003, "directional": 0.171, "paired": 0.270, "best-of": 0.342}),
        (0.90, 0.02, {"irs": 1.009, "directional": 1.074, "paired": 1.072, "best-of": 1.083}),
        (0.99, 0.004, {"irs": 1.811, "directional": 1.862, "paired": 1.842, "best-of": 1.884}),
    ],
)
def test_mean_radii_are_those_of_the_specification(p, disagreement, means):
    half = disagreement / 2
    replay = drawn_replay((p - half, half, half), 10_000, 500, 4000, seed=2)
    for name, mean in means.items():
        assert METHODS[name](replay, 0.002).radius.mean() == pytest.approx(mean, abs=0.006)


@st.composite
def replays(draw):
    both, lost, gained, neither, changed = (draw(st.integers(0, 200)) for _ in range(5))
    n_p = both + lost + gained + neither + 1
    more = draw(st.integers(0, 2000))
    rest = draw(st.integers(0, more))
    # samples in which neither network chose A may still disagree
    disagreements = lost + gained + min(changed, neither)
    return Replay(both + lost + rest, n_p + more, n_p, disagreements, lost, gained, both + gained)


@given(replays(), st.floats(1e-6, 0.2), st.floats(1e-6, 0.2))
def test_directional_is_never_below_irs(replay, alpha, alpha_zeta):
    published = irs(replay, 0.5, alpha=alpha, alpha_zeta=alpha_zeta, gamma=1.0)
    ours = directional(replay, 0.5, alpha=alpha, alpha_zeta=alpha_zeta)
    assert ours.p_lower >= published.p_lower
    assert ours.radius >= published.radius
    assert ours.zeta <= published.zeta


@given(replays(), st.floats(1e-6, 0.2))
def test_best_of_is_the_larger_of_its_parts(replay, alpha):
    found = best_of(replay, 0.5, alpha=alpha)
    fresh = clopper_pearson_lower(replay.votes, replay.n, alpha / 2)
    part = directional(replay, 0.5, alpha=alpha / 4, alpha_zeta=alpha / 4).p_lower
    assert found.p_lower == np.maximum(fresh, part)
    assert found.branch == ("directional" if part > fresh else "fresh")
    assert np.isnan(found.zeta) == (found.branch == "fresh")


def test_an_identical_candidate_loses_only_the_price_of_not_knowing():
    replay = Replay(9000, 10_000, 500, 0, 0, 0, 450)
    found = irs(replay, 0.5)
    floor = 1 - 0.001 ** (1 / 500)
    assert found.zeta[0] == pytest.approx(floor)
    assert found.p_lower[0] == pytest.approx(clopper_pearson_lower(9000, 10_000, 0.001) - floor)
    assert found.radius[0] == certified_radius(found.p_lower[0], 0.5)
    assert directional(replay, 0.5).p_lower[0] == found.p_lower[0]


def test_above_gamma_irs_is_plain_smoothing_at_the_sum_of_the_levels():
    replay = Replay([9990, 9000], 10_000, 500, [5, 5], [3, 3], [1, 1], [495, 450])
    found = irs(replay, 0.5, alpha=0.001, alpha_zeta=0.002)
    assert list(found.branch) == ["fresh", "irs"]
    assert found.p_lower[0] == clopper_pearson_lower(495, 500, 0.003)
    assert found.p_lower[1] == pytest.approx(
        clopper_pearson_lower(9000, 10_000, 0.001) - clopper_pearson_upper(5, 500, 0.002)
    )
    assert irs(replay, 0.5, alpha_zeta=0.002, fresh_votes=[480, 480]).p_lower[0] == clopper_pearson_lower(
        480, 500, 0.003
    )
    assert math.isnan(found.zeta[0])


def test_what_proves_nothing_abstains():
    replay = Replay(5200, 10_000, 500, 100, 60, 20, 220)
    for method in METHODS.values():
        assert method(replay, 0.002).radius[0] == 0.0
    assert irs(Replay(100, 10_000, 500, 400, 5, 300, 300), 0.5).p_lower[0] == 0.0


@pytest.mark.parametrize(
    "counts",
    [
        (50, 100, 20, 1, 2, 0, 10),  # more lost than disagreed
        (50, 100, 20, 5, 0, 5, 3),  # more gained than won
        (50, 100, 20, 15, 12, 0, 10),  # lost and won more than were replayed
        (50, 100, 200, 5, 5, 0, 45),  # replayed more than was cached
        (3, 100, 20, 2, 2, 0, 10),  # the original won more in the part than in the whole
        (95, 100, 20, 2, 2, 0, 5),  # the original won more of the rest than there is
        (-1, 100, 20, 0, 0, 0, 0),
    ],
)
def test_counts_of_no_possible_replay_are_refused(counts):
    with pytest.raises(InputError):
        Replay(*counts)


def test_levels_of_directional_and_paired():
    """By scipy's beta quantiles, each part at a level of its own; rounded to the safe side."""
    n, cached_n, kept, lost, gained = 500, 10_000, 9_600, 12, 15
    replay = Replay(kept, cached_n, n, 30, lost, gained, 480)
    cached = float(stats.beta.ppf(0.001, kept, cached_n - kept + 1))

    def most(level):
        return float(stats.beta.ppf(1 - level, lost + 1, n - lost))

    found = directional(replay, 0.5, alpha=0.001, alpha_zeta=0.01)
    assert found.zeta[0] == pytest.approx(most(0.01), rel=1e-9)
    assert found.p_lower[0] == pytest.approx(cached - most(0.01), rel=1e-9)
    assert found.p_lower[0] <= np.nextafter(clopper_pearson_lower(kept, cached_n, 0.001) - found.zeta[0], -1.0)
    found = paired(replay, 0.5, alpha=0.001, alpha_zeta=0.01)
    least = float(stats.beta.ppf(0.005, gained, n - gained + 1))
    assert found.zeta[0] == pytest.approx(most(0.005) - least, rel=1e-9)
    assert found.zeta[0] > clopper_pearson_upper(lost, n, 0.005) - clopper_pearson_lower(gained, n, 0.005)
    assert found.p_lower[0] == pytest.approx(cached - (most(0.005) - least), rel=1e-9)


def test_more_gained_than_lost_proves_no_certainty():
    found = paired(Replay(999_500, 1_000_000, 1000, 500, 0, 500, 1000), 0.5)
    assert found.zeta[0] < -0.4
    assert found.p_lower[0] < 1
    assert np.isfinite(found.radius).all()


@pytest.mark.parametrize(
    "options", [{"alpha": 0.0}, {"alpha_zeta": 1.0}, {"gamma": 1.5}, {"alpha": 0.6, "alpha_zeta": 0.6}]
)
def test_impossible_levels_are_refused(options):
    with pytest.raises(InputError):
        irs(Replay(90, 100, 20, 0, 0, 0, 18), 0.5, **options)
