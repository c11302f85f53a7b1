"""Do two counts of votes contradict each other? Exact tests with a stated rate of false alarms.

Votes on one image are independent draws of one law. A few of them, drawn again under the same key, are a random part of
those in the table; those of another key are a second sample. A p-value here is valid (P(p <= a) <= a for every a) if the
table is honest. Where another processor or engine repeats the votes, a share `changed` of them may differ.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6
"""probability that an honest table is refused by one round of tests"""
CHANGED = 0.03
"""share of an image's votes that another processor, version or engine may answer differently; `export` tolerates 0.02 on
average over images, and an image near a boundary has more"""
CHANGED_FLOAT = 0.005
"""the same share where both compute in float32: only votes of logits that are equal to the last digits differ"""
_SMALLEST = 1e-300

Votes = Mapping[int, int]


def part_p_value(part: Votes, total: Votes, classes: int, *, changed: float = 0.0) -> float:
    """Return the p-value of `part` being a random part of `total`; the multivariate hypergeometric law, class by class."""
    size, everything = sum(part.values()), sum(total.values())

    def tail(votes: int, all_votes: int) -> float:
        return float(stats.hypergeom.sf(votes - 1, everything, all_votes, size))

    return _over_classes(part, total, size, everything, classes, changed, tail)


def samples_p_value(first: Votes, second: Votes, classes: int, *, changed: float = 0.0) -> float:
    """Return the p-value of two samples having the same law: Fisher's exact test, class by class."""
    size, other = sum(first.values()), sum(second.values())

    def tail(votes: int, other_votes: int) -> float:
        return float(stats.hypergeom.sf(votes - 1, size + other, votes + other_votes, size))

    return _over_classes(first, second, size, other, classes, changed, tail)


def same_noise_p_value(first: Votes, second: Votes, *, changed: float) -> float:
    """Return the p-value of two counts over the same noisy images, of which a share may be answered differently."""
    size = sum(first.values())
    apart = max(abs(first.get(klass, 0) - second.get(klass, 0)) for klass in {*first, *second})
    return float(stats.binom.sf(apart - 1, size, changed))


def combined_p_value(p_values: Sequence[float]) -> float:
    """Join independent p-values: Bonferroni's bound sees one bad row, Fisher's sum many that are a little off."""
    if not p_values:
        return 1.0
    sound = np.clip(np.asarray(p_values, dtype=np.float64), _SMALLEST, 1.0)
    worst = len(sound) * float(np.min(p_values))
    summed = float(stats.chi2.sf(-2 * np.log(sound).sum(), 2 * len(sound)))
    return min(1.0, 2 * min(worst, summed))


def _over_classes(
    first: Votes, second: Votes, size: int, other: int, classes: int, changed: float, tail: Callable[[int, int], float]
) -> float:
    """Test too many votes for a class, and too many against it, and pay for every one of these tests."""
    smallest = 1.0
    for klass in {*first, *second}:
        votes, others = first.get(klass, 0), second.get(klass, 0)
        for k, rest in ((votes, others), (size - votes, other - others)):
            smallest = min(smallest, _granting(k, size, changed, lambda left, rest=rest: tail(left, rest)))  # type: ignore[misc]
    return min(1.0, 2 * classes * smallest)


def _granting(votes: int, size: int, changed: float, tail: Callable[[int], float]) -> float:
    """Return a p-value of `votes` when some of them may have changed sides: twice the best of max(P(more than d did),
    tail(votes - d)) over d. The first falls with d and the second grows, so they are searched for where they cross.
    """
    if changed == 0:
        return tail(votes)

    def more_than(d: int) -> float:
        return float(stats.binom.sf(d, size, changed))

    low, high = 0, votes  # tail(0) is 1
    while low < high:
        middle = (low + high) // 2
        if tail(votes - middle) >= more_than(middle):
            high = middle
        else:
            low = middle + 1
    best = max(tail(votes - low), more_than(low))
    if low:
        best = min(best, max(tail(votes - low + 1), more_than(low - 1)))
    return min(1.0, 2 * best)
