"""The guarantees themselves, by simulation: of many certificates of classifiers known in closed form, few are false.

A certificate is false if its class is not the smoothed classifier's or its radius exceeds the true one. Each test draws at
least 10,000 certificates at alpha = 0.05 and fails if the number of false ones would be that large with probability below
1e-6 under a rate of exactly alpha: the false-alarm rate of each test. Together they draw more than 100,000. Each test
also runs against a planted bug and must fail there: its own, or bounds at three times the level that they state.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom, ncx2

import arquant.certificates.adaptive
import arquant.certificates.verdict
import arquant.certification.smoothing
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.bounds import certified_radius, max_radius
from arquant.certificates.certificate import ABSTAIN, Certificate, Settings
from arquant.certificates.verdict import judge
from arquant.certification.smoothing import Smoothed
from tests.support.closed_forms import copies, half_space, smoothed

ALPHA = 0.05
RUNS = 10_000
FALSE_ALARM = 1e-6
SIGMA = 0.5
SETTINGS = Settings(sigma=SIGMA, noise="gaussian", n0=20, n=100, alpha=ALPHA)


class Unsound(AssertionError):
    """More false certificates than alpha allows."""


def assert_sound(false: int, runs: int, alpha: float = ALPHA) -> None:
    if false > binom.ppf(1 - FALSE_ALARM, runs, alpha):
        raise Unsound(f"{false} of {runs} certificates are false at alpha {alpha}")


def count_false(certificates: Sequence[Certificate], true_class: int | None, true_radius: float) -> int:
    return sum(c.predict not in (ABSTAIN, true_class) or c.radius > true_radius for c in certificates)


def half_space_certificates(margin: float, settings: Settings, runs: int = RUNS) -> Sequence[Certificate]:
    """A half-space at distance `margin`: class 0 has probability Phi(margin / sigma), the true radius is the margin."""
    model = smoothed(half_space(0.5 - margin), SIGMA, noise=settings.noise)
    return model.certify(copies([0.5, 0.5], runs), settings)


BALL = {"d": 10, "radius": 2.0, "distance": 0.5}
BALL_P = float(ncx2.cdf((BALL["radius"] / SIGMA) ** 2, BALL["d"], (BALL["distance"] / SIGMA) ** 2))


def ball_certificates(settings: Settings) -> Sequence[Certificate]:
    """Class 0 inside a ball about 0, seen from a point inside it."""
    x = np.zeros(int(BALL["d"]))
    x[0] = BALL["distance"]
    model = smoothed(lambda z: np.where((z**2).sum(1) <= BALL["radius"] ** 2, 0, 1), SIGMA, shape=(1, 1, len(x)))
    return model.certify(copies(x, RUNS), settings)


def grid_certificates(settings: Settings) -> Sequence[Certificate]:
    """Class 0 where the level of the first pixel is at least 100; the pixel is 128 and one level is 1/255."""
    model = smoothed(lambda z: np.where(np.rint(255 * z[:, 0]) >= 100, 0, 1), SIGMA, noise="grid")
    return model.certify(copies(np.array([128, 128], np.uint8), RUNS), replace(settings, noise="grid"))


# Of each: settings -> certificates, and the largest radius that may be certified. On the grid the smoothed classifier changes
# where P(class 0) = 1/2, at real-valued level 99.5; of the ball the radius that its probability proves is below the true one.
CASES: dict[str, tuple[Callable[[Settings], Sequence[Certificate]], float]] = {
    "half-space near": (lambda settings: half_space_certificates(0.2, settings), 0.2),
    "half-space far": (lambda settings: half_space_certificates(0.6, settings), 0.6),
    "label-directed": (lambda settings: half_space_certificates(0.3, replace(settings, mode="label")), 0.3),
    "grid": (grid_certificates, (128 - 99.5) / 255),
    "uniform": (lambda settings: half_space_certificates(0.2, replace(settings, noise="uniform")), 0.2),
    "laplace": (lambda settings: half_space_certificates(0.2, replace(settings, noise="laplace")), 0.2),
    "ball": (ball_certificates, certified_radius(BALL_P, SIGMA)),
}
LEAST_CERTIFIED = {"half-space near": 0.4, "half-space far": 0.99, "ball": 0.99}


@pytest.mark.parametrize("case", CASES)
def test_fixed_n(case: str) -> None:
    certify, true_radius = CASES[case]
    certificates = certify(SETTINGS)
    assert len(certificates) == RUNS
    assert_sound(count_false(certificates, 0, true_radius), RUNS)
    share = np.mean([c.predict == 0 for c in certificates])
    assert share > LEAST_CERTIFIED.get(case, 0.2), "the certificate has lost its power"


@pytest.mark.parametrize("case", CASES)
def test_planted_bug_a_bound_is_at_three_times_its_level(case: str) -> None:
    certify, true_radius = CASES[case]
    with pytest.raises(Unsound):
        assert_sound(count_false(certify(replace(SETTINGS, alpha=3 * ALPHA)), 0, true_radius), RUNS)


def test_a_tie_is_hardly_ever_claimed() -> None:
    certificates = half_space_certificates(0.0, replace(SETTINGS, n0=100))
    assert_sound(sum(c.predict != ABSTAIN for c in certificates), RUNS)


def test_planted_bug_the_class_is_chosen_from_the_same_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Smoothed.source

    def one_source(self: Smoothed, purpose: str, **options: Any) -> Any:
        return own(self, "certify", **options)

    monkeypatch.setattr(Smoothed, "source", one_source)
    certificates = half_space_certificates(0.0, replace(SETTINGS, n0=100))
    false = sum(c.predict != ABSTAIN for c in certificates)
    assert false / RUNS == pytest.approx(0.089, abs=0.015)
    with pytest.raises(Unsound):
        assert_sound(false, RUNS)


ADAPTIVE = replace(SETTINGS, n=512, adaptive=Adaptive(tolerance=0.1), mode="label")


def simulated_false_claims(p: float, settings: Settings, runs: int, seed: int) -> int:
    """Bernoulli votes through the real decisions, look by look; a claim is false if its bound exceeds p."""
    generator = np.random.default_rng(seed)
    false = 0
    for _ in range(runs):
        votes = np.cumsum(generator.random(settings.n) < p)
        counted, verdict = 0, None
        while verdict is None:
            counted = arquant.certificates.verdict.next_look(counted, settings)
            k = int(votes[counted - 1])
            verdict = judge({0: k, 1: counted - k}, 0, counted, settings)
        false += verdict.radius > certified_radius(p, settings.sigma)
    return false


def test_adaptive_stopping_on_a_half_space() -> None:
    certificates = half_space_certificates(0.3, ADAPTIVE)
    assert "tolerance" in {c.stop for c in certificates}
    assert_sound(count_false(certificates, 0, 0.3), RUNS)


EAGER = replace(ADAPTIVE, adaptive=Adaptive(tolerance=10.0))
"""claims at the first look that proves anything"""


def claims_at_a_tie(settings: Settings) -> int:
    """Of RUNS votes on a classifier that is right half of the time, how many claim anything, which is false."""
    return sum(c.predict != ABSTAIN for c in half_space_certificates(0.0, settings))


def do_not_pay_for_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arquant.certificates.verdict, arquant.certificates.adaptive):
        monkeypatch.setattr(module, "level_at", lambda counted, n, alpha, rule: alpha)


@pytest.fixture
def _no_remembered_verdicts() -> Iterator[None]:
    """A planted bug must neither meet verdicts of before nor leave any."""
    arquant.certificates.verdict._judge.cache_clear()
    yield
    arquant.certificates.verdict._judge.cache_clear()


def test_adaptive_stopping_at_a_tie_claims_seldom() -> None:
    assert_sound(claims_at_a_tie(EAGER), RUNS)


@pytest.mark.usefixtures("_no_remembered_verdicts")
def test_planted_bug_a_tie_is_looked_at_without_paying(monkeypatch: pytest.MonkeyPatch) -> None:
    do_not_pay_for_looks(monkeypatch)
    with pytest.raises(Unsound):
        assert_sound(claims_at_a_tie(EAGER), RUNS)


def test_adaptive_stopping_at_a_tie_abstains_early() -> None:
    settings = replace(ADAPTIVE, n=16_384)
    certificates = half_space_certificates(-0.1, settings, runs=300)
    assert all(c.predict == ABSTAIN for c in certificates)
    assert np.mean([c.n for c in certificates]) < 16_384 / 8


def test_adaptive_decisions_by_simulation() -> None:
    assert_sound(simulated_false_claims(0.8, ADAPTIVE, RUNS, seed=1), RUNS)


@pytest.mark.usefixtures("_no_remembered_verdicts")
def test_planted_bug_early_stopping_is_not_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_sound(simulated_false_claims(0.5, EAGER, RUNS, seed=2), RUNS)
    arquant.certificates.verdict._judge.cache_clear()
    do_not_pay_for_looks(monkeypatch)
    with pytest.raises(Unsound):
        assert_sound(simulated_false_claims(0.5, EAGER, RUNS, seed=2), RUNS)


def sectors(z: np.ndarray) -> np.ndarray:
    """Three classes: right of both lines, above the first, below the second; symmetric about the first axis."""
    return np.where(np.abs(z[:, 1]) < z[:, 0], 0, np.where(z[:, 1] > 0, 1, 2))


def sector_probabilities(x: float) -> tuple[float, float]:
    """P(class 0), P(class 1) of `sectors` at (x, 0): the quadrant about the first axis, rotated by 45 degrees."""
    inside = ndtr(x / np.sqrt(2) / SIGMA) ** 2
    return float(inside), float((1 - inside) / 2)


def test_multiclass_certificates_of_three_sectors() -> None:
    p_a, p_b = sector_probabilities(0.6)
    true = SIGMA / 2 * (ndtri(p_a) - ndtri(p_b))
    settings = replace(SETTINGS, certificate="multiclass", n=200)
    model = smoothed(sectors, SIGMA, classes=3)
    certificates = model.certify(copies([0.6, 0.0], RUNS, classes=3), settings)
    assert_sound(count_false(certificates, 0, true), RUNS)
    one_sided = model.certify(copies([0.6, 0.0], 2000, classes=3), replace(SETTINGS, n=200))
    assert np.mean([c.radius for c in certificates]) > np.mean([c.radius for c in one_sided]) + 0.01


SLICES = np.array([0.4, 0.2, *[0.05] * 8])
"""probabilities of ten classes: one leads, one comes second, and the two counts are nearly independent"""


def false_multiclass_bounds(settings: Settings) -> int:
    """Of RUNS certificates of parallel slices, how many state a bound that is false for the first or the second class."""
    edges = 0.5 + SIGMA * ndtri(np.cumsum(SLICES)[:-1])
    model = smoothed(lambda z: np.searchsorted(edges, z[:, 0]), SIGMA, classes=len(SLICES))
    certificates = model.certify(copies([0.5, 0.5], RUNS, classes=len(SLICES)), settings)
    return sum(c.p_lower > SLICES[0] or (c.p_upper is not None and c.p_upper < SLICES[1]) for c in certificates)


MULTICLASS = {
    "fixed": replace(SETTINGS, certificate="multiclass", mode="label", n=400),
    "adaptive": replace(EAGER, certificate="multiclass"),
}


@pytest.mark.parametrize("kind", MULTICLASS)
def test_both_bounds_of_multiclass_certificates(kind: str) -> None:
    assert_sound(false_multiclass_bounds(MULTICLASS[kind]), RUNS)


@pytest.mark.usefixtures("_no_remembered_verdicts")
@pytest.mark.parametrize("kind", MULTICLASS)
def test_planted_bug_one_alpha_is_used_twice(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = arquant.certificates.verdict.claim
    monkeypatch.setattr(
        arquant.certificates.verdict, "claim", lambda votes, n, level, *rest, **o: own(votes, n, 2 * level, *rest, **o)
    )
    if kind == "adaptive":
        do_not_pay_for_looks(monkeypatch)
    with pytest.raises(Unsound):
        assert_sound(false_multiclass_bounds(MULTICLASS[kind]), RUNS)


FAMILY = 20


def family_failures(settings: Settings) -> int:
    """Of RUNS / FAMILY families of FAMILY images each, how many contain a false certificate."""
    certificates = half_space_certificates(0.3, settings)
    false = np.array([count_false([c], 0, 0.3) for c in certificates]).reshape(-1, FAMILY)
    return int(false.any(axis=1).sum())


def test_family_wise_certificates_hold_together() -> None:
    assert_sound(family_failures(replace(SETTINGS, n=200, family_wise=FAMILY)), RUNS // FAMILY)


def test_planted_bug_one_alpha_serves_a_whole_family() -> None:
    with pytest.raises(Unsound):
        assert_sound(family_failures(replace(SETTINGS, n=200)), RUNS // FAMILY)


def test_grid_votes_have_the_exact_cell_probabilities() -> None:
    p = float(ndtr((128 - 99.5) / (255 * SIGMA)))
    certificates = grid_certificates(SETTINGS)
    rate = sum(dict(c.counts)[0] for c in certificates) / sum(c.n for c in certificates)
    assert abs(rate - p) < 5 * np.sqrt(p * (1 - p) / (RUNS * 100))


def test_a_ball_is_certified_below_its_true_radius() -> None:
    # specs: d = 10, ball of radius 2 about 0, |x| = 0.5, sigma 0.5: p = 0.85103, certified <= 0.5204, true 0.8098
    assert pytest.approx(0.85103, abs=1e-5) == BALL_P
    assert max(c.radius for c in ball_certificates(SETTINGS)) < 0.8098


def test_a_constant_classifier_reaches_the_ceiling_exactly() -> None:
    model = smoothed(lambda z: np.zeros(len(z), np.int64), SIGMA)
    certificates = model.certify(copies([0.5, 0.5], 10), replace(SETTINGS, alpha=0.001, n=500))
    assert {c.radius for c in certificates} == {max_radius(500, 0.001, SIGMA, "gaussian")}
    assert max_radius(500, 0.001, 1.0) == pytest.approx(2.2052, abs=1e-4)


def answers_at_a_tie() -> int:
    """Of RUNS predictions for a point on the border, how many do not abstain: each is wrong for one side of it."""
    predictions = smoothed(half_space(0.5), SIGMA).predict(copies([0.5, 0.5], RUNS), n=500, alpha=ALPHA, seed=3)
    return sum(p.predict != ABSTAIN for p in predictions)


def test_predict_seldom_answers_at_a_tie() -> None:
    assert_sound(answers_at_a_tie(), RUNS)
    inside = smoothed(half_space(0.2), SIGMA).predict(copies([0.5, 0.5], 100), n=500, alpha=ALPHA, seed=3)
    assert all(p.predict == 0 for p in inside)


def test_planted_bug_predict_tests_one_side_only(monkeypatch: pytest.MonkeyPatch) -> None:
    own = arquant.certification.smoothing.predict_p_value
    monkeypatch.setattr(arquant.certification.smoothing, "predict_p_value", lambda n_a, n_b: own(n_a, n_b) / 2)
    with pytest.raises(Unsound):
        assert_sound(answers_at_a_tie(), RUNS)


def test_radii_grow_with_alpha_and_with_n_at_the_same_rate() -> None:
    def radius(k: int, n: int, alpha: float) -> float:
        verdict = judge({0: k, 1: n - k}, 0, n, replace(SETTINGS, n=n, alpha=alpha))
        assert verdict is not None
        return verdict.radius

    assert radius(90, 100, 0.001) < radius(90, 100, 0.01) < radius(900, 1000, 0.01) < SIGMA * ndtri(0.9)


@pytest.mark.parametrize("batch", [7, 64, 100, 1000])
def test_votes_do_not_depend_on_batch_size_or_order(batch: int) -> None:
    images = copies([0.5, 0.5], 12)
    settings = replace(SETTINGS, n=150, adaptive=Adaptive())
    reference = smoothed(half_space(0.3), SIGMA).certify(images, settings)
    model = smoothed(half_space(0.3), SIGMA, batch=batch)
    again = model.certify(images.take(np.arange(12)[::-1]), settings)
    assert [c.counts for c in again] == [c.counts for c in reference][::-1]
    assert [c.radius for c in again] == [c.radius for c in reference][::-1]
