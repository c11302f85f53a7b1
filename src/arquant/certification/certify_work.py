"""The queue of votes behind certificates: which image is sampled next, and when it has enough votes."""

import copy
import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from arquant.certificates.certificate import ABSTAIN, Certificate, Settings
from arquant.certificates.verdict import judge, next_look
from arquant.certification.votes import Labels, Segment, Tally, chunk_limit, tally_of
from arquant.images.imageset import ImageSet
from arquant.noise.source import NoiseSource


@dataclass
class Started:
    """An image whose votes are being counted: first `n0` to select a class, then up to `n` to bound its probability."""

    selecting: bool
    counted: int = 0
    """samples of the present stage whose votes are in; always a prefix of the noise"""
    select_counts: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data, from which `from_json` makes an equal object."""
        return {
            "selecting": self.selecting,
            "counted": self.counted,
            "select_counts": sorted(self.select_counts.items()),
            "counts": sorted(self.counts.items()),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Started":
        """Read what `to_json` wrote."""
        return cls(
            bool(data["selecting"]),
            int(data["counted"]),
            {int(c): int(k) for c, k in data["select_counts"]},
            {int(c): int(k) for c, k in data["counts"]},
            float(data["seconds"]),
        )

    def fits(self, settings: Settings, num_classes: int) -> bool:
        """Tell whether a run with these settings can have stopped in this state: votes add up, and some are still to come."""
        selected, voted = sum(self.select_counts.values()), sum(self.counts.values())
        n0 = settings.n0 if settings.mode == "select" else 0
        votes = [*self.select_counts.items(), *self.counts.items()]
        return (
            all(0 <= klass < num_classes and count > 0 for klass, count in votes)
            and (self.counted, voted) == ((selected, 0) if self.selecting else (voted, voted))
            and (selected < n0 if self.selecting else selected == n0 and voted < settings.n)
            and 0 <= self.seconds < float("inf")
        )


class CertifyWork:
    """The queue behind `Smoothed.certify`: images are opened only when earlier ones have nothing more to sample.

    So few images are in progress at any time, and a killed run loses little whatever n is.

    Args:
        source: gives the noise of a purpose.
        finish: is told each certificate, in the order of the images.
        started: votes counted by an earlier run, by dataset index.
        on_votes: called with the number of votes, whenever some of an image are in, and with this queue.
    """

    def __init__(
        self,
        source: Callable[[str], NoiseSource],
        images: ImageSet,
        settings: Settings,
        finish: Callable[[Certificate], None],
        started: Mapping[int, Started],
        on_votes: Callable[[int, "CertifyWork"], None] | None,
    ) -> None:
        self.images = images
        self.settings = settings
        self.open: dict[int, _Ballot] = {}
        """ballots in progress, by position in `images`"""
        self._sources = {purpose: source(purpose) for purpose in ("select", "certify")}
        self._finish = finish
        self._earlier = dict(started)
        self._on_votes = on_votes
        self._next = self._finished = 0
        self._wants: list[int] = []
        """a heap of the positions whose ballots can use samples now"""
        self._waiting: dict[int, Certificate] = {}
        self._clock = time.monotonic()

    def take(self, room: int) -> Segment | None:
        """Samples of the earliest image that can use some, of one chunk of the noise."""
        found = self._wanting()
        return None if found is None else self._segment(*found, chunk_limit(found[1].issued, found[1].wanted, room))

    def take_run(self, room: int) -> Segment | None:
        """Samples of the earliest image that can use some, over as many chunks as there is room for."""
        found = self._wanting()
        return None if found is None else self._segment(*found, min(room, found[1].wanted - found[1].issued))

    def _wanting(self) -> "tuple[int, _Ballot] | None":
        """Return the position and ballot of the earliest image that can use samples, a new one if no other can."""
        if not self._wants:
            if self._next == len(self.images):
                return None
            self.open[self._next] = self._start(self._next)
            self._wants.append(self._next)
            self._next += 1
        return self._wants[0], self.open[self._wants[0]]

    def receive(self, segment: Segment, labels: Labels) -> None:
        """Count the votes; move the image on when its present stage or look is complete."""
        self.count(segment, tally_of(labels))

    def count(self, segment: Segment, tally: Tally) -> None:
        """Add votes by class; move the image on when its present stage or look is complete."""
        ballot = self.open[segment.owner]
        progress = ballot.progress
        target = progress.select_counts if progress.selecting else progress.counts
        for klass, votes in tally.items():
            target[klass] = target.get(klass, 0) + votes
        progress.counted += segment.count
        now = time.monotonic()
        progress.seconds += now - self._clock
        self._clock = now
        self._advance(segment.owner, ballot)
        if self._on_votes is not None:
            self._on_votes(segment.count, self)

    def in_progress(self) -> dict[int, Started]:
        """Votes counted so far, by this run or an earlier one, for images without a certificate, by dataset index."""
        opened = {int(self.images.indices[position]): ballot.progress for position, ballot in self.open.items()}
        return {**self._earlier, **opened}

    def _start(self, position: int) -> "_Ballot":
        earlier = self._earlier.pop(int(self.images.indices[position]), None)
        progress = copy.deepcopy(earlier) if earlier else Started(selecting=self.settings.mode == "select")
        ballot = _Ballot(progress, issued=progress.counted)
        ballot.wanted = self._wanted(progress)
        return ballot

    def _wanted(self, progress: Started) -> int:
        return self.settings.n0 if progress.selecting else next_look(progress.counted, self.settings)

    def _segment(self, position: int, ballot: "_Ballot", count: int) -> Segment:
        source = self._sources["select" if ballot.progress.selecting else "certify"]
        segment = Segment(
            position, self.images.images[position], int(self.images.indices[position]), source, ballot.issued, count
        )
        ballot.issued += count
        if ballot.issued == ballot.wanted:
            heapq.heappop(self._wants)  # it is the earliest
        return segment

    def _advance(self, position: int, ballot: "_Ballot") -> None:
        progress = ballot.progress
        if progress.counted < ballot.wanted:
            return
        if progress.selecting:
            progress.selecting, progress.counted, ballot.issued = False, 0, 0
        else:
            certificate = self._judge(position, progress)
            if certificate is not None:
                del self.open[position]
                self._waiting[position] = certificate
                self._flush()
                return
        ballot.wanted = self._wanted(progress)
        heapq.heappush(self._wants, position)

    def _judge(self, position: int, progress: Started) -> Certificate | None:
        label = int(self.images.labels[position])
        if self.settings.mode == "label":
            klass, selected = label, 0
        else:
            klass = min(progress.select_counts, key=lambda c: (-progress.select_counts[c], c))
            selected = progress.select_counts[klass]
        verdict = judge(progress.counts, klass, progress.counted, self.settings)
        if verdict is None:
            return None
        return Certificate(
            idx=int(self.images.indices[position]),
            label=label,
            predict=klass if verdict.radius > 0 else ABSTAIN,
            radius=verdict.radius,
            seconds=progress.seconds,
            votes=progress.counts.get(klass, 0),
            n=progress.counted,
            p_lower=verdict.p_lower,
            p_upper=verdict.p_upper,
            counts=tuple(sorted(progress.counts.items())),
            select_votes=selected,
            n0=self.settings.n0 if self.settings.mode == "select" else 0,
            stop=verdict.stop,
        )

    def _flush(self) -> None:
        while self._finished in self._waiting:
            self._finish(self._waiting.pop(self._finished))
            self._finished += 1


@dataclass
class _Ballot:
    progress: Started
    issued: int
    wanted: int = 0
