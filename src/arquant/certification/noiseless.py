"""Certifiers that need no noise: one answer per image, which holds for certain."""

import abc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from arquant.base.errors import InputError
from arquant.base.identity import check_same
from arquant.base.progress import Report, Status
from arquant.base.provenance import provenance
from arquant.certificates.bounds import FloatArray, IntArray
from arquant.certificates.certificate import ABSTAIN, Certificate, CertificateSet
from arquant.certificates.files import (
    TSV_NAME,
    CertificateWriter,
    certified_model,
    labels_digest,
    read_certificates,
    write_sidecar,
)
from arquant.certification.certifier import Samples
from arquant.certification.identity import model_record
from arquant.certification.vote_cache import VoteCache
from arquant.engines.base import Engine
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier


class NoiselessCertifier(abc.ABC):
    """Makes a `Certifier` of one method, `proved`. The sample of an image is its radius.

    Attributes:
        name: in journals and sidecars.
    """

    name: str

    @abc.abstractmethod
    def proved(self, classifier: Classifier, images: ImageSet) -> FloatArray:
        """Return for each image a radius within which its label is the network's class; 0 where none is proved.

        Radii are in units of the pixel range, in whatever norm is proved.
        """

    @property
    def estimate(self) -> str:
        """Take the radii as they are: there is nothing to estimate."""
        return "acr"

    @final
    def reference(
        self,
        classifier: Classifier,
        images: ImageSet,
        folder: Path,
        *,
        report: Report,
        first: Callable[[Callable[[], float]], None],
    ) -> VoteCache:
        """Return the radii of the float network; they are computed again rather than stored."""

        def per_second() -> float:
            began = time.monotonic()
            self.proved(classifier, images.take([0]))
            return 1 / max(time.monotonic() - began, 1e-9)

        first(per_second)
        return VoteCache(self._samples(classifier, images), images.labels, images.labels, {})

    @final
    @contextmanager
    def sampler(
        self, classifier: Classifier, engine: Callable[[], AbstractContextManager[Engine]]
    ) -> Iterator["RadiusSampler"]:
        """Look at the network itself, without an engine."""
        yield RadiusSampler(self, classifier)

    @final
    def radii(self, samples: Samples, labels: IntArray) -> FloatArray:
        """Return the samples: they are radii."""
        return samples[:, 0]

    @final
    def certify(
        self,
        classifier: Classifier,
        images: ImageSet,
        folder: Path,
        *,
        examined: int | None,
        report: Report,
        note: Callable[[str], None],
    ) -> CertificateSet:
        """Prove a radius for each image; the sidecar names this certifier, and has no settings of votes."""
        fingerprint = classifier.fingerprint()
        radii = self._samples(classifier, images)[:, 0].tolist()
        with CertificateWriter(folder / TSV_NAME) as table:
            for row in range(len(table.done), len(images)):
                label = int(images.labels[row])
                claimed = label if radii[row] > 0 else ABSTAIN
                table.write(Certificate(int(images.indices[row]), label, claimed, radii[row]))
                report(Status("certify", row + 1, len(images), "images"))
        record = {
            **provenance(),
            "certifier": self.name,
            "model": model_record(classifier, fingerprint),
            "data": {"name": images.name, "images": len(images)},
            "labels_sha256": labels_digest(zip(images.indices.tolist(), images.labels.tolist(), strict=True)),
            "candidates_examined": examined,
        }
        write_sidecar(table.path, None, rows=len(images), images_sha256=images.fingerprint(), provenance=record)
        return read_certificates(folder)

    @final
    def check(self, folder: Path, fingerprint: str, images: ImageSet) -> None:
        """Refuse certificates of another model, of other images or by another certifier."""
        found = read_certificates(folder)
        there = {
            "model": certified_model(found.provenance),
            "images": found.images_sha256,
            "certifier": found.provenance.get("certifier"),
        }
        here = {"model": fingerprint, "images": images.fingerprint(), "certifier": self.name}
        check_same(there, here, f"{folder} holds other certificates than the search's", advice="move it away")

    def _samples(self, classifier: Classifier, images: ImageSet) -> Samples:
        radii = np.asarray(self.proved(classifier, images), dtype=np.float64)
        if radii.shape != (len(images),) or not np.isfinite(radii).all() or (radii < 0).any():
            raise InputError(f"certifier {self.name!r} must give one finite radius >= 0 per image")
        return radii[:, None]


@dataclass(frozen=True, eq=False)
class RadiusSampler:
    """Takes the one sample of each image that there is."""

    certifier: NoiselessCertifier
    classifier: Classifier

    @property
    def kind(self) -> str:
        """Return the name of the certifier."""
        return self.certifier.name

    def sample(
        self, images: ImageSet, purpose: str, first: int, last: int, on_samples: Callable[[int], None]
    ) -> Samples:
        """Return the radii if the first sample is asked for, else no column."""
        if first:
            return np.empty((len(images), 0))
        samples = self.certifier._samples(self.classifier, images)
        on_samples(len(images))
        return samples
