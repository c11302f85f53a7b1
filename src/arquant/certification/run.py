"""Certify a model on images: certificates are written row by row, and the same call resumes."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arquant.base.errors import FileFormatError, MismatchError
from arquant.base.processor import Precision
from arquant.base.progress import Report, silent
from arquant.base.provenance import provenance
from arquant.base.run_folder import CONFIG, JOURNAL, MODEL
from arquant.certificates.certificate import Certificate, CertificateSet, Settings
from arquant.certificates.files import (
    TSV_NAME,
    CertificateWriter,
    labels_digest,
    read_certificates,
    read_sidecar,
    sidecar_path,
    write_sidecar,
)
from arquant.certificates.recomputation import check_follows
from arquant.certification.certify_work import CertifyWork, Started
from arquant.certification.identity import (
    alike,
    answering,
    digest,
    earlier_engine,
    identity_of,
    model_record,
    resumed_engine,
    voter,
)
from arquant.certification.partial_votes import read_partial, write_partial
from arquant.certification.pooled_votes import PooledVotes
from arquant.certification.replay import Replayer
from arquant.certification.run_progress import RunProgress
from arquant.certification.smoothing import Smoothed
from arquant.engines.base import input_kind
from arquant.engines.choice import make_engine
from arquant.engines.files import FileClassifier
from arquant.engines.guard import Guard, NotOneFunction
from arquant.engines.pool import Cluster, threads_of
from arquant.engines.probes import make_probes
from arquant.images.imageset import ImageSet
from arquant.loading.models import model_path
from arquant.loading.run_images import check_unseen, run_of
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise
from arquant.quantization.artifact import read_provenance
from arquant.quantization.quantized import QuantizedClassifier

log = logging.getLogger("arquant")
PARTIAL_NAME = "certificates.partial.json"
PARTIAL_SECONDS = 30.0


@dataclass(frozen=True)
class CertifyRun:
    """Certificates and the file that they are in."""

    certificates: CertificateSet
    path: Path


def certify(
    classifier: Classifier, images: ImageSet, settings: Settings, *, origin: str | Path | None = None,
    out: str | Path | None = None, engine: str = "auto", device: str = "auto", batch: int | None = None,
    threads: int | None = None, precision: Precision = "float32", candidates_examined: int | None = None,
    compat: bool = False, cluster: Cluster | None = None, report: Report = silent,
    note: Callable[[str], None] = lambda text: None,
    certified: Callable[[str, str], None] = lambda model, images: None,
) -> CertifyRun:  # fmt: skip
    """Certify a classifier on images and write `certificates.tsv` with its sidecar `certificates.json` into `out`.

    For each image, with probability at least 1 - alpha over the noise (over all images together if `family_wise`): if a
    class is given, the smoothed classifier returns it at the image and within the radius. An abstention claims nothing.

    The same call on the same folder resumes, with the engine and batch of its first part (and its threads, where these could
    change an answer); a folder that holds certificates of another model, of other images or of other settings is refused.

    A network that is not one fixed function of one image (`arquant.engines.guard`) is refused at the start, or at the end of
    the run: then its files are renamed to `*.refused`, since none of their rows is a certificate.

    Args:
        settings: what is claimed, with which noise and from how many votes; `settings_of` makes it from options.
        origin: the MODEL that the classifier was read from. Images that its run used to calibrate, fine-tune or search are
            refused.
        out: the folder; by default one under `runs/` that is named after what is certified.
        candidates_examined: how many models were looked at before this one was chosen, for the sidecar; by default what
            the file of the model says, else unknown, as of every float model.
        compat: write radii with 3 decimals, rounded down, as the field's files do, instead of 8.
        cluster: whose workers count the votes, `threads` cores each (1 if not given); the table is the same without.
        certified: told the fingerprints of model and images before the first vote.
    """
    model: str | Path | Classifier = classifier if origin is None else origin
    warn = _Warnings()
    check_unseen(model, images, classifier, warn)
    identity = identity_of(classifier, images, settings, precision)
    path = _opened(model, out, identity) / TSV_NAME
    asked = {"engine": engine, "device": device, "batch": batch, "threads": threads}
    chosen = resumed_engine(path, identity, asked, warn)
    chosen["threads"] = threads_of(cluster, chosen["threads"])
    probes = make_probes(images, Noise(settings.noise, settings.sigma), seed=settings.seed)
    made = make_engine(
        classifier, kind=chosen.pop("engine"), input_kind=input_kind(settings.noise), votes=len(images) * settings.n,
        precision=precision, probes=probes, warn=warn, **chosen,
    )  # fmt: skip
    smoothed = Smoothed(classifier, settings.sigma, noise=settings.noise, seed=settings.seed, engine=made)
    examined = examined_before(model, classifier) if candidates_examined is None else candidates_examined

    def pooled() -> PooledVotes | None:
        return (
            None if cluster is None else PooledVotes(cluster, classifier, made, probes, precision=precision, note=note)
        )

    try:
        certified(identity["model"], identity["images"])
        _Run(smoothed, images, settings, identity, path, report, note, warn, pooled, examined, compat).work()
    finally:
        smoothed.close()
    return CertifyRun(read_certificates(path), path)


def _opened(model: str | Path | Classifier, out: str | Path | None, identity: Mapping[str, Any]) -> Path:
    """Return the folder for the certificates; the folder of a run takes those of its own model only."""
    run = run_of(model)
    folder = Path(out) if out is not None else Path("runs") / f"certify-{digest(identity)[:8]}"
    whose = MODEL if (folder / CONFIG).is_file() and (folder / MODEL).is_file() else JOURNAL
    of_a_run = whose == MODEL or (folder / JOURNAL).is_file()
    if of_a_run and not isinstance(model, Classifier) and (run is None or run.resolve() != folder.resolve()):
        raise MismatchError(f"{folder} holds another run (the one of its {whose}); choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def examined_before(model: str | Path | Classifier, classifier: Classifier) -> int | None:
    """Return how many models were looked at before this one was chosen; None if unknown, as for any float model."""
    if isinstance(classifier, FileClassifier):
        origin: Mapping[str, Any] = {} if classifier.facts is None else classifier.facts.more
    elif not isinstance(classifier, QuantizedClassifier):
        return None
    else:
        path = None if isinstance(model, Classifier) else model_path(model)
        origin = {} if path is None else read_provenance(path / MODEL if path.is_dir() else path)
    examined = origin.get("candidates_examined")
    return examined if isinstance(examined, int) else None


class _Warnings:
    """Logs warnings and keeps them for the sidecar."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> None:
        log.warning("%s", text)
        self.texts.append(text)


class _Run:
    """One certification run over a folder: it knows what is done and what is left, and reports on it."""

    def __init__(
        self,
        smoothed: Smoothed,
        images: ImageSet,
        settings: Settings,
        identity: dict[str, Any],
        path: Path,
        report: Report,
        note: Callable[[str], None],
        warn: _Warnings,
        pooled: Callable[[], PooledVotes | None],
        candidates_examined: int | None = None,
        compat: bool = False,
    ) -> None:
        self.smoothed = smoothed
        self.images = images
        self.settings = settings
        self.identity = identity
        self.path = path
        self.note = note
        self.warn = warn
        self.pooled = pooled
        self.candidates_examined = candidates_examined
        self.compat = compat
        self._guard: Guard | None = None
        self._partial = path.with_name(PARTIAL_NAME)
        self._voter = voter(identity, smoothed.engine.describe())
        self._saved = time.monotonic()
        self._progress = RunProgress(settings, len(images), report, note, self._workers)

    def work(self) -> None:
        """Certify what is not in the file yet; set the file aside if the network turns out to be no fixed function."""
        self._guard = self.smoothed.guard(self.images)
        try:
            self._work()
        except NotOneFunction as error:
            aside = self._set_aside()
            raise NotOneFunction(f"{error}; nothing of this run is a certificate: {aside}") from error
        self._partial.unlink(missing_ok=True)

    def _set_aside(self) -> str:
        """Rename table and sidecar, so that nobody takes them for evidence; say so."""
        self._partial.unlink(missing_ok=True)
        for path in (self.path, sidecar_path(self.path)):
            path.replace(path.with_name(f"{path.name}.refused"))
        return f"its rows are in {self.path.name}.refused"

    def _work(self) -> None:
        with CertificateWriter(self.path, compat=self.compat) as self._writer:
            begun = self._begun()
            if begun:
                self._check_probes()
            else:
                self._write_sidecar()
            earlier = self._writer.done
            if earlier:
                check_follows(CertificateSet(earlier, self.settings), str(self.path))
                self._replay(earlier)
            self._progress.take_up(earlier)
            done = {certificate.idx for certificate in earlier}
            left = np.flatnonzero([int(index) not in done for index in self.images.indices])
            if len(left):
                if begun:
                    self._write_sidecar(parts=self._parts(len(done)))
                self._certify(self.images.take(left))
            elif self._guard is not None and self._recorded_probes().get("repeated") is False:
                self._guard.end()  # the run was killed between its last row and its end
            self._restate()

    def _recorded_probes(self) -> dict[str, Any]:
        """Return what the sidecar says of the probes; nothing if an earlier version wrote it."""
        found = read_sidecar(sidecar_path(self.path))["provenance"].get("probes")
        return found if isinstance(found, dict) else {}

    def _check_probes(self) -> None:
        """Refuse to go on where the network answers the same probes otherwise than in the first part of the run."""
        before = self._recorded_probes().get("answers")
        now = None if self._guard is None else self._guard.answers()
        if not isinstance(before, list) or now is None or len(before) != len(now):
            return
        differ = sum(None not in pair and pair[0] != pair[1] for pair in zip(before, now, strict=True))
        if differ:
            raise MismatchError(
                f"the model answers {differ} of {len(now)} probes otherwise than when the run in {self.path.parent} began: "
                "it is another function, with the same fingerprint; choose another --out"
            )

    def _replay(self, earlier: Sequence[Certificate]) -> None:
        """Draw some votes of the rows that are here again: a row that the model contradicts is not gone on with."""
        if problem := self._replayer(earlier).spot_check().verdict():
            raise FileFormatError(
                f"{self.path} is not what this model and engine answer: {problem}; choose another --out, or move it away to "
                "certify anew"
            )

    def _replayer(self, earlier: Sequence[Certificate]) -> Replayer:
        repeated = alike(read_sidecar(sidecar_path(self.path))["provenance"], self.smoothed.engine.describe())
        return Replayer(self.smoothed, self.images, earlier, self.settings, repeated)

    def _begun(self) -> bool:
        """Return True if a part of this run is here. Another process may have come while this one made its engine."""
        before, now = earlier_engine(self.path, self.identity), self.smoothed.engine.describe()
        if before is not None and any(now[name] != before[name] for name in ("engine", "device", "batch")):
            raise MismatchError(
                f"another process has begun in {self.path.parent} meanwhile; the same command goes on there"
            )
        return before is not None

    def _certify(self, rest: ImageSet) -> None:
        engine = self.smoothed.engine
        self.smoothed.votes = pooled = self.pooled()
        kind = str(engine.describe()["engine"])
        if pooled is None:
            self._progress.announce(engine.images_per_second(), kind)
        else:
            self._progress.announce(pooled.images_per_second, f"{kind}, {pooled.pool.wanted} workers")
        started = self._read_partial({int(index) for index in rest.indices})
        self._progress.begin(
            sum(
                state.counted + (self.settings.n0 if state.select_counts and not state.selecting else 0)
                for state in started.values()
            )
        )
        self.smoothed.certify(
            rest, self.settings, on_certificate=self._certified, started=started, on_votes=self._voted
        )

    def _workers(self) -> str:
        return "" if self.smoothed.votes is None else self.smoothed.votes.workers

    def _certified(self, certificate: Certificate) -> None:
        self._writer.write(certificate)
        self._progress.certified(certificate)

    def _voted(self, votes: int, work: CertifyWork) -> None:
        now = time.monotonic()
        if now - self._saved >= PARTIAL_SECONDS:
            write_partial(self._partial, self._voter, work.in_progress())
            self._saved = now
        self._progress.voted(votes)

    def _read_partial(self, left: set[int]) -> dict[int, Started]:
        classes = self.smoothed.classifier.num_classes
        try:
            states = read_partial(self._partial, self._voter, self.settings, classes)
        except FileFormatError as error:
            self.note(f"{error}; the images in progress start over")
            return {}
        states = {index: state for index, state in states.items() if index in left}
        if states and (problem := self._replayer(()).started(self.images, states).verdict()):
            raise FileFormatError(
                f"{self._partial} is not what this model and engine answer: {problem}; remove it to count those images anew"
            )
        return states

    def _candidates_examined(self) -> int | None:
        """Return what is stated now, else what the run that began here stated."""
        sidecar = sidecar_path(self.path)
        if self.candidates_examined is not None or not sidecar.exists():
            return self.candidates_examined
        earlier: int | None = read_sidecar(sidecar)["provenance"].get("candidates_examined")
        return earlier

    def _restate(self) -> None:
        """Add to the sidecar what a finished run has learned about itself; who made it and how stays as it is."""
        recorded = read_sidecar(sidecar_path(self.path))["provenance"]
        learned: dict[str, Any] = {}
        if self.candidates_examined is not None:
            learned["candidates_examined"] = self.candidates_examined
        if probes := self._recorded_probes():
            learned["probes"] = {**probes, "repeated": True}
        if any(recorded.get(name) != value for name, value in learned.items()):
            self._put_sidecar({**recorded, **learned})

    def _parts(self, rows: int) -> list[dict[str, Any]]:
        """Return how the rows of earlier parts were made; warn if this part's engine is another version."""
        earlier = read_sidecar(sidecar_path(self.path))["provenance"]
        last = {name: earlier.get(name) for name in ("written", "commit", "versions", "machine", "engine", "warnings")}
        now, before = answering(self.smoothed.engine.describe()), earlier["engine"]
        differ = {name: value for name, value in now.items() if before.get(name) != value}
        changed = [f"{name} {before.get(name)} then, {value} now" for name, value in differ.items()]
        if changed:
            self.warn(f"the first {rows} rows of {self.path} come from another engine ({'; '.join(changed)})")
        parts = earlier.get("parts")
        return [*(parts if isinstance(parts, list) else []), {**last, "rows": rows}]

    def _write_sidecar(self, parts: Sequence[Mapping[str, Any]] = ()) -> None:
        source = self.smoothed.source("certify")
        self._put_sidecar(
            {
                **provenance(),
                **({"parts": list(parts)} if parts else {}),
                "identity": self.identity,
                "model": model_record(self.smoothed.classifier, self.identity["model"]),
                "data": self.images.record(),
                "labels_sha256": labels_digest(
                    zip(self.images.indices.tolist(), self.images.labels.tolist(), strict=True)
                ),
                "engine": self.smoothed.engine.describe(),
                **({} if self._guard is None else {"probes": {"answers": self._guard.answers(), "repeated": False}}),
                "noise": {"key_id": source.key.id, "total_variation": source.total_variation},
                "bound": "Clopper-Pearson",
                "candidates_examined": self._candidates_examined(),
                "warnings": self.warn.texts,
            }
        )

    def _put_sidecar(self, record: Mapping[str, Any]) -> None:
        write_sidecar(
            self.path,
            self.settings,
            rows=len(self.images),
            images_sha256=self.identity["images"],
            provenance=record,
        )
