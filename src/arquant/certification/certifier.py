"""What a search asks about robustness, of whatever proves it.

A certifier says what it can prove of a network: certificates of the model that ships, and, of every candidate before, an
estimate that costs little. `arquant.certification.smoothing_certifier` is the one that ships. Another is a class with these
methods; `docs/extending.md` has one that needs no noise.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from arquant.base.progress import Report
from arquant.certificates.bounds import FloatArray, IntArray
from arquant.certificates.certificate import CertificateSet
from arquant.certification.vote_cache import VoteCache
from arquant.engines.base import Engine
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier

Samples = NDArray[Any]
"""what was seen of a network, (images, samples): the labels of noisy copies, or one radius per image"""


class Sampler(Protocol):
    """Takes samples of one network."""

    @property
    def kind(self) -> str:
        """Name what computes the answers, for the journal."""

    def sample(
        self, images: ImageSet, purpose: str, first: int, last: int, on_samples: Callable[[int], None]
    ) -> Samples:
        """Return samples `first` to `last` - 1 of every image, those that there are.

        Equal networks, images and purposes give equal samples. A certifier without noise has sample 0 only, and returns no
        column where it is not asked for.

        Args:
            purpose: "search" for samples that are compared with those of `Certifier.reference`, "shortlist" for others.
            on_samples: called with a number of samples whenever some are there.
        """


class Certifier(Protocol):
    """Proves of a network that its class does not change within a radius of an image."""

    @property
    def estimate(self) -> str:
        """Name the reward that estimates the ACR of a candidate: "acr", if samples are not compared one by one."""

    def reference(
        self,
        classifier: Classifier,
        images: ImageSet,
        folder: Path,
        *,
        report: Report,
        first: Callable[[Callable[[], float]], None],
    ) -> VoteCache:
        """Return the samples of the float network, from `folder` if they are there; its `votes` are the samples.

        Args:
            first: called before any sample is taken, with a function that measures the samples per second.
        """

    def sampler(
        self, classifier: Classifier, engine: Callable[[], AbstractContextManager[Engine]]
    ) -> AbstractContextManager[Sampler]:
        """Open a candidate, which does not change meanwhile, for its samples.

        Args:
            engine: opens an engine that votes as the classifier does, for whoever needs one.
        """

    def radii(self, samples: Samples, labels: IntArray) -> FloatArray:
        """Estimate the radius within which each image keeps its label, 0 where it has another class. Nothing is proved."""

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
        """Certify a frozen network, and write table and sidecar into `folder`; the same call goes on after a kill.

        Args:
            examined: how many candidates it was chosen from; None if that is unknown.
        """

    def check(self, folder: Path, fingerprint: str, images: ImageSet) -> None:
        """Raise MismatchError if the certificates in a folder are not those that `certify` makes of this model."""
