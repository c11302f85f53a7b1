"""Votes counted by the workers of a pool: addresses of samples and the images that they need go out, counts come back.

A vote depends on its address alone (model, image, sample), and every worker compiles the same network for the same engine. So
certificates are those of one process, byte for byte, however many workers there are and in whatever order they answer.
"""

import hashlib
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arquant.base.processor import Precision
from arquant.certification.identity import answering, machine_facts
from arquant.certification.votes import (
    CountedWork,
    FixedWork,
    Labels,
    Segment,
    Tally,
    run_votes,
    segments_of,
    tally_of,
)
from arquant.engines.base import Engine, GraphEngine
from arquant.engines.choice import ENGINES, Builder, make_engine, register_engine
from arquant.engines.cluster import open_pool
from arquant.engines.files import FileClassifier
from arquant.engines.guard import guarded
from arquant.engines.pool import Cluster
from arquant.engines.probes import Probes
from arquant.engines.weight_files import weight_files
from arquant.models.classifier import Classifier

UNIT_SECONDS = 1.0
"""work of one unit, against which handing it out (about a millisecond) is nothing"""
SECONDS_OF_RATE = 0.4


@dataclass(frozen=True, eq=False)
class Unit:
    """Samples to be labelled by one worker, of any number of images; counts come back, or the labels themselves."""

    segments: Sequence[Segment]
    labelled: bool = False


class Voter:
    """A worker that counts votes.

    Args:
        make_votes: makes its engine.
    """

    def __init__(self, make_votes: Callable[[], tuple[Engine, Classifier]], probes: Probes) -> None:
        self._engine, classifier = make_votes()
        self._probes = probes
        self._guard = guarded(self._engine, classifier, probes)

    def facts(self) -> dict[str, Any]:
        """Return all that a vote depends on, beside its address."""
        return voting_facts(self._engine, self._probes)

    def work(self, unit: Unit) -> list[Tally] | list[Labels]:
        """Return the votes by class of every segment of a unit, or all its labels."""
        labels = [np.empty(run.count, np.int64) for run in unit.segments]

        def chunks() -> Iterator[Segment]:
            for place, run in enumerate(unit.segments):
                yield from segments_of(place, run.image, run.index, run.source, run.first, run.first + run.count)

        def receive(segment: Segment, found: Labels) -> None:
            start = segment.first - unit.segments[segment.owner].first
            labels[segment.owner][start : start + segment.count] = found

        run_votes(self._engine, FixedWork(chunks(), receive))
        return labels if unit.labelled else [tally_of(each) for each in labels]

    def end(self) -> None:
        """Ask the probes again; raise NotOneFunction if the network has changed."""
        if self._guard is not None:
            self._guard.end()


@dataclass(frozen=True, eq=False)
class _MakeVotes:
    """Makes the engine of a run again, in another process, perhaps on another machine."""

    classifier: Classifier
    how: Mapping[str, Any]
    """arguments of `make_engine`"""
    builder: Builder
    """of the engine: the other process does not know those that this one has registered"""
    files: Mapping[str, bytes]
    """those that the network is read from, the network itself first; none if it is in memory"""

    def __call__(self) -> tuple[Engine, Classifier]:
        register_engine(self.how["kind"])(self.builder)
        if not isinstance(self.classifier, FileClassifier):
            return make_engine(self.classifier, **self.how), self.classifier
        with tempfile.TemporaryDirectory() as folder:
            for name, content in self.files.items():
                (Path(folder) / name).write_bytes(content)
            here = _moved(self.classifier, Path(folder) / next(iter(self.files)))
            return make_engine(here, **self.how), here


def _moved(classifier: FileClassifier, path: Path) -> FileClassifier:
    """Return the classifier of the same file elsewhere."""
    mean, std = (each.reshape(-1).tolist() for each in (classifier.mean, classifier.std))
    return FileClassifier(
        path, classifier.facts, num_classes=classifier.num_classes, input_shape=classifier.input_shape, mean=mean,
        std=std, bounds=classifier.bounds, name=classifier.name,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _MakeVoter:
    make_votes: _MakeVotes
    probes: Probes

    def __call__(self) -> Voter:
        return Voter(self.make_votes, self.probes)


class PooledVotes:
    """Counts votes by the workers of a cluster, which begin to start at once.

    Args:
        engine: of this process, with the threads of one worker; every worker must answer as it does.
        precision: that the engine was made with.
        unit: votes that are handed out at a time; about a second's worth if not given.
    """

    def __init__(
        self,
        cluster: Cluster,
        classifier: Classifier,
        engine: Engine,
        probes: Probes,
        *,
        precision: Precision = "float32",
        unit: int | None = None,
        note: Callable[[str], None] = lambda text: None,
        **changes: Any,
    ) -> None:
        made = engine.describe()
        self.rate = engine.images_per_second(SECONDS_OF_RATE)  # before the workers start, who would disturb it
        self.unit = unit or engine.batch * max(1, round(self.rate * UNIT_SECONDS / engine.batch))
        how = {
            "kind": made["engine"], "batch": engine.batch, "input_kind": engine.input_kind, "threads": made["threads"],
            "device": made["device"], "precision": precision, "probes": probes,
        }  # fmt: skip
        make = _MakeVoter(_MakeVotes(classifier, how, ENGINES[made["engine"]], _files_of(classifier)), probes)
        gpus = int(str(made["device"]).startswith("cuda"))
        self.pool = open_pool(
            cluster, make, voting_facts(engine, probes), threads=made["threads"], gpus=gpus, note=note, **changes
        )

    @property
    def images_per_second(self) -> float:
        """Return how many votes per second all workers together should cast."""
        return self.rate * self.pool.wanted

    @property
    def workers(self) -> str:
        """Return how many workers there are, for people."""
        ready, wanted = self.pool.workers, self.pool.wanted
        return str(ready) if ready == wanted else f"{ready}/{wanted}"

    def run(self, work: CountedWork) -> None:
        """Work the queue off.

        Raises:
            MismatchError: a worker would vote otherwise than this process.
            PoolLost: the cluster is gone; what was counted is in the work.
            NotOneFunction: the network has changed on a worker.
        """
        results = _InOrder(work)
        self.pool.run(lambda: _unit(work.take_run, self.unit, results.taken), results.receive)
        self.pool.end()

    def label(self, runs: Iterable[Segment], receive: Callable[[Segment, Labels], None]) -> None:
        """Label samples that are known in advance; `receive` gets them in any order. It raises what `run` does."""
        queue = FixedWork(runs, receive)

        def back(unit: Unit, found: Sequence[Labels]) -> None:
            for segment, labels in zip(unit.segments, found, strict=True):
                receive(segment, labels)

        self.pool.run(lambda: _unit(queue.take, self.unit, labelled=True), back)
        self.pool.end()

    def close(self) -> None:
        """End the workers."""
        self.pool.close()


def _unit(
    take: Callable[[int], Segment | None],
    votes: int,
    taken: Callable[[Segment], None] = lambda segment: None,
    *,
    labelled: bool = False,
) -> Unit | None:
    """Return samples of so many votes, fewer if the queue has no more now; None if it has none."""
    found: list[Segment] = []
    room = votes
    while room > 0 and (segment := take(room)) is not None:
        found.append(segment)
        taken(segment)
        room -= segment.count
    return Unit(found, labelled) if found else None


class _InOrder:
    """Gives the votes of each image back to a queue in the order in which its samples were taken."""

    def __init__(self, work: CountedWork) -> None:
        self._work = work
        self._due: defaultdict[int, deque[Segment]] = defaultdict(deque)
        """segments under way, by their owner"""
        self._early: dict[tuple[int, int], Tally] = {}
        """votes that came before those of earlier samples, by owner and first sample"""

    def taken(self, segment: Segment) -> None:
        """Expect the votes of a segment."""
        self._due[segment.owner].append(segment)

    def receive(self, unit: Unit, tallies: Sequence[Tally]) -> None:
        """Take in the votes of a unit."""
        for segment, tally in zip(unit.segments, tallies, strict=True):
            self._early[segment.owner, segment.first] = tally
        for owner in {segment.owner: None for segment in unit.segments}:
            due = self._due[owner]
            while due and (owner, due[0].first) in self._early:
                earliest = due.popleft()
                self._work.count(earliest, self._early.pop((owner, earliest.first)))
            if not due:
                del self._due[owner]


def voting_facts(engine: Engine, probes: Probes) -> dict[str, Any]:
    """Return all that a vote depends on beside its address: network, engine, versions, processor and its arithmetic."""
    described = {"model": engine.fingerprint, "engine": answering(engine.describe())}
    return {**described, **machine_facts(), "arithmetic": _arithmetic(engine, probes)}


def _arithmetic(engine: Engine, probes: Probes) -> str | None:
    """Return a hash of the logits of the probes to the last bit; None where they are random, or not shown."""
    if not isinstance(engine, GraphEngine):
        return None
    buffer = engine.buffer()
    try:
        buffer[:] = probes.images[np.resize(np.arange(len(probes)), engine.batch)]
        found = {hashlib.sha256(engine.logits_of(buffer).tobytes()).hexdigest()[:16] for _ in range(2)}
    finally:
        engine.release(buffer)
    return found.pop() if len(found) == 1 else None


def _files_of(classifier: Classifier) -> dict[str, bytes]:
    """Return the files that a network is read from, by their names; none if it is in memory."""
    if not isinstance(classifier, FileClassifier):
        return {}
    return {path.name: path.read_bytes() for path in (classifier.path, *weight_files(classifier.path))}
