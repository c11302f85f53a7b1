"""The float model's votes on the search images, one label per noisy sample: what every candidate is compared with.

Noise is not stored: sample j of image i is drawn again from its address. A cache is valid for exactly one model, engine,
set of images and stream of noise, and refused for any other.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.files import envelope, in_one_move, read_json, write_json
from arquant.base.identity import check_same
from arquant.base.own_files import own_file
from arquant.base.progress import Report, Status, silent
from arquant.certificates.bounds import IntArray
from arquant.certification.pooled_votes import PooledVotes
from arquant.certification.smoothing import Smoothed
from arquant.certification.votes import FixedWork, Labels, Segment, run_votes, segments_of
from arquant.engines.base import Engine
from arquant.images.imageset import ImageSet
from arquant.noise.source import CHUNK, NoiseSource

Votes = NDArray[np.unsignedinteger[Any]]
"""labels of noisy samples, (images, samples); uint8, or uint16 for more than 256 classes"""

SCHEMA, VERSION = "arquant.votes", 1
FACTS, VOTES, PART = "votes.json", "votes.npy", "votes.part"
SPOT_CHECK = 0.01
_SAVED_VOTES = 1 << 16


@dataclass(frozen=True, eq=False)
class VoteCache:
    """Votes of the float model under `search` noise.

    Attributes:
        votes: labels of samples 0 .. n - 1 of each image.
        selected: the class of each image, by the majority of n0 further samples: fixed before the n votes are counted.
        labels: true classes.
        identity: what the votes depend on: model, engine, images, noise, seed, n and n0.
    """

    votes: Votes
    selected: IntArray
    labels: IntArray
    identity: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        if self.votes.ndim != 2 or not self.votes.size or self.selected.shape != self.labels.shape:
            raise InputError(f"a vote cache needs labels of shape (images, samples), got {self.votes.shape}")
        if len(self.labels) != len(self.votes):
            raise InputError(f"{len(self.votes)} rows of votes for {len(self.labels)} images")

    @property
    def n(self) -> int:
        """Samples per image."""
        return int(self.votes.shape[1])

    def for_class(self, classes: IntArray) -> IntArray:
        """Return how many of the n votes of each image go to the class given for it."""
        counts: IntArray = (self.votes == classes[:, None]).sum(axis=1, dtype=np.int64)
        return counts


def votes_dtype(num_classes: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest integers that hold all labels."""
    if num_classes > 1 << 16:
        raise InputError(f"votes are kept for up to 65,536 classes, got {num_classes}")
    return np.dtype(np.uint8 if num_classes <= 1 << 8 else np.uint16)


def sample_votes(
    engine: Engine,
    images: ImageSet,
    source: NoiseSource,
    first: int,
    last: int,
    *,
    num_classes: int,
    on_votes: Callable[[int], None] = lambda count: None,
    pooled: PooledVotes | None = None,
) -> Votes:
    """Labels of samples `first` .. `last` - 1 of every image; an array (images, last - first).

    `pooled` computes them in place of the engine, if it is given.
    """
    votes: Votes = np.empty((len(images), last - first), votes_dtype(num_classes))

    def segments() -> Iterator[Segment]:
        for row in range(len(images)):
            yield from segments_of(row, images.images[row], int(images.indices[row]), source, first, last)

    def receive(segment: Segment, labels: Labels) -> None:
        start = segment.first - first
        votes[segment.owner, start : start + segment.count] = labels
        on_votes(segment.count)

    if pooled is None:
        run_votes(engine, FixedWork(segments(), receive))
    else:
        pooled.label(segments(), receive)
    return votes


def reference_votes(
    smoothed: Smoothed, images: ImageSet, folder: Path, *, n: int, n0: int = 100, report: Report = silent
) -> VoteCache:
    """Return the cache of `smoothed` on `images`, from `folder` if it is there, else computed and saved there.

    A run that was killed goes on after the last saved images. A finished cache is checked: the hash of its votes, and a
    replay of 1 % of them.

    Raises:
        MismatchError: the folder holds votes of another model, engine, set of images, noise or number of samples, or the
            replay gave other labels.
        NotOneFunction: the network, or the engine, is not one fixed function of one image.
        FileFormatError: the files are damaged.
    """
    identity = cache_identity(smoothed, images, n=n, n0=n0)
    own_file(folder.parent, folder.name).mkdir(parents=True, exist_ok=True)
    facts = _read_facts(folder)
    if facts is None:
        (folder / PART).unlink(missing_ok=True)
        write_json(folder / FACTS, _facts(identity, None))
    else:
        _check_identity(folder, facts["identity"], identity)
    smoothed.guard(images)
    dtype = votes_dtype(smoothed.classifier.num_classes)
    if facts is not None and facts["sha256"] is not None:
        cache = _cache(_load(folder, facts["sha256"], (len(images), n + n0), dtype), images, identity, n)
        spot_check(smoothed, images, cache)
        return cache
    part = _Part(own_file(folder, PART), (len(images), n + n0), dtype)
    for rows in part.missing():
        done = rows.start * (n + n0)
        part.append(_sample_rows(smoothed, images, rows, n + n0, done, report))
    votes = part.read()
    _save(folder, votes)
    write_json(folder / FACTS, _facts(identity, votes_digest(votes)))
    part.path.unlink()
    return _cache(votes, images, identity, n)


def spot_check(smoothed: Smoothed, images: ImageSet, cache: VoteCache, *, share: float = SPOT_CHECK) -> int:
    """Replay a share of the cached votes, whole chunks spread over images and samples; returns how many were replayed.

    Raises:
        MismatchError: a label differs. The numerics of model or engine have changed, and so may any vote.
    """
    chunks = -(-cache.n // CHUNK)
    total = chunks * len(images)
    chosen = np.unique(np.linspace(0, total - 1, max(1, round(share * total))).round().astype(np.int64))
    source = smoothed.source("search")
    differ = replayed = 0

    def segments() -> Iterator[Segment]:
        # Consecutive numbers go down the images first, so that an even spacing covers both images and samples.
        for chunk, row in (divmod(int(number), len(images)) for number in chosen):
            last = min((chunk + 1) * CHUNK, cache.n)
            yield from segments_of(row, images.images[row], int(images.indices[row]), source, chunk * CHUNK, last)

    def receive(segment: Segment, labels: Labels) -> None:
        nonlocal differ, replayed
        known = cache.votes[segment.owner, segment.first : segment.first + segment.count]
        differ += int(np.count_nonzero(known != labels))
        replayed += segment.count

    run_votes(smoothed.engine, FixedWork(segments(), receive))
    if differ:
        raise MismatchError(
            f"{differ} of {replayed} cached votes of the float model came out differently when replayed: model, engine or "
            "library changed; go on with those that made them, or choose another --out"
        )
    return replayed


def recorded_engine(folder: Path) -> dict[str, Any] | None:
    """Return the engine that a cache in `folder` was begun with, for `make_engine`; None if there is none."""
    facts = _read_facts(folder)
    if facts is None:
        return None
    engine = facts["identity"]["engine"]
    return {name: engine.get(name) for name in ("engine", "device", "batch", "threads")}


def cache_identity(smoothed: Smoothed, images: ImageSet, *, n: int, n0: int) -> dict[str, Any]:
    """Return all that the votes depend on, as plain data."""
    identity = {
        "model": smoothed.fingerprint,
        "engine": smoothed.engine.describe(),
        "images": images.fingerprint(),
        "sigma": smoothed.noise.sigma,
        "noise": smoothed.noise.kind,
        "seed": smoothed.seed,
        "key": smoothed.source("search").key.id,
        "n": n,
        "n0": n0,
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


class _Part:
    """Rows of votes that are being computed: raw labels, appended and flushed; a torn row is cut off."""

    def __init__(self, path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self._row_bytes = shape[1] * dtype.itemsize
        size = path.stat().st_size if path.exists() else 0
        self.rows = min(size // self._row_bytes, shape[0])
        with path.open("ab") as file:
            file.truncate(self.rows * self._row_bytes)

    def missing(self) -> Iterator[slice]:
        """Return the rows that are not there yet, in portions worth saving."""
        step = max(1, _SAVED_VOTES // self.shape[1])
        for start in range(self.rows, self.shape[0], step):
            yield slice(start, min(start + step, self.shape[0]))

    def append(self, votes: Votes) -> None:
        """Add rows, on disk when this returns."""
        with self.path.open("ab") as file:
            file.write(votes.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> Votes:
        """Return all rows."""
        votes: Votes = np.fromfile(self.path, dtype=self.dtype).reshape(self.shape)
        return votes


def _sample_rows(smoothed: Smoothed, images: ImageSet, rows: slice, samples: int, done: int, report: Report) -> Votes:
    total = len(images) * samples

    def count(votes: int) -> None:
        nonlocal done
        done += votes
        report(Status("reference", done, total, "votes"))

    part = images.take(np.arange(rows.start, rows.stop))
    source = smoothed.source("search")
    return sample_votes(
        smoothed.engine, part, source, 0, samples, num_classes=smoothed.classifier.num_classes, on_votes=count,
        pooled=smoothed.votes,
    )  # fmt: skip


def _cache(votes: Votes, images: ImageSet, identity: Mapping[str, Any], n: int) -> VoteCache:
    further = votes[:, n:].astype(np.int64)
    classes = images.num_classes
    rows = np.arange(len(votes))[:, None] * classes
    counts = np.bincount((further + rows).ravel(), minlength=len(votes) * classes).reshape(len(votes), classes)
    return VoteCache(votes[:, :n], counts.argmax(axis=1), images.labels, identity)


def _facts(identity: Mapping[str, Any], sha256: str | None) -> dict[str, Any]:
    return envelope(SCHEMA, VERSION, {"identity": dict(identity), "sha256": sha256})


def _read_facts(folder: Path) -> dict[str, Any] | None:
    path = own_file(folder, FACTS)
    if not path.exists():
        return None
    try:
        facts = read_json(path, SCHEMA, VERSION)
    except FileFormatError as error:
        raise FileFormatError(f"{error}; delete {folder} to compute the votes again") from None
    identity = facts.get("identity")
    if not isinstance(identity, dict) or not isinstance(identity.get("engine"), dict) or "sha256" not in facts:
        raise FileFormatError(f"{path} does not say what its votes belong to; delete {folder}")
    return facts


def _check_identity(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    known = {name: there.get(name) for name in here}
    check_same(known, here, f"{folder} holds votes of something else", advice="choose another --out, or delete it")


def _load(folder: Path, sha256: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> Votes:
    path = own_file(folder, VOTES)
    try:
        with path.open("rb") as file:
            votes: Votes = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); delete {folder} to compute the votes again") from error
    if votes.shape != shape or votes.dtype != dtype or votes_digest(votes) != sha256:
        raise FileFormatError(f"{path} is damaged; delete {folder} to compute the votes again")
    return votes


def _save(folder: Path, votes: Votes) -> None:
    with in_one_move(folder / VOTES) as scratch, scratch.open("wb") as file:
        np.lib.format.write_array(file, votes, allow_pickle=False)


def votes_digest(votes: Votes) -> str:
    """Return what votes are known by: the SHA-256 of their bytes."""
    return hashlib.sha256(np.ascontiguousarray(votes).tobytes()).hexdigest()
