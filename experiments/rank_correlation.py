"""Do two scores rank alike? Rank correlations with intervals over what is ranked."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from arquant.certificates.bounds import FloatArray
from arquant.certificates.resampling import Interval

RESAMPLES = 2000


def spearman(first: FloatArray, second: FloatArray) -> FloatArray:
    """Rank correlation of each row; nan for a row of equal values."""
    a, b = (rankdata(each, axis=1) for each in (first, second))
    a, b = (each - each.mean(axis=1, keepdims=True) for each in (a, b))
    return _ratio((a * b).sum(axis=1), (a * a).sum(axis=1), (b * b).sum(axis=1))


def kendall(first: FloatArray, second: FloatArray, weights: FloatArray) -> FloatArray:
    """Return tau-b with each value taken as often as a row of `weights` says; nan where all are equal."""
    a, b = (np.sign(each[:, None] - each[None, :]) for each in (first, second))
    parts = (np.einsum("bi,ij,bj->b", weights, each, weights) for each in (a * b, a * a, b * b))
    return _ratio(*parts)


def _ratio(product: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    scale = np.sqrt(first * second)
    ratio: FloatArray = np.divide(product, scale, out=np.full(product.shape, np.nan), where=scale > 0)
    return ratio


@dataclass(frozen=True)
class Ranking:
    """Agreement of a score with the careful one; intervals over policies, drawn anew."""

    spearman: Interval
    kendall: Interval
    better_half: Interval
    """Kendall's, among the policies that the careful score puts in its better half"""
    regret: float
    """careful score of the best policy, less that of the policy which this score likes best"""


def ranking(values: FloatArray, careful: FloatArray, seed: int) -> Ranking:
    """Compare two scores of the same policies."""
    count = len(values)
    every = _picks(count, seed)
    half = np.sort(np.argsort(-careful, kind="stable")[: max(2, (count + 1) // 2)])
    return Ranking(
        _interval(spearman(values[every], careful[every])),
        _interval(kendall(values, careful, _multiplicity(every, count))),
        _interval(kendall(values[half], careful[half], _multiplicity(_picks(len(half), seed), len(half)))),
        float(careful.max() - careful[np.argmax(values)]),
    )


def _picks(count: int, seed: int) -> NDArray[np.int64]:
    """Take each once, then RESAMPLES times as many drawn with replacement: a row each."""
    drawn = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    return np.vstack([np.arange(count), drawn])


def _multiplicity(picks: NDArray[np.int64], count: int) -> FloatArray:
    shifted = picks + count * np.arange(len(picks))[:, None]
    counts = np.bincount(shifted.ravel(), minlength=count * len(picks))
    return counts.reshape(len(picks), count).astype(np.float64)


def _interval(draws: FloatArray) -> Interval:
    """Return the first value, and the interval of the others."""
    finite = draws[1:][np.isfinite(draws[1:])]
    low, high = np.quantile(finite, [0.025, 0.975]) if finite.size else (np.nan, np.nan)
    return Interval(float(draws[0]), float(low), float(high))
