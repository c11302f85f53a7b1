from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import InputError
from arquant.certification.votes import FixedWork, Labels, Segment, chunk_limit, run_votes, segments_of
from arquant.engines.base import NO_CLASS
from arquant.noise.source import CHUNK, Noise, NoiseSource, noise_key
from tests.support.closed_forms import FunctionEngine

SHAPE = (1, 1, 2)
SOURCE = NoiseSource(Noise("grid", 0.5), noise_key(0, "check"), SHAPE)
IMAGES = np.random.default_rng(0).integers(0, 256, (6, *SHAPE), dtype=np.uint8)


class Recorder(FunctionEngine):
    """Keeps a copy of every batch; class 1 where the first pixel is above grey. Fails at batch `fail`."""

    def __init__(self, batch: int, *, fail: int | None = None) -> None:
        super().__init__(lambda z: (z[:, 0] > 0.5).astype(np.int64), SHAPE, input_kind="levels", batch=batch)
        self.batches: list[np.ndarray] = []
        self.fail = fail

    def labels_of(self, batch: np.ndarray) -> Any:
        self.batches.append(batch.copy())
        if len(self.batches) == self.fail:
            raise ArithmeticError("this batch fails")
        return super().labels_of(batch)

    @property
    def idle(self) -> bool:
        """Nothing in flight and every buffer free."""
        return self.in_flight == 0 and len(self._free) == self.depth + 1


def noisy(image: int, samples: int) -> np.ndarray:
    """The first `samples` noisy copies of an image, straight from the noise."""
    chunks = [SOURCE.integers(image, chunk) for chunk in range(-(-samples // CHUNK))]
    return np.concatenate(chunks)[:samples] + IMAGES[image].astype(np.int16)


def segments(images: int, samples: int) -> Iterator[Segment]:
    for image in range(images):
        yield from segments_of(image, IMAGES[image], image, SOURCE, 0, samples)


def count_votes(engine: Recorder, images: int, samples: int) -> list[Counter[int]]:
    counts: list[Counter[int]] = [Counter() for _ in range(images)]
    run_votes(engine, FixedWork(segments(images, samples), lambda s, labels: counts[s.owner].update(labels.tolist())))
    return counts


def expected_votes(images: int, samples: int) -> list[Counter[int]]:
    return [Counter((noisy(i, samples)[:, 0, 0, 0] / 255 > 0.5).astype(int).tolist()) for i in range(images)]


@pytest.mark.parametrize("batch", [1, 7, 64, 100, 1000])
def test_votes_are_those_of_the_addressed_noise(batch: int) -> None:
    engine = Recorder(batch)
    assert count_votes(engine, 3, 70) == expected_votes(3, 70)
    assert engine.idle


@pytest.mark.parametrize("batch", [7, 64])
def test_noise_is_addressed_by_the_dataset_index_wherever_an_image_is_cut(batch: int) -> None:
    engine = Recorder(batch)
    run_votes(engine, FixedWork(segments_of(0, IMAGES[5], 5, SOURCE, 0, 70), lambda segment, labels: None))
    np.testing.assert_array_equal(np.concatenate(engine.batches)[:70], noisy(5, 70))


def test_batches_are_filled_across_images() -> None:
    engine = Recorder(64)
    count_votes(engine, 6, 100)
    assert len(engine.batches) == -(-6 * 100 // 64), "an image of its own per batch would take 12 batches"
    flat = np.concatenate(engine.batches)[: 6 * 100]
    np.testing.assert_array_equal(flat, np.concatenate([noisy(image, 100) for image in range(6)]))


class Chain:
    """Work that hands out `count` samples at a time and nothing more before their votes are in."""

    def __init__(self, rounds: int, count: int) -> None:
        self.left, self.count, self.waiting = rounds, count, False
        self.received: list[int] = []

    def take(self, room: int) -> Segment | None:
        if self.waiting or not self.left:
            return None
        self.left, self.waiting = self.left - 1, True
        return Segment(0, IMAGES[0], 0, SOURCE, 0, self.count)

    def receive(self, segment: Segment, labels: Labels) -> None:
        self.received.append(len(labels))
        self.waiting = False


def test_a_batch_that_can_not_be_filled_goes_when_nothing_else_is_under_way() -> None:
    engine, work = Recorder(64), Chain(rounds=3, count=10)
    run_votes(engine, work)
    assert work.received == [10, 10, 10]
    assert len(engine.batches) == 3


class Pause(Chain):
    """Hands out 64 and 10 samples at once, and 54 more when the first votes are in."""

    def __init__(self) -> None:
        super().__init__(rounds=3, count=0)

    def take(self, room: int) -> Segment | None:
        if not self.left or (self.left == 1 and not self.received):
            return None
        self.left -= 1
        return Segment(0, IMAGES[0], 0, SOURCE, 0, (54, 10, 64)[self.left])


def test_a_batch_that_is_not_full_waits_while_another_is_under_way() -> None:
    engine, work = Recorder(64), Pause()
    run_votes(engine, work)
    assert work.received == [64, 10, 54]
    assert len(engine.batches) == 2


def test_no_work_is_no_batch() -> None:
    engine = Recorder(8)
    run_votes(engine, FixedWork([], lambda segment, labels: None))
    assert engine.batches == []
    assert engine.idle


def test_an_image_without_a_class_is_no_vote_but_an_error() -> None:
    engine = FunctionEngine(lambda z: np.where(z[:, 0] > 2, NO_CLASS, 1), SHAPE, input_kind="levels", batch=64)
    found = [int((noisy(image, 300)[:, 0, 0, 0] > 2 * 255).sum()) for image in range(6)]
    first = next(image for image, count in enumerate(found) if count)
    with pytest.raises(InputError, match=f"logits are NaN for .* noisy copies of image {first}: no class, no vote"):
        run_votes(engine, FixedWork(segments(6, 300), lambda segment, labels: None))


def test_what_fills_up_the_last_batch_is_nobodys_vote() -> None:
    """The rest of a buffer is whatever it held before; here black images, for which there is no class."""
    engine = FunctionEngine(lambda z: np.where((z == 0).all(axis=1), NO_CLASS, 1), SHAPE, input_kind="levels", batch=64)
    image = np.full(SHAPE, 255, np.uint8)
    received: list[int] = []
    run_votes(engine, FixedWork(segments_of(0, image, 0, SOURCE, 0, 10), lambda s, labels: received.extend(labels)))
    assert received == [1] * 10


@pytest.mark.parametrize("fail", [1, 2, 5])
def test_an_error_of_the_engine_is_passed_on_and_the_engine_stays_usable(fail: int) -> None:
    engine = Recorder(32, fail=fail)
    with pytest.raises(ArithmeticError, match="this batch fails"):
        count_votes(engine, 4, 100)
    assert engine.idle
    assert count_votes(engine, 3, 70) == expected_votes(3, 70)


def test_an_error_of_the_receiver_or_of_the_queue_leaves_the_engine_usable() -> None:
    engine = Recorder(32)

    def receive(segment: Segment, labels: Labels) -> None:
        raise KeyboardInterrupt

    def broken() -> Iterator[Segment]:
        yield from segments(2, 50)
        raise LookupError("no more images")

    with pytest.raises(KeyboardInterrupt):
        run_votes(engine, FixedWork(segments(4, 100), receive))
    assert engine.idle
    with pytest.raises(LookupError):
        run_votes(engine, FixedWork(broken(), lambda segment, labels: None))
    assert engine.idle
    assert count_votes(engine, 3, 70) == expected_votes(3, 70)


def test_an_error_while_noise_is_added_leaves_the_engine_usable() -> None:
    engine = Recorder(32)
    misfit = Segment(0, np.zeros((3, 8, 8), np.uint8), 0, SOURCE, 0, 4)
    with pytest.raises(ValueError, match="shape"):
        run_votes(engine, FixedWork([*segments(1, 40), misfit], lambda segment, labels: None))
    assert engine.idle


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 200))
def test_segments_cover_the_samples_once_and_stay_inside_chunks(first: int, count: int, room: int) -> None:
    found = list(segments_of(0, IMAGES[0], 0, SOURCE, first, first + count))
    assert [s for f in found for s in range(f.first, f.first + f.count)] == list(range(first, first + count))
    assert all(f.first // CHUNK == (f.first + f.count - 1) // CHUNK for f in found)
    if count:
        assert 1 <= chunk_limit(first, first + count, room) <= room


@given(st.lists(st.integers(1, 64), min_size=1, max_size=30))
def test_segments_are_cut_to_the_room_there_is(rooms: list[int]) -> None:
    work = FixedWork(segments(6, 100), lambda segment, labels: None)
    taken = [part for room in rooms if (part := work.take(room)) is not None]
    samples = [(part.owner, part.first + j) for part in taken for j in range(part.count)]
    everything = [(image, sample) for image in range(6) for sample in range(100)]
    assert samples == everything[: len(samples)]
    assert all(part.count <= room for part, room in zip(taken, rooms, strict=False))
