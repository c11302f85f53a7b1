"""Replays: a candidate's votes against the cache, and what each method proves of them."""

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.certificates.bounds import clopper_pearson_lower, clopper_pearson_upper
from arquant.certification.incremental import METHODS, disagreement, incremental_claims, replay_of
from tests.support.small_search import cache_of

LABELS = np.array([0, 1, 2])


@pytest.fixture
def cache():
    rng = np.random.default_rng(0)
    right = rng.random((3, 400)) < np.array([0.95, 0.8, 0.4])[:, None]
    return cache_of(np.where(right, LABELS[:, None], 3), LABELS, np.array([0, 1, 3]))


def candidate_of(cache, n=100, flips=0.1):
    rng = np.random.default_rng(1)
    votes = cache.votes[:, :n].copy()
    votes[rng.random(votes.shape) < flips] = 2
    return votes


def test_counts_are_those_of_a_loop(cache):
    votes = candidate_of(cache)
    found = replay_of(cache, votes)
    for i, klass in enumerate(cache.selected):
        pairs = list(zip(cache.votes[i, :100], votes[i], strict=True))
        assert found.cached_votes[i] == sum(f == klass for f in cache.votes[i])
        assert found.disagreements[i] == sum(f != g for f, g in pairs)
        assert found.lost[i] == sum(f == klass != g for f, g in pairs)
        assert found.gained[i] == sum(f != klass and g == klass for f, g in pairs)
        assert found.votes[i] == sum(g == klass for _, g in pairs)
    assert disagreement(cache, votes) == pytest.approx(found.disagreements.sum() / 300)


def test_replaying_the_float_model_itself_finds_no_disagreement(cache):
    found = replay_of(cache, cache.votes[:, :100])
    assert not found.disagreements.any()
    claims = incremental_claims(cache, cache.votes[:, :100], "irs", sigma=0.5)
    cached = clopper_pearson_lower(cache.for_class(cache.selected), 400, 0.001)
    zeta = clopper_pearson_upper(0, 100, 0.001)
    assert claims.p_lower == pytest.approx(np.maximum(cached - zeta, 0), abs=1e-12)
    assert disagreement(cache, cache.votes) == 0


def test_every_method_claims_and_directional_never_less_than_irs(cache):
    votes = candidate_of(cache)
    claims = {name: incremental_claims(cache, votes, name, sigma=0.5, gamma=1.0) for name in METHODS}
    assert all(claim.radius.shape == (3,) for claim in claims.values())
    assert (claims["directional"].p_lower >= claims["irs"].p_lower).all()
    own = np.count_nonzero(votes == cache.selected[:, None], axis=1)
    assert claims["rs"].p_lower == pytest.approx(clopper_pearson_lower(own, 100, 0.002))


def test_label_directed_claims_credit_a_repaired_image(cache):
    votes = cache.votes[:, :100].copy()
    votes[2] = 2
    assert incremental_claims(cache, votes, "rs", sigma=0.5).radius[2] == 0
    assert incremental_claims(cache, votes, "rs", sigma=0.5, classes=cache.labels).radius[2] > 0


def test_votes_that_are_no_replay_are_refused(cache):
    with pytest.raises(MismatchError, match="do not replay"):
        replay_of(cache, np.zeros((2, 100), np.uint8))
    with pytest.raises(MismatchError, match="no more than the cached"):
        replay_of(cache, np.zeros((3, 401), np.uint8))
    with pytest.raises(InputError, match="unknown method"):
        incremental_claims(cache, candidate_of(cache), "magic", sigma=0.5)
