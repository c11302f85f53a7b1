"""Distrust recorded votes: draw some of them again through the engine that is said to have counted them, and compare.

The rows, and the chunk of 64 samples within a row, are drawn from the operating system, so nobody can know which will be
looked at. Where engine, versions and processor are those of the record, votes must be equal; elsewhere, and where the table
has only the total of what was drawn again, they are tested for contradiction (`contradictions`).
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from arquant.base.errors import InputError
from arquant.certificates.bounds import looks
from arquant.certificates.certificate import ABSTAIN, Certificate, CertificateSet, Settings
from arquant.certificates.contradictions import (
    CHANGED,
    CHANGED_FLOAT,
    FALSE_ALARM,
    combined_p_value,
    part_p_value,
    same_noise_p_value,
    samples_p_value,
)
from arquant.certification.certify_work import Started
from arquant.certification.smoothing import Smoothed
from arquant.certification.votes import FixedWork, Labels, Segment, run_votes, segments_of
from arquant.engines.base import GraphEngine
from arquant.images.imageset import ImageSet
from arquant.noise.keys import fresh_seed
from arquant.noise.source import CHUNK

SPOT_ROWS = 8
"""rows of which a chunk is drawn again"""
_LEAST_ROWS = 2
_WHOLE_VOTES = 12_000
"""at most so many votes of whole rows are drawn again unasked"""
_SPOT_SECONDS = _WHOLE_SECONDS = 10.0
"""at most so long, on a network that is slow"""
_ONE_ROW_SECONDS = 60.0
"""the shortest row is drawn again if it takes no longer, so that nobody can state more votes than were counted"""
_RANDOM = 1e-3
"""difference of the logits of two calls, as a share of the largest, that no rounding makes"""
_RATE_SECONDS = 0.2

Alike = Callable[[int], bool]
"""whether the row at this position of the table was voted on exactly as the engine at hand does"""


@dataclass
class Replay:
    """What was drawn again, and what speaks against the record."""

    rows: int = 0
    """of which a chunk was drawn again"""
    whole: int = 0
    """of which all votes were"""
    exact: int = 0
    """of these rows, those whose votes had to be equal"""
    votes: int = 0
    problems: list[str] = field(default_factory=list)
    p_values: list[float] = field(default_factory=list)

    def verdict(self) -> str | None:
        """Say what contradicts the record; None if nothing does. A false alarm has a probability of at most FALSE_ALARM."""
        if self.problems:
            more = f" ({len(self.problems) - 1} more like it)" if len(self.problems) > 1 else ""
            return f"{self.problems[0]}{more}"
        p_value = combined_p_value(self.p_values)
        if p_value <= FALSE_ALARM:
            return f"the votes drawn again contradict the recorded ones (p = {p_value:.1g})"
        return None


@dataclass(frozen=True)
class Fresh:
    """Certificates of some rows' images under a key that nobody could know."""

    replay: Replay
    recorded_acr: float
    fresh_acr: float


class Replayer:
    """Draws votes of recorded rows again.

    Args:
        smoothed: the certified classifier with the engine, noise and seed of the record.
        images: those of the rows, in any order.
        certificates: the rows, in the order of the table.
        settings: of the rows.
        alike: which rows must be repeated exactly.
    """

    def __init__(
        self,
        smoothed: Smoothed,
        images: ImageSet,
        certificates: Sequence[Certificate],
        settings: Settings,
        alike: Alike,
    ) -> None:
        self.smoothed = smoothed
        self.certificates = certificates
        self.settings = settings
        places = {int(index): place for place, index in enumerate(images.indices)}
        if missing := [c.idx for c in certificates if c.idx not in places]:
            raise InputError(f"image {missing[0]} of the certificates is not among the images {images.name}")
        self._images = images.take([places[c.idx] for c in certificates]) if certificates else images
        self._classes = smoothed.classifier.num_classes
        self._looks = len(looks(settings.n)) if settings.adaptive is not None else 1
        is_float = smoothed.engine.describe()["precision"] == "float32"
        self._changed = CHANGED_FLOAT if is_float else CHANGED
        self._random = self._repeats_nothing(images)
        self._same = alike
        self.alike: Alike = (lambda row: False) if self._random else alike

    def _repeats_nothing(self, images: ImageSet) -> bool:
        """Tell whether the engine answers the same batch otherwise when it is asked again: the network draws at random."""
        engine = self.smoothed.engine
        if not isinstance(engine, GraphEngine):
            return False
        buffer = engine.buffer()
        try:
            source = self.smoothed.source("certify")
            for first in range(0, engine.batch, CHUNK):
                out = buffer[first : first + CHUNK]
                source.add(images.images[0], int(images.indices[0]), first, len(out), out)
            before, after = engine.logits_of(buffer), engine.logits_of(buffer)
        finally:
            engine.release(buffer)
        return bool(np.abs(before - after).max() > _RANDOM * np.abs(before).max())

    def _room(self, rate: float) -> int:
        """Return how many votes may be drawn again unasked."""
        return min(_WHOLE_VOTES, int(rate * _WHOLE_SECONDS))

    def spot_check(self) -> Replay:
        """Draw as many whole rows again as take seconds, one at least, and of others a chunk and the votes that selected."""
        found = Replay()
        rate = self.smoothed.engine.images_per_second(_RATE_SECONDS)
        shortest = min((row.n + row.n0 for row in self.certificates), default=0)
        room = self._room(rate)
        if room < shortest <= rate * _ONE_ROW_SECONDS:
            room = shortest
        whole: list[int] = []
        rest: list[int] = []
        for row in _draw(len(self.certificates), len(self.certificates)):
            used = self.certificates[row].n + self.certificates[row].n0
            fits = used <= room
            room -= used if fits else 0
            (whole if fits else rest).append(row)
        each = CHUNK + (self.settings.n0 if self.settings.mode == "select" else 0)
        self._chunks(rest[: min(SPOT_ROWS, max(_LEAST_ROWS, int(rate * _SPOT_SECONDS / each)))], found)
        self._whole(whole, found)
        return found

    def replay(self, count: int) -> Replay:
        """Draw all votes of `count` rows again."""
        found = Replay()
        self._whole(_draw(len(self.certificates), count), found)
        return found

    def fresh(self, count: int) -> Fresh:
        """Certify the images of `count` rows under a key of the operating system, and test for contradiction.

        Both runs may have stopped at any of their looks, so a p-value is paid for at each pair of them.
        """
        rows = _draw(len(self.certificates), count)
        seed = fresh_seed()
        smoothed = Smoothed(
            self.smoothed.classifier, self.settings.sigma, noise=self.settings.noise, seed=seed, engine=self.smoothed.engine
        )  # fmt: skip
        certified = smoothed.certify(self._images.take(rows), replace(self.settings, seed=seed))
        found = Replay(rows=len(rows), whole=len(rows))
        for row, now in zip(rows, certified, strict=True):
            found.votes += now.n + now.n0
            changed = 0.0 if self._same(row) else self._changed
            p_value = samples_p_value(
                dict(now.counts), dict(self.certificates[row].counts), self._classes, changed=changed
            )
            found.p_values.append(min(1.0, self._looks**2 * p_value))
        then = CertificateSet([self.certificates[row] for row in rows])
        return Fresh(found, then.acr, CertificateSet(certified).acr)

    def _chunks(self, rows: Sequence[int], found: Replay) -> None:
        selecting = self.settings.mode == "select"
        sources = {purpose: self.smoothed.source(purpose) for purpose in ("select", "certify")}
        counts = {(row, purpose): np.zeros(self._classes, np.int64) for row in rows for purpose in sources}

        def segments() -> Iterator[Segment]:
            for row in rows:
                image, index, n = self._images.images[row], self.certificates[row].idx, self.certificates[row].n
                first = CHUNK * secrets.randbelow(-(-n // CHUNK))
                yield from segments_of(row, image, index, sources["certify"], first, min(n, first + CHUNK))
                if selecting:
                    yield from segments_of(row, image, index, sources["select"], 0, self.certificates[row].n0)

        def receive(segment: Segment, labels: Labels) -> None:
            counts[segment.owner, segment.source.key.purpose] += np.bincount(labels, minlength=self._classes)
            found.votes += segment.count

        run_votes(self.smoothed.engine, FixedWork(segments(), receive))
        for row in rows:
            self._judge_chunk(row, _votes(counts[row, "certify"]), found)
            if selecting:
                self._judge_selection(row, _votes(counts[row, "select"]), found)
        found.rows += len(rows)
        found.exact += sum(map(self.alike, rows))

    def _judge_chunk(self, row: int, part: Mapping[int, int], found: Replay) -> None:
        certificate, alike = self.certificates[row], self.alike(row)
        total = dict(certificate.counts)
        over = [klass for klass, votes in part.items() if votes > total.get(klass, 0)]
        if over and alike:
            found.problems.append(
                f"image {certificate.idx}: {part[over[0]]} of {sum(part.values())} votes drawn again are for class {over[0]}, "
                f"where the table has {total.get(over[0], 0)} of all {certificate.n}"
            )
        test = samples_p_value if self._random else part_p_value
        p_value = test(part, total, self._classes, changed=0.0 if self._same(row) else self._changed)
        found.p_values.append(min(1.0, self._looks * p_value))

    def _judge_selection(self, row: int, votes: Mapping[int, int], found: Replay) -> None:
        """Compare the votes that selected the class; the class of an abstention is known by its votes only."""
        certificate = self.certificates[row]
        tried = self._tried(certificate)
        if self.alike(row):
            selected = min(votes, key=lambda klass: (-votes[klass], klass))
            if selected not in tried or votes[selected] != certificate.select_votes:
                found.problems.append(
                    f"image {certificate.idx}: {votes[selected]} of {certificate.n0} votes select class {selected}, where the "
                    f"table has {certificate.select_votes} for class {' or '.join(map(str, tried)) or 'none'}"
                )
            return
        then = {0: certificate.select_votes, 1: certificate.n0 - certificate.select_votes}
        now = ({0: votes.get(klass, 0), 1: certificate.n0 - votes.get(klass, 0)} for klass in tried)
        found.p_values.append(max((self._p_value(row, then, each, 2) for each in now), default=0.0))

    def _tried(self, certificate: Certificate) -> list[int]:
        """Return the classes that the row can have tried: the claimed one, or all with as many votes as an abstention has."""
        if certificate.predict != ABSTAIN:
            return [certificate.predict]
        counts = dict(certificate.counts)
        return [klass for klass in range(self._classes) if counts.get(klass, 0) == certificate.votes]

    def _whole(self, rows: Sequence[int], found: Replay) -> None:
        if not rows:
            return
        for row, now in zip(rows, self.smoothed.certify(self._images.take(rows), self.settings), strict=True):
            found.votes += now.n + now.n0
            self._judge_whole(row, now, found)
        found.whole += len(rows)
        found.exact += sum(map(self.alike, rows))

    def _judge_whole(self, row: int, now: Certificate, found: Replay) -> None:
        then = self.certificates[row]
        if self.alike(row):
            before, after = _evidence(then), _evidence(now)
            if differ := [name for name in after if before[name] != after[name]]:
                found.problems.append(
                    f"image {then.idx}: all its votes, drawn again, make {differ[0]} {after[differ[0]]}, where the table has "
                    f"{before[differ[0]]}"
                )
            return
        p_value = self._p_value(row, dict(then.counts), dict(now.counts), self._classes)
        found.p_values.append(min(1.0, self._looks**2 * p_value))

    def _p_value(self, row: int, first: Mapping[int, int], second: Mapping[int, int], classes: int) -> float:
        """Return the p-value of two counts for one image under one key, the smaller of the first samples of the larger."""
        changed = 0.0 if self._same(row) else self._changed
        if self._random:
            return samples_p_value(first, second, classes, changed=changed)
        if sum(first.values()) == sum(second.values()):
            return same_noise_p_value(first, second, changed=changed)
        part, total = sorted((first, second), key=lambda votes: sum(votes.values()))
        return part_p_value(part, total, classes, changed=changed)

    def started(self, images: ImageSet, states: Mapping[int, Started]) -> Replay:
        """Draw votes of images in progress again: all of them where that takes seconds, else a chunk."""
        found, places = Replay(), {int(index): place for place, index in enumerate(images.indices)}
        room = self._room(self.smoothed.engine.images_per_second(_RATE_SECONDS))
        for index, state in states.items():
            image = images.images[places[index]]
            for purpose, total in (("select", state.select_counts), ("certify", state.counts)):
                n = sum(total.values())
                if n == 0:
                    continue
                chunk = CHUNK * secrets.randbelow(-(-n // CHUNK))
                first, last = (0, n) if n <= room else (chunk, min(n, chunk + CHUNK))
                room -= last - first
                self._judge_started(index, image, purpose, (first, last), total, found)
        return found

    def _judge_started(
        self,
        index: int,
        image: np.ndarray,
        purpose: str,
        samples: tuple[int, int],
        total: Mapping[int, int],
        found: Replay,
    ) -> None:
        """Compare some samples with the votes recorded for an image in progress, which this engine has counted."""
        counts = np.zeros(self._classes, np.int64)

        def receive(segment: Segment, labels: Labels) -> None:
            counts[:] += np.bincount(labels, minlength=self._classes)

        source, (first, last) = self.smoothed.source(purpose), samples
        run_votes(self.smoothed.engine, FixedWork(segments_of(0, image, index, source, first, last), receive))
        part, n = _votes(counts), sum(total.values())
        found.votes += sum(part.values())
        if self._random:
            found.p_values.append(samples_p_value(part, total, self._classes))
        elif part != total if samples == (0, n) else any(votes > total.get(klass, 0) for klass, votes in part.items()):
            found.problems.append(
                f"image {index}: {part} are votes of {last - first} samples, where the file has {dict(total)} of {n}"
            )
        else:
            found.p_values.append(part_p_value(part, total, self._classes))


def _draw(count: int, wanted: int) -> list[int]:
    """Draw distinct rows from the operating system."""
    return secrets.SystemRandom().sample(range(count), min(wanted, count))


def _votes(counts: np.ndarray) -> dict[int, int]:
    return {int(klass): int(counts[klass]) for klass in np.flatnonzero(counts)}


def _evidence(certificate: Certificate) -> dict[str, object]:
    names = ("select_votes", "n", "votes", "predict", "stop")
    return {**{name: getattr(certificate, name) for name in names}, "counts": dict(certificate.counts)}
