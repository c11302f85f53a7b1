"""A statistical self-test of the noise: moments, tails, a chi-square over cells, and correlations, each with a p-value.

A certificate is worth no more than its noise: a generator whose variance is 1 % off, that repeats itself or that cuts
the tails states radii that do not hold. The test knows the exact law (for `grid` its cell probabilities) and estimates
nothing from the data.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, ndtr, ndtri
from scipy.stats import binomtest

from arquant.base.errors import InputError
from arquant.noise.source import CHUNK, Noise, NoiseKey, NoiseSource
from arquant.noise.table import grid_table

Draw = Callable[[int, int], NDArray[np.generic]]
"""(image index, chunk) -> (64, C, H, W): levels for grid noise, else units of the pixel range"""

_SHAPE = (3, 32, 32)
_TAILS = (1e-2, 1e-3, 1e-4, 1e-5)
_CELLS = 1000
_EXPECTED = 20  # fewest values expected in a cell of the chi-square
_NONZERO = 10_000  # fewest levels other than 0 for which the normal approximations hold


@dataclass(frozen=True)
class Check:
    """One statistic of the drawn noise and the probability, under the exact law, of one at least as far out."""

    name: str
    statistic: float
    p_value: float


@dataclass(frozen=True)
class SelfTest:
    """The outcome of `self_test`."""

    noise: Noise
    values: int
    """how many were drawn"""
    false_alarm: float
    """probability with which noise of the exact law fails the test (a bound: one of the checks fails)"""
    checks: tuple[Check, ...]

    @property
    def threshold(self) -> float:
        """The p-value below which a check fails: the false-alarm rate shared equally among the checks."""
        return self.false_alarm / len(self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.p_value >= self.threshold)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures


@dataclass(frozen=True)
class _Law:
    """What the checks need to know of a distribution that is symmetric about 0."""

    moments: tuple[float, ...]
    """of order 2, 4, 6, 8"""
    tails: tuple[tuple[float, float], ...]
    """(t, P(|x| > t))"""
    edges: NDArray[np.float64]
    """between the cells of the chi-square"""
    cells: NDArray[np.float64]
    """probability of each"""


def self_test(
    noise: Noise,
    key: NoiseKey,
    *,
    images: int = 4,
    chunks: int = 4,
    false_alarm: float = 1e-6,
    draw: Draw | None = None,
) -> SelfTest:
    """Test the noise of the first `images` images (3 x 32 x 32) and `chunks` chunks under `key`.

    Exact noise fails with probability at most `false_alarm`, up to the error of the normal and chi-square
    approximations: a factor of 2 at the default rate. The default size, 3.1 million values in half a second, finds a
    variance that is 1 % off, tails cut at 4 sigma, a bias of 0.5 % of sigma, and any sample that occurs twice.

    Args:
        draw: another generator of the same law, to be tested instead of ours.
    """
    if images < 2 or chunks < 2 or not 0 < false_alarm < 1:
        raise InputError(
            f"the self-test needs 2 images, 2 chunks and a rate in (0, 1), got {images}, {chunks}, {false_alarm}"
        )
    if draw is None:
        source = NoiseSource(noise, key, _SHAPE)
        draw = source.integers if noise.kind == "grid" else source.unit
    samples = np.empty((images, chunks * CHUNK, math.prod(_SHAPE)), dtype=np.float32)
    for image in range(images):
        for chunk in range(chunks):
            samples[image, chunk * CHUNK : (chunk + 1) * CHUNK] = draw(image, chunk).reshape(CHUNK, -1)
    law = _law(noise, samples.size)
    checks = [*_moments(samples, law), *_tails(samples, law), _chi_square(samples, law)]
    checks += [*_correlations(samples, law), _all_pairs(samples, law)]
    return SelfTest(noise, samples.size, false_alarm, tuple(checks))


def _law(noise: Noise, count: int) -> _Law:
    if noise.kind == "grid":
        return _grid_law(noise.sigma, count)
    inner = np.arange(1, _CELLS) / _CELLS
    halves = np.array(_TAILS) / 2
    moments: tuple[float, ...]
    if noise.kind == "gaussian":
        scale, moments, edges, ends = noise.sigma, (1, 3, 15, 105), ndtri(inner), ndtri(halves)
    elif noise.kind == "uniform":
        scale, moments = math.sqrt(3) * noise.sigma, (1 / 3, 1 / 5, 1 / 7, 1 / 9)
        edges, ends = 2 * inner - 1, 2 * halves - 1
    else:
        scale, moments = noise.sigma / math.sqrt(2), (2, 24, 720, 40320)
        edges, ends = np.sign(inner - 0.5) * -np.log1p(-np.abs(2 * inner - 1)), np.log(2 * halves)
    return _Law(
        tuple(m * scale ** (2 * order) for order, m in enumerate(moments, 1)),
        tuple((-scale * float(end), tail) for end, tail in zip(ends, _TAILS, strict=True)),
        scale * edges,
        np.full(_CELLS, 1 / _CELLS),
    )


def _grid_law(sigma: float, count: int) -> _Law:
    table = grid_table(sigma)
    mass = table.probabilities()
    if count * (1 - mass[table.reach]) < _NONZERO:
        raise InputError(f"grid noise of sigma {sigma} nearly always rounds to 0: there is nothing to test")
    levels = np.arange(-table.reach, table.reach + 1, dtype=np.float64)
    above = np.cumsum(mass[: table.reach])[::-1]  # above[j] = P(level > j) by symmetry, summed from the small end
    tails = {min(int(np.count_nonzero(above > tail / 2)), table.reach - 1) for tail in _TAILS}
    wide = np.flatnonzero((count * mass[table.reach : -1] >= _EXPECTED) & (count * above >= _EXPECTED))
    inside = int(wide[-1]) if wide.size else 0
    edges = np.arange(-inside - 0.5, inside + 1)
    cells = np.array([above[inside], *mass[table.reach - inside : table.reach + inside + 1], above[inside]])
    return _Law(
        tuple(float(mass @ levels**order) for order in (2, 4, 6, 8)),
        tuple((level + 0.5, float(2 * above[level])) for level in sorted(tails)),
        edges,
        cells,
    )


def _z_check(name: str, z: float, tests: int = 1) -> Check:
    return Check(name, z, min(1.0, 2 * tests * float(ndtr(-abs(z)))) if math.isfinite(z) else 0.0)


def _moments(samples: NDArray[np.float32], law: _Law) -> Iterator[Check]:
    m2, m4, m6, m8 = law.moments
    exact = ((0.0, m2), (m2, m4 - m2 * m2), (0.0, m6), (m4, m8 - m4 * m4))
    power = np.ones(1)
    values = samples.astype(np.float64)
    for name, (mean, variance) in zip(("mean", "variance", "skewness", "kurtosis"), exact, strict=True):
        power = power * values
        yield _z_check(name, (float(power.mean()) - mean) / math.sqrt(variance / samples.size))


def _tails(samples: NDArray[np.float32], law: _Law) -> Iterator[Check]:
    size = np.abs(samples)
    for end, probability in law.tails:
        count = int(np.count_nonzero(size > end))
        yield Check(f"tail {probability:.2g}", count, float(binomtest(count, samples.size, probability).pvalue))


def _chi_square(samples: NDArray[np.float32], law: _Law) -> Check:
    cell = np.searchsorted(law.edges.astype(np.float32), samples.ravel())
    expected = samples.size * law.cells
    statistic = float((np.square(np.bincount(cell, minlength=law.cells.size) - expected) / expected).sum())
    freedom = law.cells.size - 1
    p_value = 2 * float(min(chdtr(freedom, statistic), chdtrc(freedom, statistic)))
    return Check(f"cells ({law.cells.size})", statistic, min(1.0, p_value))


def _correlations(samples: NDArray[np.float32], law: _Law) -> Iterator[Check]:
    """Of the values, and of their squares, at fixed distances; z-scores under independence."""
    values = samples / np.float32(math.sqrt(law.moments[0]))
    spread = law.moments[1] / law.moments[0] ** 2 - 1
    squares = (values * values - 1) / np.float32(math.sqrt(spread))
    _, height, width = _SHAPE
    lags = (1, 2, 3, 4, width, height * width)
    for name, x in (("values", values), ("squares", squares)):
        pairs = [(f"coordinates {lag} apart", x[:, :, lag:], x[:, :, :-lag]) for lag in lags]
        pairs += [("samples 1 apart", x[:, 1:], x[:, :-1]), (f"samples {CHUNK} apart", x[:, CHUNK:], x[:, :-CHUNK])]
        pairs += [("images 1 apart", x[1:], x[:-1])]
        for place, a, b in pairs:
            z = float(np.einsum("ijk,ijk->", a, b, dtype=np.float64)) / math.sqrt(a.size)
            yield _z_check(f"correlation of {name}, {place}", z)


def _all_pairs(samples: NDArray[np.float32], law: _Law) -> Check:
    """The largest correlation of any two samples, of whichever images: repeated noise shows here."""
    rows = samples.reshape(-1, samples.shape[2]) / np.float32(math.sqrt(law.moments[0]))
    products = np.abs(rows @ rows.T)
    np.fill_diagonal(products, 0)
    pairs = len(rows) * (len(rows) - 1) // 2
    return _z_check("correlation of any two samples", float(products.max()) / math.sqrt(rows.shape[1]), pairs)
