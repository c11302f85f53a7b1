"""Counting votes: noisy copies of many images fill fixed-size batches, an engine labels them, the labels go back.

Memory is a few batches, whatever the number of votes. A sample's noise depends only on its address, so how samples are
packed into batches changes nothing but the speed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from arquant.base.errors import InputError
from arquant.engines.base import NO_CLASS, Engine, GraphEngine
from arquant.noise.source import CHUNK, NoiseSource

Labels = npt.NDArray[np.int64]
Tally = Mapping[int, int]
"""votes by class, of the classes that have any"""


class NoAnswer(InputError):
    """A network has no class for a noisy image; the message says for which."""


@dataclass(frozen=True)
class Segment:
    """Samples `first` to `first + count - 1` of one image; of one chunk of the noise where an engine is to label them."""

    owner: int
    """whose votes these are; the work queue's own number"""
    image: np.ndarray
    index: int
    """dataset index, which addresses the noise"""
    source: NoiseSource
    first: int
    count: int


class Work(Protocol):
    """A queue of segments that may depend on votes already counted."""

    def take(self, room: int) -> Segment | None:
        """Return the next at most `room` samples, or None if there is nothing to do before more votes are in."""

    def receive(self, segment: Segment, labels: Labels) -> None:
        """Take in the labels of a segment handed out before; segments come back in the order they were taken."""


class CountedWork(Protocol):
    """A queue of segments of any length, of which only the votes per class matter."""

    def take_run(self, room: int) -> Segment | None:
        """Return the next at most `room` samples, or None if there is nothing to do before more votes are in."""

    def count(self, segment: Segment, tally: Tally) -> None:
        """Take in the votes of a segment handed out before; segments of one owner come back in the order they were taken."""


def tally_of(labels: Labels) -> Tally:
    """Count labels by class."""
    return {klass: votes for klass, votes in enumerate(np.bincount(labels).tolist()) if votes}


def run_votes(engine: Engine, work: Work) -> None:
    """Work the queue off. A batch that is not full waits for more samples as long as other batches are being computed."""
    flights: deque[tuple[list[Segment], np.ndarray]] = deque()
    batch, guard = _Filling(engine), engine.guard if isinstance(engine, GraphEngine) else None
    try:
        while True:
            while engine.in_flight < engine.depth and batch.fill(work):
                flights.append((batch.segments, batch.buffer))
                batch.submit()
            if not engine.in_flight:
                return
            labels = engine.collect()
            start = 0
            segments, images = flights.popleft()
            if guard is not None:
                count = sum(segment.count for segment in segments)
                guard.saw(images[:count], labels[:count])
            for segment in segments:
                found = labels[start : start + segment.count]
                _check_classes(found, segment)
                work.receive(segment, found)
                start += segment.count
    finally:
        engine.drop()
        engine.release(batch.buffer)


def _check_classes(labels: Labels, segment: Segment) -> None:
    if without := np.count_nonzero(labels == NO_CLASS):
        raise NoAnswer(
            f"the network's logits are NaN for {without} of {segment.count} noisy copies of image {segment.index}: no class, "
            "no vote; mend its forward pass: a logarithm, root or quotient of what noise makes negative or 0?"
        )


class _Filling:
    """The batch being filled."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.buffer = engine.buffer()
        self.segments: list[Segment] = []
        self._filled = 0

    def fill(self, work: Work) -> bool:
        """Add what the queue has; whether the batch should go now: full, or not empty with nothing else under way."""
        size = self._engine.batch
        while self._filled < size and (segment := work.take(size - self._filled)) is not None:
            out = self.buffer[self._filled : self._filled + segment.count]
            segment.source.add(segment.image, segment.index, segment.first, segment.count, out)
            self.segments.append(segment)
            self._filled += segment.count
        return self._filled == size or (self._filled > 0 and not self._engine.in_flight)

    def submit(self) -> None:
        """Send the batch off and begin the next."""
        self._engine.submit(self.buffer)
        self.buffer, self.segments, self._filled = self._engine.buffer(), [], 0


def chunk_limit(first: int, last: int, room: int) -> int:
    """Return how many samples from `first` on fit into `room`, end before `last` and stay inside one chunk."""
    return min(room, last - first, CHUNK - first % CHUNK)


def segments_of(
    owner: int, image: np.ndarray, index: int, source: NoiseSource, first: int, last: int
) -> Iterator[Segment]:
    """Samples `first` to `last - 1` of an image, cut at the chunks."""
    while first < last:
        count = chunk_limit(first, last, CHUNK)
        yield Segment(owner, image, index, source, first, count)
        first += count


class FixedWork:
    """A queue of segments known in advance; `receive` is the caller's function."""

    def __init__(self, segments: Iterable[Segment], receive: Callable[[Segment, Labels], None]) -> None:
        self._segments = iter(segments)
        self._rest: Segment | None = None
        self.receive = receive

    def take(self, room: int) -> Segment | None:
        """Return the next at most `room` samples; a segment that does not fit is cut, and its rest comes next."""
        segment = self._rest if self._rest is not None else next(self._segments, None)
        self._rest = None
        if segment is not None and segment.count > room:
            self._rest = _part(segment, room, segment.count)
            segment = _part(segment, 0, room)
        return segment


def _part(segment: Segment, start: int, stop: int) -> Segment:
    return Segment(segment.owner, segment.image, segment.index, segment.source, segment.first + start, stop - start)
