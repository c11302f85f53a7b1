"""The guarantees themselves, by simulation: of many certificates of classifiers known in closed form, few are false.

A certificate is false if its class is not the smoothed classifier's or its radius exceeds the true one. Each test draws at
least 10,000 certificates at alpha = 0.05 and fails if the number of false ones would be that large with probability below
1e-6 under a rate of exactly alpha: the false-alarm rate of each test. Together they draw more than 100,000. Each kind of
test also runs against a planted bug and must fail there.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom, ncx2

import arquant.adaptive
import arquant.verdict
from arquant.adaptive import Adaptive
from arquant.bounds import certified_radius, max_radius
from arquant.certificate import ABSTAIN, Certificate, Settings
from arquant.smoothing import Smoothed
from arquant.verdict import judge
from tests.closed_forms import copies, half_space, smoothed

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


@pytest.mark.parametrize("margin", [0.2, 0.6])
def test_fixed_n_on_a_half_space(margin: float) -> None:
    certificates = half_space_certificates(margin, SETTINGS)
    assert len(certificates) == RUNS
    assert_sound(count_false(certificates, 0, margin), RUNS)
    share = np.mean([c.predict == 0 for c in certificates])
    assert share > (0.4 if margin == 0.2 else 0.99), "the certificate has lost its power"


def test_label_directed_on_a_half_space() -> None:
    certificates = half_space_certificates(0.3, replace(SETTINGS, mode="label"))
    assert_sound(count_false(certificates, 0, 0.3), RUNS)


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
            counted = arquant.verdict.next_look(counted, settings)
            k = int(votes[counted - 1])
            verdict = judge({0: k, 1: counted - k}, 0, counted, settings)
        false += verdict.radius > certified_radius(p, settings.sigma)
    return false


def test_adaptive_stopping_on_a_half_space() -> None:
    certificates = half_space_certificates(0.3, ADAPTIVE)
    assert "tolerance" in {c.stop for c in certificates}
    assert_sound(count_false(certificates, 0, 0.3), RUNS)


def test_adaptive_stopping_at_a_tie_abstains_early() -> None:
    settings = replace(ADAPTIVE, n=16_384)
    certificates = half_space_certificates(-0.1, settings, runs=300)
    assert all(c.predict == ABSTAIN for c in certificates)
    assert np.mean([c.n for c in certificates]) < 16_384 / 8


def test_adaptive_decisions_by_simulation() -> None:
    assert_sound(simulated_false_claims(0.8, ADAPTIVE, RUNS, seed=1), RUNS)


def test_planted_bug_early_stopping_is_not_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = replace(ADAPTIVE, adaptive=Adaptive(tolerance=10.0))  # claims at the first look that proves anything
    assert_sound(simulated_false_claims(0.5, eager, RUNS, seed=2), RUNS)
    arquant.verdict._judge.cache_clear()
    for module in (arquant.verdict, arquant.adaptive):
        monkeypatch.setattr(module, "level_at", lambda counted, n, alpha, rule: alpha)
    with pytest.raises(Unsound):
        assert_sound(simulated_false_claims(0.5, eager, RUNS, seed=2), RUNS)
    arquant.verdict._judge.cache_clear()


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


def test_adaptive_multiclass_certificates_of_three_sectors() -> None:
    p_a, p_b = sector_probabilities(0.6)
    settings = replace(ADAPTIVE, certificate="multiclass", mode="select")
    model = smoothed(sectors, SIGMA, classes=3, seed=0)
    certificates = model.certify(copies([0.6, 0.0], RUNS, classes=3), settings)
    assert_sound(count_false(certificates, 0, SIGMA / 2 * (ndtri(p_a) - ndtri(p_b))), RUNS)


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


def test_grid_noise_with_exact_cell_probabilities() -> None:
    # Class 0 where the level of the first pixel is at least 100; the pixel is 128 and one level is 1/255.
    levels = 255 * SIGMA
    p = float(ndtr((128 - 99.5) / levels))
    rule: Callable[[np.ndarray], np.ndarray] = lambda z: np.where(np.rint(255 * z[:, 0]) >= 100, 0, 1)  # noqa: E731
    model = smoothed(rule, SIGMA, noise="grid")
    image = np.array([128, 128], np.uint8)
    certificates = model.certify(copies(image, RUNS), replace(SETTINGS, noise="grid"))
    # The true radius: the smoothed classifier changes where P(class 0) = 1/2, at real-valued level 99.5.
    assert_sound(count_false(certificates, 0, (128 - 99.5) / 255), RUNS)
    rate = sum(dict(c.counts)[0] for c in certificates) / sum(c.n for c in certificates)
    assert abs(rate - p) < 5 * np.sqrt(p * (1 - p) / (RUNS * 100))


@pytest.mark.parametrize("noise", ["uniform", "laplace"])
def test_l1_certificates_on_a_half_space(noise: str) -> None:
    certificates = half_space_certificates(0.2, replace(SETTINGS, noise=noise))
    assert_sound(count_false(certificates, 0, 0.2), RUNS)
    assert np.mean([c.predict == 0 for c in certificates]) > 0.2


def test_a_ball_is_certified_below_its_true_radius() -> None:
    # specs: d = 10, ball of radius 2 about 0, |x| = 0.5, sigma 0.5: p = 0.85103, certified <= 0.5204, true 0.8098
    d, radius, distance = 10, 2.0, 0.5
    p = float(ncx2.cdf((radius / SIGMA) ** 2, d, (distance / SIGMA) ** 2))
    assert p == pytest.approx(0.85103, abs=1e-5)
    model = smoothed(lambda z: np.where((z**2).sum(1) <= radius**2, 0, 1), SIGMA, shape=(1, 1, d))
    x = np.zeros(d)
    x[0] = distance
    certificates = model.certify(copies(x, RUNS), SETTINGS)
    assert_sound(count_false(certificates, 0, certified_radius(p, SIGMA)), RUNS)
    assert max(c.radius for c in certificates) < 0.8098


def test_a_constant_classifier_reaches_the_ceiling_exactly() -> None:
    model = smoothed(lambda z: np.zeros(len(z), np.int64), SIGMA)
    certificates = model.certify(copies([0.5, 0.5], 10), replace(SETTINGS, alpha=0.001, n=500))
    assert {c.radius for c in certificates} == {max_radius(500, 0.001, SIGMA, "gaussian")}
    assert max_radius(500, 0.001, 1.0) == pytest.approx(2.2052, abs=1e-4)


def test_predict_is_seldom_wrong() -> None:
    model = smoothed(half_space(0.5 - 0.02), SIGMA)
    predictions = model.predict(copies([0.5, 0.5], RUNS), n=100, alpha=ALPHA, seed=3)
    assert_sound(sum(p.predict == 1 for p in predictions), RUNS)
    assert any(p.predict == 0 for p in predictions)


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
