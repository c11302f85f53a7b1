"""Racing drops what is clearly worse, and what is as good only as rarely as it says."""

from dataclasses import replace

import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.certification.smoothing_certifier import Smoothing
from arquant.searching.racing import FEWEST_IMAGES, Race, Racing, race
from arquant.searching.score import Ballots, find_reward
from tests.support.small_search import cache_of

N, IMAGES = 64, 80


def test_looks_are_whole_numbers_of_votes_before_the_last():
    assert Racing().votes_at_looks(200) == [50, 100]
    assert Racing(looks=(0.01, 0.9)).votes_at_looks(10) == [1, 9]
    assert Racing().votes_at_looks(1) == []


@pytest.mark.parametrize(
    "options",
    [
        {"level": 0},
        {"level": 0.5},
        {"looks": (0.5, 0.25)},
        {"looks": (0.5, 0.5)},
        {"looks": (0.0, 0.5)},
        {"looks": (1.0,)},
        {"steps": 0.0},
        {"steps": 1.0},
    ],
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(InputError):
        Racing(**options)


def test_the_test_is_the_paired_t_test():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    best = rng.normal(size=30)
    candidate = best + rng.normal(-0.2, 0.5, 30)
    wanted = stats.ttest_rel(candidate, best, alternative="less")
    found = race(candidate, best, 50)
    assert found.p_value == pytest.approx(wanted.pvalue, rel=1e-9)
    assert found.difference == pytest.approx(np.mean(candidate - best))
    assert found.votes == 50


def test_a_race_over_other_images_is_refused():
    with pytest.raises(InputError, match=r"\(20,\) and \(1,\)"):
        race(np.zeros(20), np.zeros(1), 10)


def test_a_record_says_whether_the_candidate_was_fully_fine_tuned():
    lost = Race(50, -0.1, 0.001, complete=False)
    assert lost.line().plain() == {"votes": 50, "difference": -0.1, "p_value": 0.001, "fine_tuned": False}


def test_equal_values_are_never_dropped_and_a_constant_loss_is():
    best = np.linspace(0, 1, 20)
    assert not Racing().abandons(race(best, best, 10))
    assert Racing().abandons(race(best - 0.25, best, 10))
    assert not Racing().abandons(race(best + 0.25, best, 10))


@pytest.mark.parametrize(
    ("looks", "kept", "dropped"), [((0.25, 0.5), 0.004, 0.003), ((0.5,), 0.006, 0.004), ((), 0.011, 0.009)]
)
def test_the_level_is_shared_by_the_looks(looks, kept, dropped):
    """One look on the way of fine-tuning, and one for each share of the votes."""
    racing = Racing(level=0.01, looks=looks)
    assert not racing.abandons(Race(50, -0.1, kept))
    assert racing.abandons(Race(50, -0.1, dropped))


def test_too_few_images_decide_nothing():
    best = np.linspace(0, 1, FEWEST_IMAGES)
    assert not Racing().abandons(race(best[1:] - 1, best[1:], 10))
    assert Racing().abandons(race(best - 1, best, 10))


def _votes(rng, probability, shared, agreement):
    """Right (0) and wrong (1) votes: with probability `agreement` decided by a uniform number shared by all networks."""
    own = rng.random(shared.shape)
    uniform = np.where(rng.random(shared.shape) < agreement, shared, own)
    return (uniform >= probability[:, None]).astype(np.uint8)


def _dropped(gap, seed, racing):
    """Whether a candidate whose right votes are `gap` likelier than those of the best is dropped."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.3, 1.0, IMAGES)
    shared = rng.random((IMAGES, N))
    labels = np.zeros(IMAGES, np.int64)
    cache = cache_of(_votes(rng, p, shared, 0.9), labels)
    reward, scoring = find_reward("acr-cv"), Smoothing(0.5)
    change = rng.normal(gap, 0.05, IMAGES)
    networks = [
        Ballots(_votes(rng, np.clip(q, 0, 1), shared, 0.9), cache, scoring) for q in (p, np.clip(p + change, 0, 1))
    ]
    for look in racing.votes_at_looks(N):
        best, candidate = (
            reward.score(replace(ballots, votes=ballots.votes[:, :look])).per_image for ballots in networks
        )
        if racing.abandons(race(candidate, best, look)):
            return True
    return False


def test_a_clearly_bad_candidate_is_dropped_and_an_equal_one_at_the_stated_rate():
    runs, racing = 300, Racing(level=0.05)
    bad = sum(_dropped(-0.15, seed, racing) for seed in range(40))
    better = sum(_dropped(+0.05, seed, racing) for seed in range(100))
    equal = sum(_dropped(0.0, seed, racing) for seed in range(runs))
    assert bad == 40
    assert better == 0
    # 300 runs at 5 %: above 27 with probability 0.001
    assert equal <= 27
