"""Randomized smoothing: Cohen's PREDICT and CERTIFY for any classifier, with votes counted across images.

The smoothed classifier g(x) is the class that the base classifier f returns most often for x plus noise. Everything said
here is about g. With `grid` noise, rounding to the pixel grid is the first operation of f, so Cohen's theorem holds as it
stands.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arquant.base.errors import InputError, MismatchError
from arquant.base.processor import Precision
from arquant.certificates.bounds import check_alpha, clopper_pearson_lower, predict_p_value, radius_of, whole_number
from arquant.certificates.certificate import ABSTAIN, Certificate, Settings
from arquant.certification.certify_work import CertifyWork, Started
from arquant.certification.pooled_votes import PooledVotes
from arquant.certification.votes import FixedWork, Labels, Segment, run_votes, segments_of
from arquant.engines.base import Engine, input_kind
from arquant.engines.choice import make_engine
from arquant.engines.guard import Guard, guarded
from arquant.engines.probes import Probes, make_probes
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise, NoiseSource, fresh_seed, noise_key

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Prediction:
    """PREDICT's answer for one image: the class, or ABSTAIN, with the two largest vote counts.

    Attributes:
        label: -1 if unknown.
        seconds: an equal share of the run's time: the votes of all images are computed together.
        radius: with probability >= 1 - alpha over the noise, a second claim beside the class: the smoothed classifier returns
            the class everywhere within it, in the norm of the noise and units of the pixel range. 0 claims nothing.
        class_name, file: what the class and the image are called; empty if unknown.
    """

    idx: int
    label: int
    predict: int
    votes: int
    runner_up_votes: int
    n: int
    p_value: float
    seconds: float
    radius: float = 0.0
    class_name: str = ""
    file: str = ""


class Smoothed:
    """A classifier smoothed with noise of standard deviation `sigma` (in units of the pixel range).

    Args:
        classifier: the base classifier f.
        noise: grid (default), gaussian, uniform or laplace.
        engine: how votes are computed. If it is not given, it is made for the classifier when the first votes are asked
            for, whose number decides whether `auto` measures which engine is fastest. `close` closes it. One that was made
            for another model, or for other weights, is a MismatchError.
        batch: number of noisy images in every batch.
        precision: float32, or bfloat16 for a float network: a faster arithmetic, and the one that is then certified.
        make: makes the engine, as `make_engine` does.
    """

    def __init__(
        self,
        classifier: Classifier,
        sigma: float,
        *,
        noise: str = "grid",
        seed: int = 0,
        engine: Engine | str = "auto",
        batch: int | None = None,
        device: str = "auto",
        threads: int | None = None,
        precision: Precision = "float32",
        make: Callable[..., Engine] = make_engine,
    ) -> None:
        self.noise = Noise(noise, sigma)
        self.classifier = classifier
        self.seed = seed
        self.fingerprint = classifier.fingerprint()
        self._engine = None if isinstance(engine, str) else engine
        if self._engine is not None and self._engine.fingerprint not in (None, self.fingerprint):
            raise MismatchError(
                f"the engine was made for another model than {classifier.name!r}, or for other weights of it: its votes would "
                "be certified in that model's name; make an engine for this one"
            )
        self.votes: PooledVotes | None = None
        """workers that count the votes of certificates in place of the engine"""
        self._make = make
        self._wish = {"kind": engine, "batch": batch, "threads": threads, "device": device, "precision": precision}

    @property
    def engine(self) -> Engine:
        """Return what computes the votes."""
        return self._engine_for(0, None)

    def _engine_for(self, votes: int, probes: Probes | None) -> Engine:
        if self._engine is None:
            wish: dict[str, Any] = self._wish
            self._engine = self._make(
                self.classifier, input_kind=input_kind(self.noise.kind), votes=votes, probes=probes, **wish
            )
        return self._engine

    def guard(self, images: ImageSet, *, votes: int = 0) -> Guard | None:
        """Test whether the engine computes one fixed function of one image, with probes of these images.

        An engine that has passed with this noise is not tested again. `Guard.end` repeats the probes after the votes. None for
        an engine that shows no logits, which is the responsibility of whoever injects it.

        Raises:
            NotOneFunction: it does not, or the network itself is no such function.
        """
        probes = make_probes(images, self.noise, seed=self.seed)
        return guarded(self._engine_for(votes, probes), self.classifier, probes)

    def source(self, purpose: str, *, seed: int | None = None) -> NoiseSource:
        """Return the noise of this classifier for a purpose; `select` and `certify` noise is tied to the frozen weights."""
        fingerprint = self.fingerprint if purpose in ("select", "certify") else None
        key = noise_key(self.seed if seed is None else seed, purpose, fingerprint)
        return NoiseSource(self.noise, key, self.classifier.input_shape)

    def certify(
        self,
        images: ImageSet,
        settings: Settings,
        *,
        on_certificate: Callable[[Certificate], None] | None = None,
        started: Mapping[int, Started] | None = None,
        on_votes: Callable[[int, CertifyWork], None] | None = None,
    ) -> list[Certificate]:
        """Certify each image. For each, with probability at least 1 - alpha over the noise: if a class is returned, it is
        g's class at the image and at every perturbed image within the returned radius. An abstention claims nothing.

        Args:
            images: what to certify; labels are needed for label-directed certificates only.
            settings: sample sizes, alpha, kind of certificate and stopping rule; its sigma and noise must be ours.
            on_certificate: called with each certificate, in the order of the images, as soon as it is known.
            started: votes counted by an earlier run, by dataset index.
            on_votes: called with the number of votes, whenever some of an image are in, and with the work queue.

        Raises:
            NotOneFunction: the network, or the engine, is not one fixed function of one image. This may come after the last
                certificate; then none of them holds.
        """
        if (settings.sigma, settings.noise, settings.seed) != (self.noise.sigma, self.noise.kind, self.seed):
            raise InputError(f"the settings are for another smoothed classifier: {settings}")
        if self.classifier.fingerprint() != self.fingerprint:
            raise InputError(
                "the classifier has changed since it was smoothed, and certificates are for one frozen model: make "
                "another Smoothed of it"
            )
        self._check_images(images)
        for index, state in (started or {}).items():
            if not state.fits(settings, self.classifier.num_classes):
                raise InputError(f"the votes counted earlier for image {index} belong to other settings: {state}")
        certificates: list[Certificate] = []

        def finish(certificate: Certificate) -> None:
            certificates.append(certificate)
            if on_certificate is not None:
                on_certificate(certificate)

        guard = self.guard(images, votes=len(images) * settings.n)
        work = CertifyWork(self.source, images, settings, finish, started or {}, on_votes)
        if self.votes is None:
            run_votes(self.engine, work)
        else:
            self.votes.run(work)
        if guard is not None:
            guard.end()
        return certificates

    def predict(
        self,
        images: ImageSet,
        *,
        n: int = 1000,
        alpha: float = 0.001,
        seed: int | None = None,
        on_votes: Callable[[int], None] | None = None,
    ) -> list[Prediction]:
        """PREDICT. For each image, with probability at least 1 - alpha, the class returned is g's class or ABSTAIN.

        The noise comes from the operating system unless a seed is given: published noise could be attacked.
        """
        check_alpha(alpha)
        n = whole_number("n", n)
        if n < 1 or predict_p_value(n, 0) > alpha:
            enough = int(np.ceil(1 - np.log2(alpha)))
            raise InputError(f"n={n} votes cannot predict anything at alpha={alpha:g}: use n >= {enough}")
        began = time.monotonic()
        counts = self.count(images, n, "predict", seed=fresh_seed() if seed is None else seed, on_votes=on_votes)
        seconds = (time.monotonic() - began) / len(images)
        return [
            _predict(counts[row], n, alpha, self.noise, int(images.indices[row]), int(images.labels[row]), seconds)
            for row in range(len(images))
        ]

    def count(
        self,
        images: ImageSet,
        n: int,
        purpose: str,
        *,
        seed: int | None = None,
        on_votes: Callable[[int], None] | None = None,
    ) -> Counts:
        """Votes of the first `n` samples of each image: an array (images, classes).

        `on_votes` is called with the number of votes whenever some are in.
        """
        self._check_images(images)
        source = self.source(purpose, seed=seed)
        counts = np.zeros((len(images), self.classifier.num_classes), np.int64)

        def segments() -> Iterator[Segment]:
            for row in range(len(images)):
                yield from segments_of(row, images.images[row], int(images.indices[row]), source, 0, n)

        def receive(segment: Segment, labels: Labels) -> None:
            counts[segment.owner] += np.bincount(labels, minlength=counts.shape[1])
            if on_votes is not None:
                on_votes(segment.count)

        guard = self.guard(images, votes=len(images) * n)
        run_votes(self.engine, FixedWork(segments(), receive))
        if guard is not None:
            guard.end()
        return counts

    def close(self) -> None:
        """Free the engine, and the workers if there are any."""
        if self._engine is not None:
            self._engine.close()
        if self.votes is not None:
            self.votes.close()

    def _check_images(self, images: ImageSet) -> None:
        if images.images.shape[1:] != self.classifier.input_shape:
            raise InputError(
                f"images of shape {images.images.shape[1:]} do not fit the model's input {self.classifier.input_shape}"
            )


def _predict(
    counts: Counts, n: int, alpha: float, noise: Noise, idx: int, label: int, seconds: float
) -> Prediction:  # fmt: skip
    """Make an answer of the votes of each class.

    The votes that choose the class also bound its probability, so the bound holds for all classes at once: each at its share
    of alpha.
    """
    top = int(counts.argmax())
    votes = int(counts[top])
    runner_up = int(np.delete(counts, top).max())
    p_value = float(predict_p_value(votes, runner_up))
    if p_value > alpha:
        return Prediction(idx, label, ABSTAIN, votes, runner_up, n, p_value, seconds)
    p_lower = clopper_pearson_lower(votes, n, alpha / len(counts))
    radius = radius_of(noise.kind, p_lower, noise.sigma)
    return Prediction(idx, label, top, votes, runner_up, n, p_value, seconds, radius)
