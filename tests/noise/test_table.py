import math
from decimal import Context, localcontext
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from arquant.noise.table import UNDECIDED, grid_table

SIGMAS = (0.001, 0.01, 0.12, 0.25, 0.5)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_every_threshold_is_the_nearest_integer(sigma) -> None:
    mpmath = pytest.importorskip("mpmath")
    table = grid_table(sigma)
    with mpmath.workdps(50):
        scale = 255 * mpmath.mpf(sigma)
        levels = range(-table.reach, table.reach)
        exact = [int(mpmath.nint(2**64 * mpmath.ncdf((level + mpmath.mpf(0.5)) / scale))) for level in levels]
        beyond = 2**64 * mpmath.ncdf(-(table.reach + mpmath.mpf(0.5)) / scale)
    assert table.thresholds.tolist() == exact
    assert beyond <= 0.5


def test_known_answers() -> None:
    """Pinned: these decide every published vote."""
    table = grid_table(0.5)
    assert table.reach == 1167
    assert table.thresholds[1166:1169].tolist() == [9194512557308354100, 9252231516401197516, 9309948700245272359]
    assert table.thresholds[100:102].tolist() == [556, 594]


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_law_is_symmetric_and_complete(sigma) -> None:
    table = grid_table(sigma)
    thresholds = [int(threshold) for threshold in table.thresholds]
    assert all(low + high == 2**64 for low, high in zip(thresholds, reversed(thresholds), strict=True))
    assert all(low <= high for low, high in pairwise(thresholds))
    mass = table.probabilities()
    assert len(mass) == 2 * table.reach + 1
    assert np.array_equal(mass, mass[::-1])
    assert mass.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_cell_probabilities_are_those_of_the_rounded_gaussian(sigma) -> None:
    """Against SciPy, on the side where its differences do not cancel."""
    table = grid_table(sigma)
    level = np.arange(-table.reach, 1)
    exact = ndtr((level + 0.5) / (255 * sigma)) - ndtr((level - 0.5) / (255 * sigma))
    assert table.probabilities()[: table.reach + 1] == pytest.approx(exact, rel=1e-10, abs=2**-63)


def test_the_standard_deviation_is_that_of_rounding() -> None:
    table = grid_table(0.5)
    level = np.arange(-table.reach, table.reach + 1)
    # Sheppard's correction is exact to all digits at 127 levels per sigma
    assert table.probabilities() @ level**2 == pytest.approx(127.5**2 + 1 / 12, rel=1e-13)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_guide_agrees_with_the_thresholds_in_every_cell(sigma) -> None:
    table = grid_table(sigma)
    first = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    low, high = table.levels(first), table.levels(first + np.uint64(2**48 - 1))
    assert np.array_equal(table.guide, np.where(low == high, low, UNDECIDED))
    assert (table.guide == UNDECIDED).mean() < 0.02


@given(st.sampled_from(SIGMAS), st.integers(0, 2**64 - 1))
def test_levels_count_the_thresholds_below(sigma, word) -> None:
    table = grid_table(sigma)
    expected = sum(int(threshold) <= word for threshold in table.thresholds) - table.reach
    assert table.levels(np.array([word], dtype=np.uint64))[0] == expected


def test_total_variation_bounds_the_actual_distance() -> None:
    mpmath = pytest.importorskip("mpmath")
    table = grid_table(0.05)
    with mpmath.workdps(50):
        edges = [mpmath.ncdf((level + mpmath.mpf(0.5)) / (255 * mpmath.mpf(0.05))) for level in range(-400, 400)]
        exact = dict(zip(range(-399, 400), np.diff(np.array(edges)), strict=True))
        counts = np.diff([0, *(int(threshold) for threshold in table.thresholds), 2**64])
        drawn = {level - table.reach: mpmath.mpf(int(count)) / 2**64 for level, count in enumerate(counts)}
        distance = sum(abs(exact[level] - drawn.get(level, 0)) for level in exact) / 2
    assert 0 < distance <= table.total_variation == (table.reach + 1) * 2**-64


def test_tiny_sigma_rounds_to_zero() -> None:
    table = grid_table(1e-6)
    assert table.reach == 0
    assert not table.guide.any()
    assert table.probabilities().tolist() == [1.0]


def test_the_table_does_not_depend_on_the_callers_decimal_context() -> None:
    with localcontext(Context(prec=5, rounding="ROUND_UP")):
        narrow = grid_table.__wrapped__(0.02)
    assert np.array_equal(narrow.thresholds, grid_table(0.02).thresholds)


def test_reach_is_where_half_a_unit_is_left() -> None:
    assert grid_table(0.5).reach / 127.5 == pytest.approx(9.15, abs=0.01)
    assert math.erfc(grid_table(0.5).reach / 127.5 / math.sqrt(2)) / 2 == pytest.approx(2**-65, rel=0.1)


def test_tables_cannot_be_altered() -> None:
    table = grid_table(0.5)
    for array in (table.thresholds, table.guide):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
