"""The tests behind `arquant check`: honest votes are accused as rarely as is said, forged ones are found."""

import numpy as np
import pytest
from scipy import stats

from arquant.certificates.contradictions import combined_p_value, part_p_value, same_noise_p_value, samples_p_value

LEVEL = 0.05
RUNS = 10_000


def false_alarms(p_value_of_counts, probabilities):
    """Return the exact probability that a p-value of one count is at most LEVEL."""
    return sum(mass for k, mass in enumerate(probabilities) if p_value_of_counts(k) <= LEVEL)


@pytest.mark.parametrize("changed", [0.0, 0.03])
@pytest.mark.parametrize(("n", "votes"), [(300, 290), (300, 160), (1000, 1000), (100, 3)])
def test_a_part_of_honest_votes_is_accused_at_most_as_often_as_is_said(n, votes, changed):
    """Exactly: over every number of votes that 64 of n samples can have, with so many answered differently at worst."""
    drawn = stats.hypergeom.pmf(np.arange(65), n, votes, 64)
    total = {0: votes, 1: n - votes}

    def p_value(k):
        return part_p_value({0: k, 1: 64 - k}, total, 2, changed=changed)

    assert false_alarms(p_value, drawn) <= LEVEL
    moved = np.zeros(65)
    flips = stats.binom.pmf(np.arange(65), 64, changed)
    for k, mass in enumerate(drawn):
        for d, chance in enumerate(flips):
            moved[min(64, k + d)] += mass * chance
    assert false_alarms(p_value, moved) <= LEVEL


@pytest.mark.parametrize("p", [0.5, 0.9, 0.995])
def test_two_honest_samples_are_accused_at_most_as_often_as_is_said(p):
    size, other = 40, 60
    alarms = sum(
        a * b
        for k, a in enumerate(stats.binom.pmf(np.arange(size + 1), size, p))
        for j, b in enumerate(stats.binom.pmf(np.arange(other + 1), other, p))
        if samples_p_value({0: k, 1: size - k}, {0: j, 1: other - j}, 2) <= LEVEL
    )
    assert alarms <= LEVEL


def test_several_classes_and_rows_together_keep_the_rate():
    """By simulation; without the price of its many tests, the same data are accused more often than is said."""
    rng = np.random.default_rng(1)
    law, classes = np.array([0.5, 0.2, 0.15, 0.1, 0.05]), 5
    alarms = unpaid = 0
    runs = RUNS // 10
    for _ in range(runs):
        rows = []
        for _ in range(4):
            votes = rng.choice(classes, 300, p=law)
            part, total = (dict(enumerate(np.bincount(v, minlength=classes).tolist())) for v in (votes[:64], votes))
            rows.append(part_p_value(part, total, classes))
        alarms += combined_p_value(rows) <= LEVEL
        unpaid += min(rows) / (2 * classes) <= LEVEL
    assert alarms / runs <= LEVEL + 3 * np.sqrt(LEVEL / runs)
    assert unpaid / runs > 2 * LEVEL, "the planted bug is not seen"


def test_an_adaptive_run_is_accused_no_more_often_for_stopping_when_it_likes():
    """The number of looks is paid for: a run that stops at its luckiest look keeps the rate."""
    rng = np.random.default_rng(2)
    times, alarms, runs = [64, 128, 256, 512], 0, RUNS // 5
    for _ in range(runs):
        votes = rng.random(512) < 0.9
        stop = next((t for t in times if votes[:t].mean() > 0.93), times[-1])
        chunk = 64 * int(rng.integers(stop // 64))
        part, total = ({0: int(v.sum()), 1: int(len(v) - v.sum())} for v in (votes[chunk : chunk + 64], votes[:stop]))
        alarms += len(times) * part_p_value(part, total, 2) <= LEVEL
    assert alarms / runs <= LEVEL


def test_forged_votes_are_found():
    assert part_p_value({0: 63, 1: 1}, {0: 300}, 10) == 0, "a vote that the table has no room for"
    assert part_p_value({0: 40, 1: 24}, {0: 300}, 10, changed=0.03) < 1e-9
    assert part_p_value({0: 20, 1: 44}, {0: 270, 1: 30}, 10) < 1e-9
    assert part_p_value({0: 64}, {0: 150, 1: 150}, 10) < 1e-9
    assert samples_p_value({0: 800, 1: 200}, {0: 950, 1: 50}, 10) < 1e-9
    assert same_noise_p_value({0: 800, 1: 200}, {0: 950, 1: 50}, changed=0.03) < 1e-9
    slightly = part_p_value({0: 57, 1: 7}, {0: 290, 1: 10}, 2)
    assert slightly > 1e-6 > combined_p_value([slightly] * 8), "rows that are a little off add up"


def test_what_differs_little_elsewhere_is_no_forgery():
    assert same_noise_p_value({0: 9000, 1: 1000}, {0: 9150, 1: 850}, changed=0.03) > 0.5
    assert part_p_value({0: 62, 1: 2}, {0: 300}, 10, changed=0.03) > 0.05
    assert combined_p_value([]) == 1.0
