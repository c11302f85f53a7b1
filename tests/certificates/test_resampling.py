import numpy as np
import pytest
from scipy import stats

from arquant.base.errors import InputError
from arquant.certificates.resampling import (
    MINIMUM_IMAGES,
    Interval,
    bootstrap_mean,
    paired_bootstrap,
    shown,
    two_level_bootstrap,
    verdict,
)


def test_the_interval_of_a_mean_is_that_of_the_normal_law():
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    (found,) = bootstrap_mean(values)
    error = values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_columns_are_resampled_together_and_seeds_repeat():
    values = np.random.default_rng(0).random(50)
    double, again = bootstrap_mean(np.column_stack([values, 2 * values]), seed=3), bootstrap_mean(values, seed=3)
    assert double[0] == pytest.approx(again[0])
    assert double[1].low == pytest.approx(2 * double[0].low)
    assert bootstrap_mean(values, seed=4)[0].low != again[0].low


def test_large_tables_are_resampled_in_parts():
    (found,) = bootstrap_mean(np.arange(30_000) % 2, resamples=200)
    assert found.low < 0.5 < found.high


def test_the_size_of_the_parts_does_not_matter(monkeypatch):
    values = np.random.default_rng(0).random(50)
    whole = bootstrap_mean(values, resamples=100)
    monkeypatch.setattr("arquant.certificates.resampling._ENTRIES", 7 * 50)
    assert bootstrap_mean(values, resamples=100) == whole


def test_pairing_removes_what_both_share():
    rng = np.random.default_rng(1)
    first = rng.normal(0, 10, 300)
    second = first + 0.1 + rng.normal(0, 0.1, 300)
    (paired,) = paired_bootstrap(first, second)
    assert 0 < paired.low < 0.1 < paired.high < 0.2
    assert paired_bootstrap(first, first)[0] == (0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="equal shapes"):
        paired_bootstrap(first, second[:-1])


def test_a_paired_comparison_takes_the_options_of_the_bootstrap_of_the_differences():
    first, second = np.random.default_rng(1).random((2, 30))
    for options in ({"confidence": 0.5}, {"resamples": 7}, {"resamples": 7, "seed": 1}):
        found = paired_bootstrap(first, second, **options)
        assert found == bootstrap_mean(second - first, **options)
        assert found != paired_bootstrap(first, second)


def test_the_interval_covers_as_often_as_it_says():
    rng, runs = np.random.default_rng(2), 200
    hits = sum(
        found.low <= 1.0 <= found.high
        for found in (bootstrap_mean(rng.exponential(1.0, 200), resamples=400, seed=i)[0] for i in range(runs))
    )
    assert stats.binom.cdf(hits, runs, 0.93) > 1e-4


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("between_seeds", [0.0, 0.01])
def test_the_two_level_interval_covers_images_and_seeds(between_seeds, paired):
    rng, runs, seeds, images = np.random.default_rng(3), 200, 3, 200
    hits = 0
    for run in range(runs):
        base = np.maximum(rng.normal(0.4, 0.5, images), 0)
        first = base + rng.normal(0, 0.1, (seeds, images)) + rng.normal(0, between_seeds, (seeds, 1))
        second = base + rng.normal(0, 0.1, (seeds, images)) + rng.normal(0, between_seeds, (seeds, 1))
        found = two_level_bootstrap(first, second, paired_seeds=paired, resamples=400, seed=run)
        hits += found.low <= 0 <= found.high
    assert stats.binom.cdf(hits, runs, 0.93) > 1e-4


def test_the_two_level_interval_is_wider_than_one_over_images_alone():
    rng = np.random.default_rng(4)
    base = rng.random(200)
    first = base + np.array([[0.0], [0.1], [0.2]])
    second = base + np.array([[0.05], [0.15], [0.25]])
    found = two_level_bootstrap(first, second)
    assert found.value == pytest.approx(0.05)
    assert found.low < -0.05
    assert found.high > 0.15
    # the luck of a seed that both methods share is no part of their difference
    together = two_level_bootstrap(first, second, paired_seeds=True)
    assert together == pytest.approx((0.05, 0.05, 0.05))
    # seeds that agree leave the images only, and these are paired away
    same = two_level_bootstrap(np.tile(base, (3, 1)), np.tile(base + 0.05, (3, 1)))
    assert (same.low, same.high) == pytest.approx((0.05, 0.05))


@pytest.mark.parametrize("paired", [False, True])
def test_two_of_three_seeds_are_drawn(paired):
    """One seed of three is better by 3: two draws contain it 0, 1 or 2 times, with probability 4/9, 4/9 and 1/9."""
    first, second = np.zeros((3, 20)), np.zeros((3, 20))
    second[0] = 3.0
    for confidence, high in ((0.6, 1.5), (0.9, 3.0)):
        found = two_level_bootstrap(first, second, paired_seeds=paired, confidence=confidence)
        assert found == pytest.approx((1.0, 0.0, high))


def test_the_two_level_interval_repeats_with_its_seed_and_only_with_it():
    first, second = np.random.default_rng(5).random((2, 3, 40))
    found = [two_level_bootstrap(first, second, seed=seed) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        ((0.1, 0.05, 0.2), "larger"),
        ((-0.1, -0.2, -0.05), "smaller"),
        ((0.1, -0.05, 0.2), "a tie"),
        ((0.1, 0.0, 0.2), "a tie"),
        ((-0.1, -0.2, 0.0), "a tie"),
    ],
)
def test_a_difference_is_one_only_if_its_interval_leaves_out_0(gap, words):
    assert verdict(Interval(*gap), MINIMUM_IMAGES) == words
    assert verdict(Interval(*gap), MINIMUM_IMAGES - 1) == "too few images"


def test_an_interval_is_shown_where_there_are_images_enough_for_one():
    interval = Interval(0.5, 0.25, 0.75)
    assert shown(interval, MINIMUM_IMAGES, "{:.1f}", 100) == "50.0 [25.0, 75.0]"
    assert shown(interval, MINIMUM_IMAGES - 1, "{:.1f}", 100) == "50.0"


@pytest.mark.parametrize(("first", "second"), [((2, 10), (3, 10)), ((3, 10), (3, 9)), ((3,), (3,)), ((3, 0), (3, 0))])
def test_too_few_seeds_or_other_images_are_refused(first, second):
    with pytest.raises(InputError):
        two_level_bootstrap(np.zeros(first), np.zeros(second))


def test_pairs_of_seeds_need_two_of_each():
    tables = np.zeros((4, 10)), np.zeros((3, 10))
    assert two_level_bootstrap(*tables) == (0, 0, 0)
    with pytest.raises(InputError, match="got 4 and 3"):
        two_level_bootstrap(*tables, paired_seeds=True)


@pytest.mark.parametrize("options", [{"confidence": 1.0}, {"confidence": 0.0}, {"resamples": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError):
        bootstrap_mean(np.zeros(3), **options)
    with pytest.raises(InputError):
        two_level_bootstrap(np.zeros((3, 4)), np.zeros((3, 4)), **options)
    with pytest.raises(InputError):
        bootstrap_mean(np.zeros(0))
