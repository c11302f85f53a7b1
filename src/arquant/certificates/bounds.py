"""Confidence bounds on vote probabilities and the radii they prove.

Everything here is float64 and vectorised: scalars in, a float out; arrays in, an array out (broadcast).
Lower bounds and radii are rounded down, upper bounds up, so that floating point never claims more than the mathematics:
scipy's inverse beta functions were compared with 40-digit arithmetic and erred by at most 2.4e-12 of the value, so
`_SLACK` is conceded on the smaller of p and 1 - p.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from arquant.base.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NORMS = {"grid": "l2", "gaussian": "l2", "uniform": "l1", "laplace": "l1"}
"""The norm in which the radius of each kind of noise is measured."""

FIRST_LOOK = 64
_SLACK = 1e-11
_SMALLEST_ALPHA = 1e-200
"""scipy's inverse of the beta law is wrong at 1e-300, and was right wherever tried down to 1e-250"""
_LARGEST_SIGMA = 1e6
_RADIUS_SLACK = 2.0**-50


class _CountBound(Protocol):
    @overload
    def __call__(self, k: int, n: int, alpha: float) -> float: ...
    @overload
    def __call__(self, k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> FloatArray: ...


class _RadiusBound(Protocol):
    @overload
    def __call__(self, p_lower: float, sigma: float) -> float: ...
    @overload
    def __call__(self, p_lower: ArrayLike, sigma: float) -> FloatArray: ...


def _count_bound(function: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]) -> _CountBound:
    """Check counts and level, broadcast them, and give scalars back for scalars."""

    @functools.wraps(function)
    def bound(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Any:
        k_, n_, alpha_ = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (k, n, alpha)))
        check_counts(k_, n_)
        check_alpha(alpha_)
        result = function(k_, n_, alpha_)
        return float(result) if k_.ndim == 0 else result

    return bound


def _radius_bound(function: Callable[[FloatArray, float], FloatArray]) -> _RadiusBound:
    """Check probability and sigma, give 0.0 for p <= 1/2, round the rest down."""

    @functools.wraps(function)
    def radius(p_lower: ArrayLike, sigma: float) -> Any:
        p = np.asarray(p_lower, dtype=np.float64)
        check_probability("p_lower", p)
        check_sigma(sigma)
        with np.errstate(divide="ignore", over="ignore"):
            result = np.where(p > 0.5, _down(function(np.maximum(p, 0.5), sigma)), 0.0)
        return float(result) if p.ndim == 0 else result

    return radius


def check_counts(k: ArrayLike, n: ArrayLike) -> None:
    """Raise InputError unless n >= 1 and 0 <= k <= n are whole numbers."""
    k_, n_ = np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64)
    if not np.all((n_ >= 1) & (n_ == np.floor(n_)) & np.isfinite(n_)):
        raise InputError(f"the number of samples must be a whole number >= 1, got n={_show(n_)}")
    if not np.all((k_ >= 0) & (k_ <= n_) & (k_ == np.floor(k_))):
        raise InputError(f"votes must be whole numbers from 0 to n, got k={_show(k_)} of n={_show(n_)}")


def whole_number(name: str, value: Any) -> int:
    """Return a number of any type, 1e6 and NumPy's included, as an int."""
    try:
        if value == int(value):
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name} must be a whole number, got {value!r}")


def check_probability(name: str, p: ArrayLike) -> None:
    """Raise InputError unless every value lies in [0, 1]."""
    p_ = np.asarray(p, dtype=np.float64)
    if not np.all((p_ >= 0) & (p_ <= 1)):
        raise InputError(f"{name} must be a probability, got {_first(p_, (p_ >= 0) & (p_ <= 1))}")


def check_sigma(sigma: float) -> None:
    """Raise InputError unless sigma is a positive number, at most a million pixel ranges."""
    if not 0 < sigma <= _LARGEST_SIGMA:
        raise InputError(
            f"sigma must be positive and at most {_LARGEST_SIGMA:g} (1.0 is the distance from black to white), got {sigma}"
        )


def check_alpha(alpha: ArrayLike) -> None:
    """Raise InputError unless every alpha lies strictly between 0 and 1, and not below what the bounds are right for."""
    alpha_ = np.asarray(alpha, dtype=np.float64)
    if not np.all((alpha_ > 0) & (alpha_ < 1)):
        raise InputError(f"alpha must lie strictly between 0 and 1, got {_first(alpha_, (alpha_ > 0) & (alpha_ < 1))}")
    if not np.all(alpha_ >= _SMALLEST_ALPHA):
        raise InputError(f"alpha must be at least {_SMALLEST_ALPHA:g}, got {_first(alpha_, alpha_ >= _SMALLEST_ALPHA)}")


@_count_bound
def clopper_pearson_lower(k: FloatArray, n: FloatArray, alpha: FloatArray) -> FloatArray:
    """Return p_lower: with probability >= 1 - alpha over n votes with k successes, the success probability is >= it.

    0 at k = 0, alpha^(1/n) at k = n, the alpha-quantile of Beta(k, n - k + 1) between; rounded down.
    """
    direct = _lower_tail(k, n, alpha)
    return np.where(direct <= 0.5, direct, _below(1.0 - _upper_tail(n - k, n, alpha)))


@_count_bound
def clopper_pearson_upper(k: FloatArray, n: FloatArray, alpha: FloatArray) -> FloatArray:
    """Return p_upper: with probability >= 1 - alpha over n votes with k successes, the success probability is <= it.

    1 - alpha^(1/n) at k = 0, 1 at k = n; rounded up.
    """
    direct = _upper_tail(k, n, alpha)
    return np.where(direct < 0.5, direct, _above(1.0 - _lower_tail(n - k, n, alpha)))


@_radius_bound
def certified_radius(p_lower: FloatArray, sigma: float) -> FloatArray:
    """Return the l2 radius that Gaussian noise of standard deviation sigma proves: sigma * Phi^-1(p_lower).

    If the top class has probability >= p_lower at x, the smoothed classifier is constant on the open ball of this
    radius around x (Cohen et al. 2019). 0.0 for p_lower <= 1/2; rounded down; in units of the pixel range.
    """
    return np.asarray(sigma * special.ndtri(p_lower), dtype=np.float64)


@_radius_bound
def l1_radius_uniform(p_lower: FloatArray, sigma: float) -> FloatArray:
    """Return the l1 radius of uniform noise on [-sqrt(3) sigma, sqrt(3) sigma]: 2 sqrt(3) sigma (p_lower - 1/2)."""
    return np.asarray(2.0 * np.sqrt(3.0) * sigma * (p_lower - 0.5), dtype=np.float64)


@_radius_bound
def l1_radius_laplace(p_lower: FloatArray, sigma: float) -> FloatArray:
    """Return the l1 radius of Laplace noise of scale sigma / sqrt(2): -sigma / sqrt(2) * ln(2 (1 - p_lower))."""
    return np.asarray(-sigma / np.sqrt(2.0) * np.log(2.0 * (1.0 - p_lower)), dtype=np.float64)


_RADII: dict[str, _RadiusBound] = {
    "grid": certified_radius,
    "gaussian": certified_radius,
    "uniform": l1_radius_uniform,
    "laplace": l1_radius_laplace,
}


def check_noise(noise_kind: str) -> None:
    """Raise InputError unless the kind of noise is one of ours."""
    if noise_kind not in NORMS:
        raise InputError(f"unknown noise {noise_kind!r}; choose one of {', '.join(NORMS)}")


@overload
def radius_of(noise_kind: str, p_lower: float, sigma: float) -> float: ...
@overload
def radius_of(noise_kind: str, p_lower: FloatArray, sigma: float) -> FloatArray: ...
def radius_of(noise_kind: str, p_lower: float | FloatArray, sigma: float) -> float | FloatArray:
    """Return the radius that p_lower proves under this kind of noise, in the norm `NORMS[noise_kind]`."""
    check_noise(noise_kind)
    return _RADII[noise_kind](p_lower, sigma)


@overload
def two_sided_radius(p_lower: float, p_upper: float, sigma: float) -> float: ...
@overload
def two_sided_radius(p_lower: FloatArray, p_upper: FloatArray, sigma: float) -> FloatArray: ...
def two_sided_radius(p_lower: float | FloatArray, p_upper: float | FloatArray, sigma: float) -> float | FloatArray:
    """Return the l2 radius if no other class has probability > p_upper: sigma/2 (Phi^-1(p_lower) - Phi^-1(p_upper)).

    No other class can exceed 1 - p_lower either, so that is used where it is smaller. 0.0 for p_lower <= p_upper;
    rounded down.
    """
    lower, upper = np.broadcast_arrays(np.asarray(p_lower, dtype=np.float64), np.asarray(p_upper, dtype=np.float64))
    check_probability("p_lower", lower)
    check_probability("p_upper", upper)
    check_sigma(sigma)
    upper = np.minimum(upper, 1.0 - lower)
    with np.errstate(invalid="ignore"):  # inf - inf where p_lower = p_upper is 0 or 1: no claim
        gap = sigma / 2 * (special.ndtri(lower) - special.ndtri(upper))
    # the difference of two rounded quantiles: concede an ulp of the larger one, not of the difference
    slack = sigma * _RADIUS_SLACK * np.maximum(np.abs(special.ndtri(lower)), 1.0)
    result = np.where(lower > upper, np.maximum(_down(gap - np.where(np.isinf(gap), 0.0, slack)), 0.0), 0.0)
    return float(result) if result.ndim == 0 else result


def max_radius(n: int, alpha: float, sigma: float, noise_kind: str = "grid") -> float:
    """Return the largest radius that n votes can prove at level alpha: the one of a unanimous vote."""
    return radius_of(noise_kind, clopper_pearson_lower(n, n, alpha), sigma)


def min_votes(n: int, alpha: float) -> int | None:
    """Return the fewest of n votes that prove a probability above 1/2 at level alpha; None if not even n of n do."""
    if clopper_pearson_lower(n, n, alpha) <= 0.5:
        return None
    fails, proves = 0, n
    while proves - fails > 1:
        middle = (fails + proves) // 2
        if clopper_pearson_lower(middle, n, alpha) > 0.5:
            proves = middle
        else:
            fails = middle
    return proves


def predict_p_value(n_a: int, n_b: int) -> float:
    """Return the p-value of PREDICT's test: exact, two-sided, for n_a of n_a + n_b votes at probability 1/2.

    A smoothed prediction that is returned only where this is <= alpha is the wrong class with probability <= alpha.
    """
    if n_a < 0 or n_b < 0:
        raise InputError(f"vote counts must not be negative, got {n_a} and {n_b}")
    most, least = max(n_a, n_b), min(n_a, n_b)
    if most == least:
        return 1.0
    return min(1.0, 2.0 * float(special.betainc(most, least + 1, 0.5)))


def looks(n: int) -> IntArray:
    """Return the sample counts at which an adaptive rule may look: 64, 128, 256, ... below n, then n itself."""
    check_counts(0, n)
    times = [FIRST_LOOK << j for j in range(int(n).bit_length()) if FIRST_LOOK << j < n]
    return np.array([*times, n], dtype=np.int64)


def look_alphas(alpha: float, n: int) -> FloatArray:
    """Split alpha over `looks(n)`: half to the last look, a quarter to the one before, ...; the sum is alpha exactly.

    A claim made at look j at level look_alphas[j] is false with probability <= alpha whatever rule picked the look.
    """
    check_alpha(alpha)
    count = len(looks(n))
    exponents = np.arange(count, 0, -1)
    exponents[0] = max(count - 1, 0)  # the first two looks share what is left, so that the sum is 1
    return np.asarray(alpha * 0.5**exponents, dtype=np.float64)


def _lower_tail(k: FloatArray, n: FloatArray, alpha: FloatArray) -> FloatArray:
    """Return the Clopper-Pearson lower bound, accurate relative to itself (meant for bounds up to 1/2)."""
    inner = special.betaincinv(np.maximum(k, 1.0), n - k + 1, alpha) * (1 - _SLACK)
    result = np.where(k == n, np.exp(np.log(alpha) / n) * (1 - _RADIUS_SLACK), inner)
    return np.where(k == 0, 0.0, _below(result))


def _upper_tail(k: FloatArray, n: FloatArray, alpha: FloatArray) -> FloatArray:
    """Return the Clopper-Pearson upper bound, accurate relative to itself (meant for bounds up to 1/2)."""
    inner = special.betainccinv(k + 1, np.maximum(n - k, 1.0), alpha) * (1 + _SLACK)
    result = np.where(k == 0, -np.expm1(np.log(alpha) / n) * (1 + _RADIUS_SLACK), inner)
    return np.where(k == n, 1.0, _above(result))


def _above(value: FloatArray) -> FloatArray:
    return np.minimum(np.nextafter(value, 2.0), 1.0)


def _below(value: FloatArray) -> FloatArray:
    return np.maximum(np.nextafter(value, -1.0), 0.0)


def _down(value: FloatArray) -> FloatArray:
    return np.where(np.isinf(value), value, _below(value * (1 - _RADIUS_SLACK)))


def _first(values: FloatArray, good: NDArray[np.bool_]) -> str:
    return f"{float(np.ravel(values)[np.flatnonzero(~np.ravel(good))[0]]):g}"


def _show(values: FloatArray) -> str:
    return f"{float(values):g}" if values.ndim == 0 else f"an array from {np.min(values):g} to {np.max(values):g}"
