"""The certificates of a folder under `arquant check`: what follows from what, what the model says, what stays unverified."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from arquant.base.errors import ArquantError, InputError
from arquant.certificates.certificate import CertificateSet, Settings
from arquant.certificates.contradictions import FALSE_ALARM
from arquant.certificates.files import TSV_NAME, certified_model, read_certificates, sidecar_path
from arquant.certificates.recomputation import check_follows, check_stops
from arquant.certification.identity import alike, engine_of
from arquant.certification.replay import Replay, Replayer
from arquant.certification.sidecar_record import check_against_model, check_record
from arquant.certification.smoothing import Smoothed
from arquant.engines.base import Engine, input_kind
from arquant.engines.choice import make_engine
from arquant.images.imageset import ImageSet, positions_of
from arquant.loading.datasets import load_data
from arquant.loading.models import load_model, shipped_models
from arquant.loading.roles import images_for
from arquant.loading.run_images import check_unseen, run_images, run_of
from arquant.models.classifier import Classifier

_MOST_PIXELS = 2**26
"""of a batch that a sidecar may ask for: 21,845 images of 32 x 32"""
_NAMED_SETS = {"sample (certify)": ("sample",), "cifar10 (certify)": ("cifar10", "sample")}
"""sets whose recorded name says where to find them, and where; the sample has the certify images of CIFAR-10"""


@dataclass
class Evidence:
    """Verifies the certificates of one folder, as far as model and images are at hand.

    Args:
        folder: where the certificates are.
        candidates: models that they may be of; the first whose fingerprint fits is taken.
        must_fit: the certificates must be of one of the candidates.
        data: the images, as a DATA, where neither the run nor the sidecar names them.
        searched: the folder is of a search, which kept its own images for them.
    """

    folder: Path
    candidates: Iterator[Classifier]
    must_fit: bool
    data: str | ImageSet | None
    searched: bool
    unverified: list[str] = field(default_factory=list)
    """what could not be verified, one sentence each; a requirement must not rest on it"""
    replayer: Replayer | None = None

    def verify(self) -> tuple[CertificateSet, str]:
        """Verify all that can be; the certificates and what was found about them.

        Raises:
            ArquantError: something contradicts something else.
        """
        found = read_certificates(self.folder)
        check_follows(found, TSV_NAME)
        check_stops(found, TSV_NAME)
        check_record(found)
        classifier = self._classifier(found)
        if classifier is not None:
            check_against_model(found, classifier)
        images, about = self._images(found, classifier)
        votes = self._votes(found, classifier, images)
        settings = found.settings
        assert settings is not None  # check_record refuses a set without
        how = f"n {settings.n:,}, alpha {settings.alpha:g}, sigma {settings.sigma:g}"
        return (
            found,
            f"{len(found)} certificates follow from their votes ({how}), ACR {found.acr:.4f}; {about}; {votes}",
        )

    def close(self) -> None:
        """Free the engine."""
        if self.replayer is not None:
            self.replayer.smoothed.close()

    def replay(self, count: int) -> str:
        """Draw all votes of `count` rows again."""
        again = self._replayer().replay(count)
        return _judged(again, f"all {again.votes:,} votes of {again.whole} rows were drawn again: {_compared(again)}")

    def fresh(self, count: int) -> str:
        """Certify the images of `count` rows under a key of the operating system."""
        fresh = self._replayer().fresh(count)
        return _judged(
            fresh.replay,
            f"{fresh.replay.rows} images certified under a new key: ACR {fresh.fresh_acr:.4f}, recorded "
            f"{fresh.recorded_acr:.4f}; no contradiction (false alarms: {FALSE_ALARM:g})",
        )

    def _replayer(self) -> Replayer:
        if self.replayer is None:
            raise InputError(f"no votes can be drawn: {'; '.join(self.unverified) or f'no valid {TSV_NAME}'}")
        return self.replayer

    def _classifier(self, found: CertificateSet) -> Classifier | None:
        certified = certified_model(found.provenance)
        for candidate in self.candidates:
            if candidate.fingerprint() == certified:
                return candidate
        if self.must_fit:
            raise InputError("the certificates are of another model than model.safetensors")
        named = _record(found, "model").get("name")
        if named in shipped_models():
            shipped = load_model(str(named))
            if shipped.fingerprint() == certified:
                return shipped
        self.unverified.append("the model is not at hand (--model), so neither its identity nor any vote")
        return None

    def _images(self, found: CertificateSet, classifier: Classifier | None) -> tuple[ImageSet | None, str]:
        """Return the certified images and what is said of them; None where they are not at hand."""
        problem = ""
        for own, required in self._image_sets(found, classifier):
            if isinstance(own, ArquantError):
                problem = f" ({own})"
                continue
            images = _rows_of(own, found)
            if images is not None:
                return images, self._about(images, own, found)
            if required:
                raise InputError(required)
        self.unverified.append(f"images and labels are not at hand (--data){problem}")
        return None, "images and labels were not looked at"

    def _image_sets(
        self, found: CertificateSet, classifier: Classifier | None
    ) -> Iterator[tuple[ImageSet | ArquantError, str]]:
        """Yield sets that may hold the images, or why one cannot be read, and what it means that they do not."""
        if self.data is not None:
            if classifier is None:
                yield InputError("--data is read for the certified model, which is not at hand"), ""
            else:
                yield images_for(self.data, "certify", classifier), "the certificates are of other images than --data"
        if classifier is not None:
            other = "the certificates are of other images than those that the search kept for them"
            yield (
                _attempted(lambda: run_images(run_of(self.folder), "certify", classifier)),
                other if self.searched else "",
            )
        name = _record(found, "data").get("name")
        for spec in _NAMED_SETS.get(name, ()) if isinstance(name, str) else ():
            yield (
                _attempted(lambda spec=spec: load_data(spec, "certify")),
                f"the certificates are said to be of {name}, whose images, labels or indices are others",
            )

    def _about(self, images: ImageSet, own: ImageSet, found: CertificateSet) -> str:
        wanted = list(zip(images.indices.tolist(), images.labels.tolist(), strict=True))
        if sorted((c.idx, c.label) for c in found.certificates) != sorted(wanted):
            raise InputError("rows are missing, or their labels or indices are not those of the images")
        check_unseen(self.folder, images)
        if len(images) == len(own):
            return "labels are those of the images"
        selection = _selection(own, images)
        part = f"on {len(images):,} of the run's {len(own):,} images"
        if selection is None:
            self.unverified.append(f"{part}, which no --images names: they may have been picked by their results")
            return f"{part}; labels are those of the images"
        return f"{part}; labels are those of the images, which --images {selection} names"

    def _votes(self, found: CertificateSet, classifier: Classifier | None, images: ImageSet | None) -> str:
        if classifier is None or images is None:
            if classifier is not None:
                self.unverified.append("no vote was drawn again, for want of the images")
            return "no vote was drawn again"
        settings = found.settings
        assert settings is not None  # check_record refuses a set without
        engine = self._engine(found, classifier, settings)
        smoothed = Smoothed(
            classifier, settings.sigma, noise=settings.noise, seed=settings.seed, engine=engine
        )  # closed by close()
        self.replayer = Replayer(
            smoothed, images, found.certificates, settings, alike(found.provenance, engine.describe())
        )
        again = self.replayer.spot_check()
        rows = again.rows + again.whole
        return _judged(
            again,
            f"{again.votes:,} votes of {rows} random rows drawn again ({again.whole} rows whole): {_compared(again)}",
        )

    def _engine(self, found: CertificateSet, classifier: Classifier, settings: Settings) -> Engine:
        """Make the engine of the record, or where it cannot run here the one that would be chosen."""
        recorded = _record(found, "engine")
        how = engine_of(found.provenance, sidecar_path(self.folder / TSV_NAME))
        if how["batch"] * prod(classifier.input_shape) > _MOST_PIXELS:
            raise InputError(f"the sidecar asks for batches of {how['batch']:,} images, which would take all memory")
        precision = _record(found, "identity").get("precision", "float32")
        common: dict[str, Any] = {"input_kind": input_kind(settings.noise), "precision": precision}
        try:
            engine = make_engine(
                classifier, kind=how["engine"], batch=how["batch"], device=how["device"], threads=how["threads"],
                compiled=bool(recorded.get("compiled", True)), **common,
            )  # fmt: skip
        except ArquantError:
            return make_engine(classifier, batch=how["batch"], **common)
        made = engine.describe()
        if made["precision"] != recorded.get("precision"):
            engine.close()
            raise InputError(
                f"the engine {how['engine']} runs this model in {made['precision']}, the sidecar says "
                f"{recorded.get('precision')}"
            )
        return engine


def _judged(found: Replay, said: str) -> str:
    """Return what is said, unless something contradicts the record."""
    if problem := found.verdict():
        raise InputError(f"the certificates are not what the model answers: {problem}")
    return said


def _compared(found: Replay) -> str:
    elsewhere = found.rows + found.whole - found.exact
    if not elsewhere:
        return f"as recorded (false alarms: {FALSE_ALARM:g})"
    return (
        f"no contradiction (false alarms: {FALSE_ALARM:g}); {elsewhere} rows were made by another engine, version or "
        "processor, or by a network that draws at random, where votes may differ"
    )


def _record(found: CertificateSet, name: str) -> Mapping[str, Any]:
    value = found.provenance.get(name)
    return value if isinstance(value, Mapping) else {}


def _attempted(read: Any) -> ImageSet | ArquantError:
    try:
        images: ImageSet = read()
        return images
    except ArquantError as error:
        return error


def _rows_of(own: ImageSet, found: CertificateSet) -> ImageSet | None:
    """Return the images of the rows, if by their hash they are in this set, in its order or that of the table."""
    places = {int(index): place for place, index in enumerate(own.indices)}
    known = [places[row.idx] for row in found.certificates if row.idx in places]
    for chosen in (own, own.take(known) if known else own, own.take(np.sort(known)) if known else own):
        if chosen.fingerprint() == found.images_sha256:
            return chosen
    return None


def _selection(own: ImageSet, images: ImageSet) -> str | None:
    """Return how `--images` names these images of a set; None if it cannot."""
    places = {int(index): place for place, index in enumerate(own.indices)}
    chosen = [places[int(index)] for index in images.indices]
    step = chosen[1] - chosen[0] if len(chosen) > 1 else 1
    names = [f"{chosen[0]}-{chosen[-1]}", f"every:{step}", f"most:{len(chosen)}"]
    for name in names:
        try:
            if list(positions_of(name, len(own), name=own.name)) == chosen:
                return name
        except InputError:
            continue
    return None
