"""Every key is fixed: the outcome never varies. Noise of the exact law would have failed with probability 1e-6."""

import math

import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.noise.source import CHUNK, KINDS, Noise, NoiseSource, noise_key
from tests.support.noise_quality import Check, SelfTest, _law, self_test

KEY = noise_key(0, "check")
SHAPE = (3, 32, 32)
GRID = Noise("grid", 0.5)


def ours(noise=GRID):
    source = NoiseSource(noise, KEY, SHAPE)
    return source.integers if noise.kind == "grid" else source.unit


def failures(draw, noise=GRID) -> str:
    return ", ".join(check.name for check in self_test(noise, KEY, draw=draw).failures)


@pytest.mark.parametrize("noise", [*(Noise(kind, 0.5) for kind in KINDS), Noise("grid", 0.002)], ids=str)
def test_our_noise_passes(noise) -> None:
    result = self_test(noise, KEY)
    assert result.passed, result.failures
    assert result.values == 4 * 4 * CHUNK * 3072
    assert result.false_alarm == 1e-6
    names = " ".join(check.name for check in result.checks)
    assert all(word in names for word in ("mean", "variance", "kurtosis", "tail", "cells", "coordinates", "images"))


@pytest.mark.parametrize("kind", KINDS)
def test_variance_1_percent_off_fails(kind) -> None:
    off = Noise(kind, 0.5 * math.sqrt(1.01))
    assert "variance" in failures(ours(off), Noise(kind, 0.5))


@pytest.mark.parametrize(
    "repeat",
    [
        lambda image, chunk: (image, 0),
        lambda image, chunk: (image, chunk % 2),
        lambda image, chunk: (0, chunk),
        lambda image, chunk: (image % 3, chunk),
        lambda image, chunk: (image, 1 if (image, chunk) == (3, 3) else chunk),
    ],
)
def test_a_repeated_chunk_fails(repeat) -> None:
    assert "any two samples" in failures(lambda image, chunk: ours()(*repeat(image, chunk)))


def test_antithetic_samples_fail() -> None:
    def draw(image, chunk):
        half = ours()(image, chunk)[: CHUNK // 2]
        return np.concatenate([half, -half])

    assert "any two samples" in failures(draw)


def test_cut_tails_fail() -> None:
    cut = round(4 * 127.5)
    assert "tail" in failures(lambda image, chunk: np.clip(ours()(image, chunk), -cut, cut))


def test_a_sum_of_twelve_uniforms_is_not_normal() -> None:
    def draw(image, chunk):
        random = np.random.Generator(np.random.Philox([image, chunk]))
        return np.rint(127.5 * (random.random((12, CHUNK, 3072), dtype=np.float32).sum(axis=0) - 6))

    found = failures(draw)
    assert "kurtosis" in found
    assert "tail" in found


def test_rounding_down_instead_of_to_nearest_fails() -> None:
    def draw(image, chunk):
        random = np.random.Generator(np.random.Philox([image, chunk]))
        return np.floor(127.5 * random.standard_normal((CHUNK, 3072)))

    assert "mean" in failures(draw)


def test_coarse_levels_fail_in_the_cells_alone() -> None:
    """Only even levels, with the right mean and nearly the right variance."""
    assert failures(lambda image, chunk: 2 * np.rint(ours()(image, chunk) / 2)) == "cells (899)"


def test_a_smoothed_image_of_noise_fails() -> None:
    def draw(image, chunk):
        noise = ours()(image, chunk).astype(np.float64)
        return np.rint((noise + 0.05 * np.roll(noise, 1, axis=3)) / math.sqrt(1 + 0.05**2))

    assert "coordinates 1 apart" in failures(draw)


def test_common_scale_per_sample_fails_in_the_squares() -> None:
    def draw(image, chunk):
        scale = 1 + 0.06 * np.resize([1, -1], CHUNK)
        return np.rint(ours()(image, chunk).reshape(CHUNK, -1) * scale[:, None])

    assert "squares" in failures(draw)


def test_an_independent_generator_of_the_same_law_passes() -> None:
    def draw(image, chunk):
        random = np.random.Generator(np.random.PCG64([image, chunk]))
        return np.rint(127.5 * random.standard_normal((CHUNK, 3072)))

    assert failures(draw) == ""


def test_nan_fails() -> None:
    def draw(image, chunk):
        levels = ours()(image, chunk).astype(np.float32)
        levels[0, 0, 0, 0] = np.nan
        return levels

    assert "mean" in failures(draw)


@pytest.mark.parametrize("noise", [*(Noise(kind, 0.3) for kind in KINDS), Noise("grid", 0.002)], ids=str)
def test_the_law_is_consistent(noise) -> None:
    law = _law(noise, 3_000_000)
    assert law.cells.sum() == pytest.approx(1, abs=1e-12)
    assert len(law.cells) == len(law.edges) + 1
    assert (np.diff(law.edges) > 0).all()
    assert law.edges == pytest.approx(-law.edges[::-1])
    assert noise.sigma == pytest.approx(math.sqrt(law.moments[0]) / (255 if noise.kind == "grid" else 1), rel=0.2)


def test_threshold_divides_the_rate_and_failures_fall_below_it() -> None:
    checks = (Check("a", 0.0, 1e-7), Check("b", 0.0, 2e-6), Check("c", 0.0, math.nan), Check("d", 0.0, 1.0))
    result = SelfTest(GRID, 1, 4e-6, checks)
    assert result.threshold == 1e-6
    assert [check.name for check in result.failures] == ["a", "c"]
    assert not result.passed


@pytest.mark.parametrize("options", [{"images": 1}, {"chunks": 1}, {"false_alarm": 0}, {"false_alarm": 1}])
def test_bad_options(options) -> None:
    with pytest.raises(InputError, match="self-test needs"):
        self_test(GRID, KEY, **options)


def test_noise_that_rounds_away_cannot_be_tested() -> None:
    with pytest.raises(InputError, match="rounds to 0"):
        self_test(Noise("grid", 1e-4), KEY, images=2, chunks=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_false_alarms_are_as_rare_as_stated(kind) -> None:
    """200 keys at a rate of 0.2: more than 64 alarms has probability below 3e-5."""
    runs = [
        self_test(Noise(kind, 0.5), noise_key(seed, "check"), images=2, chunks=2, false_alarm=0.2)
        for seed in range(200)
    ]
    alarms = sum(not run.passed for run in runs)
    assert 10 <= alarms <= 64
