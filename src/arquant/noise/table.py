"""The rounded Gaussian as integers: thresholds that turn 64 uniform bits into a grid level, exactly and reproducibly.

A grid level is rint(s z) with z standard normal and s = 255 sigma, so P(level <= j) = Phi((j + 1/2) / s). A uniform
64-bit integer U gives the level -reach + #{thresholds <= U}, where each threshold is 2^64 Phi((j + 1/2) / s) rounded to
the nearest integer. The thresholds come from the standard library's decimal arithmetic, which is correctly rounded
everywhere: the table is a function of sigma alone, the same for every machine and library version.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

UNDECIDED = -32768
"""guide entry of a cell that contains a threshold: its sixteen bits do not decide the level"""

_DIGITS = 45
_TERM = Decimal("1e-30")  # the neglected rest of the series is below 1e-29, a billionth of half a unit of 2^-64
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
_CUT = 10  # Phi(-10) is 7.6e-24, far below the 2^-65 at which thresholds stop being representable


@dataclass(frozen=True, eq=False)
class GridTable:
    """Inverse-CDF table of rint(255 sigma z).

    Every threshold is within 2^-65 of the true cumulative probability and the levels beyond `reach` have at most 2^-65
    on either side, so a level drawn from 64 ideal bits is within total variation (reach + 1) 2^-64 of the exact law.
    The table is exactly symmetric.
    """

    reach: int
    """largest level; the levels are -reach .. reach, about 9.15 standard deviations"""
    thresholds: NDArray[np.uint64]
    """2 reach integers in order; equal ones (levels rarer than 2^-64) occur far out"""
    guide: NDArray[np.int16]
    """for each value of the 16 leading bits: the level they decide, or UNDECIDED"""

    @property
    def total_variation(self) -> float:
        """Bound on the total variation distance of one drawn level from the rounded Gaussian."""
        return (self.reach + 1) * 2.0**-64

    def levels(self, words: NDArray[np.uint64]) -> NDArray[np.int16]:
        """Return the level of each 64-bit word by searching the whole table; the guide gives the same, faster."""
        rank = np.searchsorted(self.thresholds, words, side="right")
        return (rank - self.reach).astype(np.int16)

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each level -reach .. reach as drawn; float64, relative error 2^-53."""
        steps = np.diff(self.thresholds).astype(np.float64)
        tail = float(self.thresholds[0]) if self.reach else 2.0**64
        ends = [tail, *steps, tail] if self.reach else [tail]
        return np.array(ends) * 2.0**-64


@lru_cache(maxsize=16)
def grid_table(sigma: float) -> GridTable:
    """Return the table for noise of standard deviation `sigma` (in units of the pixel range); 0.07 s at sigma 0.5."""
    half = 1 << 63
    # Only the upper half is computed and mirrored, so that the table is exactly symmetric whatever the rounding does.
    above = list(_central_masses(sigma))
    thresholds = np.array([half - mass for mass in reversed(above)] + [half + mass for mass in above], dtype=np.uint64)
    reach = len(above)
    cells = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    first = np.searchsorted(thresholds, cells, side="right")
    last = np.searchsorted(thresholds, cells | np.uint64((1 << 48) - 1), side="right")
    # A cell is all words that share their 16 leading bits. If no threshold lies inside it, those bits alone decide the level:
    # the other 48 need not be drawn. This is true of 97 to 99 % of the draws, and saves most of the random bits.
    guide = np.where(first == last, first - reach, UNDECIDED).astype(np.int16)
    thresholds.setflags(write=False)
    guide.setflags(write=False)
    return GridTable(reach, thresholds, guide)


def _central_masses(sigma: float) -> Iterator[int]:
    """Return 2^64 (Phi((j + 1/2) / s) - 1/2) as integers for j = 0, 1, ..., while they differ from 2^63.

    Uses Phi(x) - 1/2 = phi(x) (x + x^3/3 + x^5/(3*5) + ...), whose terms are all positive.
    """
    with localcontext(Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN)):
        step = 1 / (255 * Decimal(sigma))
        density = 1 / (2 * _PI).sqrt()
        x = step / 2
        while x < _CUT:
            square = x * x
            term = x * density * (-square / 2).exp()
            total, odd = term, 1
            while term > _TERM:
                odd += 2
                term = term * square / odd
                total += term
            mass = int((total * (1 << 64)).to_integral_value())
            if mass >= 1 << 63:
                return
            yield mass
            x += step
