"""The vote cache: addressed, resumable, and refused for anything it was not made for."""

import json

import numpy as np
import pytest

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.certification.smoothing import Smoothed
from arquant.certification.vote_cache import (
    FACTS,
    PART,
    VOTES,
    VoteCache,
    recorded_engine,
    reference_votes,
    sample_votes,
    spot_check,
    votes_digest,
    votes_dtype,
)
from arquant.engines.torch import TorchEngine
from tests.support.small_search import CLASSES, SIGMA, image_set, small_classifier

N, N0 = 150, 20


class Killed(BaseException):
    """Stands for the signal that ends a process."""


@pytest.fixture(scope="module")
def classifier():
    return small_classifier()


@pytest.fixture
def smoothed(classifier):
    made = smooth(classifier)
    yield made
    made.close()


def smooth(classifier, *, seed=0, batch=32, sigma=SIGMA):
    engine = TorchEngine(classifier, batch=batch, input_kind="levels", compiled=False)
    return Smoothed(classifier, sigma, seed=seed, engine=engine)


IMAGES = image_set(12, 7)


def test_votes_are_those_that_smoothing_counts(smoothed, tmp_path):
    cache = reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    counts = smoothed.count(IMAGES, N, "search")
    found = np.stack([np.bincount(row, minlength=CLASSES) for row in cache.votes])
    assert (found == counts).all()
    assert (cache.for_class(IMAGES.labels) == counts[np.arange(12), IMAGES.labels]).all()
    assert cache.votes.dtype == np.uint8
    further = sample_votes(smoothed.engine, IMAGES, smoothed.source("search"), N, N + N0, num_classes=CLASSES)
    majority = [np.bincount(row, minlength=CLASSES).argmax() for row in further]
    assert cache.selected.tolist() == majority


def test_the_class_is_chosen_by_other_votes_than_those_that_are_counted(smoothed, tmp_path, monkeypatch):
    def votes(engine, images, source, first, last, **_):
        return np.where(np.arange(first, last) < N, 0, 1).astype(np.uint8) + np.zeros((len(images), 1), np.uint8)

    monkeypatch.setattr("arquant.certification.vote_cache.sample_votes", votes)
    cache = reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    assert not cache.votes.any()
    assert cache.selected.tolist() == [1] * len(IMAGES)


def test_parts_of_the_samples_are_the_samples(smoothed):
    source = smoothed.source("search")
    whole = sample_votes(smoothed.engine, IMAGES, source, 0, N, num_classes=CLASSES)
    parts = [sample_votes(smoothed.engine, IMAGES, source, a, b, num_classes=CLASSES) for a, b in ((0, 37), (37, N))]
    assert (np.concatenate(parts, axis=1) == whole).all()


def test_a_finished_cache_is_read_and_spot_checked(smoothed, tmp_path, monkeypatch):
    first = reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    monkeypatch.setattr("arquant.certification.vote_cache.sample_votes", None)  # nothing may be computed again
    again = reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    assert (again.votes == first.votes).all()
    assert (again.selected == first.selected).all()
    assert not (tmp_path / PART).exists()
    assert spot_check(smoothed, IMAGES, again, share=0.5) >= 0.5 * 12 * N


def test_a_finished_cache_whose_votes_are_no_longer_the_models_is_refused(smoothed, tmp_path):
    """Intact by its hash: only the replay can tell."""
    reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    others = (np.load(tmp_path / VOTES) + 1) % CLASSES
    np.save(tmp_path / VOTES, others)
    facts = json.loads((tmp_path / FACTS).read_text())
    (tmp_path / FACTS).write_text(json.dumps({**facts, "sha256": votes_digest(others)}))
    with pytest.raises(MismatchError, match="came out differently"):
        reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)


def test_a_killed_run_goes_on_after_the_saved_images(smoothed, tmp_path, monkeypatch):
    whole = reference_votes(smoothed, IMAGES, tmp_path / "whole", n=N, n0=N0)
    monkeypatch.setattr("arquant.certification.vote_cache._SAVED_VOTES", 3 * (N + N0))
    seen = []

    def report(status):
        seen.append(status.done)
        if len(seen) > 40:
            raise Killed

    with pytest.raises(Killed):
        reference_votes(smoothed, IMAGES, tmp_path / "part", n=N, n0=N0, report=report)
    kept = (tmp_path / "part" / PART).stat().st_size
    assert 0 < kept < 12 * (N + N0)
    with (tmp_path / "part" / PART).open("ab") as file:
        file.write(b"torn")
    later = []
    resumed = reference_votes(smoothed, IMAGES, tmp_path / "part", n=N, n0=N0, report=lambda s: later.append(s.done))
    assert (resumed.votes == whole.votes).all()
    assert later[0] > kept
    assert later[-1] == 12 * (N + N0)


def test_votes_that_nothing_vouches_for_are_not_used(smoothed, tmp_path):
    (tmp_path / PART).write_bytes(bytes(5 * (N + N0)))
    cache = reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    assert (
        cache.votes == sample_votes(smoothed.engine, IMAGES, smoothed.source("search"), 0, N, num_classes=CLASSES)
    ).all()


def test_rows_beyond_the_last_image_are_cut_off(smoothed, tmp_path):
    whole = reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    votes = np.load(tmp_path / VOTES)
    facts = json.loads((tmp_path / FACTS).read_text())
    (tmp_path / FACTS).write_text(json.dumps({**facts, "sha256": None}))
    (tmp_path / PART).write_bytes(votes.tobytes() + bytes(2 * (N + N0) + 5))
    assert (reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0).votes == whole.votes).all()
    assert json.loads((tmp_path / FACTS).read_text())["sha256"] == votes_digest(votes)


def test_a_cache_of_anything_else_is_refused(classifier, smoothed, tmp_path):
    cache = reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    assert cache.identity["key"] == smoothed.source("search").key.id
    with pytest.raises(MismatchError, match=r"n0 20 there, 10 here"):
        reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=10)
    with pytest.raises(MismatchError, match="noise 'grid' there, 'gaussian' here"):
        reference_votes(
            Smoothed(classifier, SIGMA, noise="gaussian", engine=smoothed.engine), IMAGES, tmp_path, n=N, n0=N0
        )
    with pytest.raises(MismatchError, match=r"n 150 there, 100 here"):
        reference_votes(smoothed, IMAGES, tmp_path, n=100, n0=N0)
    with pytest.raises(MismatchError, match="images"):
        reference_votes(smoothed, image_set(12, 8), tmp_path, n=N, n0=N0)
    for options, what in (({"seed": 1}, "seed"), ({"sigma": 0.5}, "sigma"), ({"batch": 16}, "engine")):
        other = smooth(classifier, **options)
        with pytest.raises(MismatchError, match=what):
            reference_votes(other, IMAGES, tmp_path, n=N, n0=N0)
        other.close()
    changed = small_classifier()
    changed.module[0].weight.data[0] *= 2
    other = smooth(changed)
    with pytest.raises(MismatchError, match="model"):
        reference_votes(other, IMAGES, tmp_path, n=N, n0=N0)
    other.close()


def test_a_replay_that_differs_is_refused(smoothed, tmp_path):
    cache = reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    cache.votes[:] = (cache.votes + 1) % CLASSES
    with pytest.raises(MismatchError, match="came out differently"):
        spot_check(smoothed, IMAGES, cache)


def test_damaged_files_are_refused(smoothed, tmp_path):
    reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    raw = bytearray((tmp_path / VOTES).read_bytes())
    raw[-1] ^= 1
    (tmp_path / VOTES).write_bytes(raw)
    with pytest.raises(FileFormatError, match="damaged"):
        reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    (tmp_path / VOTES).write_bytes(b"")
    with pytest.raises(FileFormatError, match="cannot be read"):
        reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    for content in (b"{", b"[]", b'{"schema": "arquant.votes", "version": 1}', b"\xff"):
        (tmp_path / FACTS).write_bytes(content)
        with pytest.raises(FileFormatError, match="delete"):
            reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)


def test_the_engine_of_a_cache_is_remembered(smoothed, tmp_path):
    assert recorded_engine(tmp_path) is None
    reference_votes(smoothed, IMAGES, tmp_path, n=N, n0=N0)
    engine = recorded_engine(tmp_path)
    assert (engine["engine"], engine["batch"]) == ("torch", 32)
    assert json.loads((tmp_path / FACTS).read_text())["identity"]["n"] == N


def test_many_classes_need_two_bytes():
    assert votes_dtype(256) == np.uint8
    assert votes_dtype(1000) == np.uint16
    assert votes_dtype(65_536) == np.uint16
    with pytest.raises(InputError, match="65537"):
        votes_dtype(65_537)


@pytest.mark.parametrize(
    ("votes", "selected", "labels"), [((3,), 3, 3), ((3, 0), 3, 3), ((3, 5), 2, 3), ((3, 5), 2, 2), ((3, 5), 4, 4)]
)
def test_a_cache_has_a_class_and_a_label_for_each_row_of_votes(votes, selected, labels):
    with pytest.raises(InputError, match="vote"):
        VoteCache(np.zeros(votes, np.uint8), np.zeros(selected, np.int64), np.zeros(labels, np.int64), {})
