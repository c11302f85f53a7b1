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
    FALSE_ALARM,
    combined_p_value,
    part_p_value,
    same_noise_p_value,
    samples_p_value,
)
from arquant.certification.smoothing import Smoothed
from arquant.certification.votes import FixedWork, Labels, Segment, run_votes, segments_of
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
        self.alike = alike
        places = {int(index): place for place, index in enumerate(images.indices)}
        if missing := [c.idx for c in certificates if c.idx not in places]:
            raise InputError(f"image {missing[0]} of the certificates is not among the images {images.name}")
        self._images = images.take([places[c.idx] for c in certificates])
        self._classes = smoothed.classifier.num_classes
        self._looks = len(looks(settings.n)) if settings.adaptive is not None else 1

    def spot_check(self) -> Replay:
        """Draw as many whole rows again as take seconds, and one chunk, with the votes that selected the class, of others."""
        found = Replay()
        rate = self.smoothed.engine.images_per_second(_RATE_SECONDS)
        room = min(_WHOLE_VOTES, int(rate * _WHOLE_SECONDS))
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
            changed = 0.0 if self.alike(row) else CHANGED
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
        p_value = part_p_value(part, total, self._classes, changed=0.0 if alike else CHANGED)
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
        found.p_values.append(
            max(
                (
                    same_noise_p_value(
                        {0: certificate.select_votes, 1: certificate.n0 - certificate.select_votes},
                        {0: votes.get(klass, 0), 1: certificate.n0 - votes.get(klass, 0)},
                        changed=CHANGED,
                    )
                    for klass in tried
                ),
                default=0.0,
            )
        )

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
        if then.n == now.n:
            p_value = same_noise_p_value(dict(then.counts), dict(now.counts), changed=CHANGED)
        else:
            part, total = sorted((then, now), key=lambda certificate: certificate.n)
            p_value = part_p_value(dict(part.counts), dict(total.counts), self._classes, changed=CHANGED)
        found.p_values.append(min(1.0, self._looks**2 * p_value))


def _draw(count: int, wanted: int) -> list[int]:
    """Draw distinct rows from the operating system."""
    return secrets.SystemRandom().sample(range(count), min(wanted, count))


def _votes(counts: np.ndarray) -> dict[int, int]:
    return {int(klass): int(counts[klass]) for klass in np.flatnonzero(counts)}


def _evidence(certificate: Certificate) -> dict[str, object]:
    names = ("select_votes", "n", "votes", "predict", "stop")
    return {**{name: getattr(certificate, name) for name in names}, "counts": dict(certificate.counts)}
