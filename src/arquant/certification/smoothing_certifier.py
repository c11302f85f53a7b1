"""The certifier by randomized smoothing: samples are votes on noisy copies of an image."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from arquant.base.identity import check_same
from arquant.base.progress import Report
from arquant.certificates.bounds import FloatArray, IntArray, clopper_pearson_lower, radius_of
from arquant.certificates.certificate import CertificateSet, Settings
from arquant.certificates.files import TSV_NAME, certified_model, read_certificates, settings_json
from arquant.certificates.incremental_bounds import DEFAULT_GAMMA
from arquant.certificates.recomputation import check_follows
from arquant.certification.options import CertificateOptions
from arquant.certification.pooled_votes import PooledVotes
from arquant.certification.run import certify
from arquant.certification.settings import settings_of
from arquant.certification.smoothing import Smoothed
from arquant.certification.vote_cache import VOTES, VoteCache, Votes, recorded_engine, reference_votes, sample_votes
from arquant.engines.base import Engine
from arquant.engines.choice import EngineOptions
from arquant.engines.pool import Cluster
from arquant.engines.probes import make_probes
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise, NoiseSource, noise_key


@dataclass(frozen=True)
class Smoothing:
    """Smooths every network that it is asked about with the same noise.

    Attributes:
        sigma, noise: of the smoothed classifier.
        alpha_zeta, gamma: of IRS.
        seed: of the noise.
        reference_n: votes per image of the float model.
        claims: what certificates state. Their alpha is also the level of the bounds in estimates.
        engines: what computes votes.
        cluster: whose workers count the votes of certificates.
    """

    sigma: float
    noise: str = "grid"
    alpha_zeta: float = 0.001
    gamma: float = DEFAULT_GAMMA
    seed: int = 0
    reference_n: int = 1000
    claims: CertificateOptions = field(default_factory=CertificateOptions)
    engines: EngineOptions = field(default_factory=EngineOptions)
    cluster: Cluster | None = None

    @property
    def alpha(self) -> float:
        """Return the level of the bound on a candidate's votes, and on the float model's."""
        return self.claims.alpha

    @property
    def estimate(self) -> str:
        """Estimate ACR with the float model's votes as a control variate."""
        return "acr-cv"

    def settings(self, images: int) -> Settings:
        """Return the settings of the certificates of so many images; refuse options that no certificate can have."""
        return settings_of(images, sigma=self.sigma, noise=self.noise, seed=self.seed, **asdict(self.claims))

    def reference(
        self,
        classifier: Classifier,
        images: ImageSet,
        folder: Path,
        *,
        report: Report,
        first: Callable[[Callable[[], float]], None],
    ) -> VoteCache:
        """Return the float model's votes, by the engine that began them.

        Raises:
            MismatchError: the votes in the folder are of something else.
        """
        probes = make_probes(images, Noise(self.noise, self.sigma), seed=self.seed)
        engine = self.engines.make(
            classifier, self.noise, votes=len(images) * self.reference_n, probes=probes, **(recorded_engine(folder) or {})
        )  # fmt: skip
        smoothed = Smoothed(classifier, self.sigma, noise=self.noise, seed=self.seed, engine=engine)
        try:
            first(engine.images_per_second)
            if self.cluster is not None and not (folder / VOTES).exists():
                smoothed.votes = PooledVotes(self.cluster, classifier, engine, probes)
            return reference_votes(
                smoothed, images, folder, n=self.reference_n, n0=max(self.claims.n0, 1), report=report
            )
        finally:
            smoothed.close()

    @contextmanager
    def sampler(
        self, classifier: Classifier, engine: Callable[[], AbstractContextManager[Engine]]
    ) -> Iterator["VoteSampler"]:
        """Let a candidate vote, by an engine."""
        with engine() as opened:
            yield VoteSampler(self, opened, classifier.num_classes)

    def radii(self, samples: Votes, labels: IntArray) -> FloatArray:
        """Return the radius that the votes for the label would certify, 0 where none."""
        return self.radii_of((samples == labels[:, None]).sum(axis=1), samples.shape[1])

    def radii_of(self, counts: IntArray, n: int) -> FloatArray:
        """Return the radius that so many of n votes would certify."""
        return radius_of(self.noise, clopper_pearson_lower(counts, n, self.alpha), self.sigma)

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
        """Certify by `arquant.certification.run`, with noise that depends on the frozen network."""
        run = certify(
            classifier,
            images,
            self.settings(len(images)),
            out=folder,
            **asdict(self.engines),
            cluster=self.cluster,
            candidates_examined=examined,
            report=report,
            note=note,
        )
        return run.certificates

    def check(self, folder: Path, fingerprint: str, images: ImageSet) -> None:
        """Refuse certificates of another model, of other images or settings, or that do not follow from their votes."""
        found = read_certificates(folder)
        here = {
            "model": fingerprint,
            "images": images.fingerprint(),
            "settings": settings_json(self.settings(len(images))),
        }
        there = {
            "model": certified_model(found.provenance),
            "images": found.images_sha256,
            "settings": None if found.settings is None else settings_json(found.settings),
        }
        check_same(there, here, f"{folder} holds other certificates than the search's", advice="move it away")
        check_follows(found, str(folder / TSV_NAME))


@dataclass(frozen=True, eq=False)
class VoteSampler:
    """Lets one network vote on noisy images."""

    smoothing: Smoothing
    engine: Engine
    classes: int

    @property
    def kind(self) -> str:
        """Return the name of the engine."""
        return str(self.engine.describe()["engine"])

    def sample(self, images: ImageSet, purpose: str, first: int, last: int, on_samples: Callable[[int], None]) -> Votes:
        """Return the labels of noisy copies `first` to `last` - 1 of every image."""
        noise = Noise(self.smoothing.noise, self.smoothing.sigma)
        source = NoiseSource(noise, noise_key(self.smoothing.seed, purpose), images.shape)
        return sample_votes(self.engine, images, source, first, last, num_classes=self.classes, on_votes=on_samples)
