"""Certificates: what was proved for each image, under which settings, and the figures that summarise a set of them.

ACR is MACER's: the mean over *all* images of the certified radius, 0 where the answer is wrong or abstained. Certified
accuracy at r is the share of all images that are right with a radius >= r.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import InputError
from arquant.base.html_snippet import facts_html
from arquant.certificates.adaptive import Adaptive, level_at
from arquant.certificates.bounds import NORMS, FloatArray, IntArray, check_alpha, check_noise, check_sigma, whole_number
from arquant.certificates.claims import claim
from arquant.certificates.resampling import CONFIDENCE, RESAMPLES, Interval, bootstrap_mean, shown
from arquant.certificates.rounding import down

ABSTAIN = -1

Stop = Literal["fixed", "futility", "tolerance"]
MOST_VOTES = 2**53
"""beyond it float64 does not count exactly"""
CertificateType = Literal["one-sided", "multiclass"]
Mode = Literal["select", "label"]


@dataclass(frozen=True)
class Certificate:
    """One image's certificate.

    With probability >= 1 - alpha over the noise: the smoothed classifier returns `predict` at the image and everywhere
    within `radius` of it. An abstention (`predict` = ABSTAIN, radius 0) claims nothing.

    Attributes:
        idx: index in the data set.
        label: the true class, -1 if unknown.
        predict: the certified class or ABSTAIN.
        radius: in units of the pixel range, in the norm of the noise.
        seconds: time spent on the image.
        votes, n: votes for the certified (or tried) class among n; n = 0 in files that do not say.
        p_lower: lower bound of the class's probability; None in files that do not say.
        p_upper: upper bound of every other class's probability; None unless the certificate is multiclass.
        counts: (class, votes) of the n votes, classes without votes left out; empty in files that do not say.
        select_votes, n0: votes for the class among the n0 that selected it; 0, 0 where the label was tried.
        stop: why sampling ended.
    """

    idx: int
    label: int
    predict: int
    radius: float
    seconds: float = 0.0
    votes: int = 0
    n: int = 0
    p_lower: float | None = None
    p_upper: float | None = None
    counts: tuple[tuple[int, int], ...] = ()
    select_votes: int = 0
    n0: int = 0
    stop: str = "fixed"

    def __post_init__(self) -> None:
        if self.predict < ABSTAIN or self.label < -1 or self.idx < 0:
            raise InputError(f"no such image or class: idx {self.idx}, label {self.label}, predict {self.predict}")
        if not (np.isfinite(self.radius) and self.radius >= 0):
            raise InputError(f"idx {self.idx}: a radius must be finite and >= 0, got {self.radius}")
        if self.abstained and self.radius > 0:
            raise InputError(f"idx {self.idx}: an abstention cannot have the radius {self.radius}")
        within = self.votes >= 0 and (self.votes <= self.n or self.n == 0)
        if not within or not 0 <= self.select_votes <= self.n0:
            raise InputError(
                f"idx {self.idx}: {self.votes} of {self.n} and {self.select_votes} of {self.n0} votes cannot be"
            )
        if any(p is not None and not 0 <= p <= 1 for p in (self.p_lower, self.p_upper)):
            raise InputError(f"idx {self.idx}: bounds {self.p_lower}, {self.p_upper} are no probabilities")
        if self.stop not in get_args(Stop):
            raise InputError(f"idx {self.idx}: stop must be one of {', '.join(get_args(Stop))}, got {self.stop!r}")
        if not (np.isfinite(self.seconds) and self.seconds >= 0):
            raise InputError(f"idx {self.idx}: seconds must be >= 0, got {self.seconds}")

    @property
    def abstained(self) -> bool:
        """Tell whether nothing is claimed."""
        return self.predict == ABSTAIN

    @property
    def given_up(self) -> bool:
        """Tell whether an adaptive run stopped because a claim was hopeless; its votes were not turned into a bound."""
        return self.stop == "futility"

    @property
    def correct(self) -> bool:
        """Tell whether a class is claimed and it is the label."""
        return not self.abstained and self.predict == self.label

    def _repr_html_(self) -> str:
        """Return the certificate for a notebook; the radius is rounded down."""
        said = "abstained: nothing is claimed" if self.abstained else f"class {self.predict}"
        rows = [("answer", said), ("label", f"class {self.label}" if self.label >= 0 else "unknown")]
        rows += [] if self.abstained else [("radius", down(self.radius))]
        rows += [("votes", f"{self.votes:,} of {self.n:,}")] if self.n else []
        return facts_html(f"Certificate of image {self.idx}", rows)


@dataclass(frozen=True)
class Settings:
    """The settings that a set of certificates was made with.

    Attributes:
        sigma: standard deviation of the noise per coordinate, in units of the pixel range.
        noise: grid, gaussian, uniform or laplace.
        n0: votes that select the class (unused in mode "label").
        n: votes that bound its probability; the most that an adaptive run may use.
        alpha: as asked for; per image, or for all images together if `family_wise`.
        certificate: "one-sided" (runner-up bounded by 1 - p_lower) or "multiclass" (runner-up bounded on its own).
        mode: "select" (Cohen's CERTIFY) or "label" (bound the label's probability: for evaluation).
        family_wise: number of images that share alpha, or None.
        adaptive: the stopping rule, or None for exactly n votes each.
        seed: of the noise.
    """

    sigma: float
    noise: str = "grid"
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    certificate: str = "one-sided"
    mode: str = "select"
    family_wise: int | None = None
    adaptive: Adaptive | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n0", "n", "seed"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        check_sigma(self.sigma)
        check_noise(self.noise)
        check_alpha(self.alpha)
        object.__setattr__(self, "sigma", float(self.sigma))
        object.__setattr__(self, "alpha", float(self.alpha))
        if self.n < 1 or self.n0 < (self.mode == "select"):
            raise InputError(f"n and n0 must be at least 1, got n={self.n}, n0={self.n0}")
        if max(self.n, self.n0) > MOST_VOTES:
            raise InputError(f"n and n0 must be at most {MOST_VOTES:,}, got n={self.n}, n0={self.n0}")
        if self.certificate not in get_args(CertificateType):
            raise InputError(f"certificate must be one-sided or multiclass, got {self.certificate!r}")
        if self.mode not in get_args(Mode):
            raise InputError(f"mode must be select or label, got {self.mode!r}")
        if self.seed < 0:
            raise InputError(f"seed must be an integer of at least 0, got {self.seed}")
        if self.family_wise is not None and self.family_wise < 1:
            raise InputError(f"family_wise is a number of images >= 1, got {self.family_wise}")
        if self.largest_radius == 0:
            raise InputError(
                f"n={self.n} votes cannot certify anything at alpha={self.effective_alpha:g} per image: "
                f"use n >= {self._smallest_n()}, or a larger alpha"
            )

    @property
    def effective_alpha(self) -> float:
        """Return the probability of a false claim allowed to each image."""
        return self.alpha if self.family_wise is None else self.alpha / self.family_wise

    @property
    def norm(self) -> str:
        """Return the norm in which radii are measured."""
        return NORMS[self.noise]

    @property
    def largest_radius(self) -> float:
        """Return the radius of a unanimous vote: no certificate under these settings can exceed it."""
        return self._unanimous(self.n)

    def _unanimous(self, n: int) -> float:
        level = level_at(n, n, self.effective_alpha, self.adaptive)
        runner_up = 0 if self.certificate == "multiclass" else None
        return float(claim(n, n, level, self.sigma, noise_kind=self.noise, runner_up=runner_up).radius[0])

    def _smallest_n(self) -> int:
        n = max(1, int(-np.log2(self.effective_alpha)))
        while self._unanimous(n) == 0:  # a vote or two more: other looks and a second bound have their share of alpha
            n += 1
        return n


@dataclass(frozen=True)
class CertificateSet:
    """The certificates of a run, or of a file.

    Attributes:
        certificates: one per image, no image twice.
        settings: None for files without a sidecar.
        provenance: whatever the run recorded about itself.
        images_sha256: hash of the certified images, where known.
        warnings: what the reader of the file ignored or could not know.
    """

    certificates: Sequence[Certificate]
    settings: Settings | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    images_sha256: str | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.certificates:
            raise InputError("a certificate set needs at least one certificate")
        values, times = np.unique([c.idx for c in self.certificates], return_counts=True)
        if np.any(times > 1):
            raise InputError(f"image {values[np.argmax(times > 1)]} has more than one certificate")

    def __len__(self) -> int:
        return len(self.certificates)

    @cached_property
    def idx(self) -> IntArray:
        """Return the data set indices, in the order of the certificates."""
        return np.array([c.idx for c in self.certificates], dtype=np.int64)

    @cached_property
    def labels(self) -> IntArray:
        """Return the true classes."""
        return np.array([c.label for c in self.certificates], dtype=np.int64)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Tell for each image whether its label is claimed."""
        return np.array([c.correct for c in self.certificates], dtype=np.bool_)

    @cached_property
    def credited(self) -> FloatArray:
        """Return the radius where the label is claimed, else 0. ACR is the mean of these."""
        return np.array([c.radius if c.correct else 0.0 for c in self.certificates], dtype=np.float64)

    @property
    def acr(self) -> float:
        """Average certified radius (MACER's), in units of the pixel range."""
        return float(self.credited.mean())

    @property
    def abstained(self) -> float:
        """Return the share of images that abstained."""
        return float(np.mean([c.abstained for c in self.certificates]))

    @property
    def clean_accuracy(self) -> float:
        """Return the share of images whose label is claimed, at any radius."""
        return float(self.correct.mean())

    def certified(self, radius: float) -> NDArray[np.bool_]:
        """Tell for each image whether its label is claimed with at least this radius."""
        if not radius >= 0:
            raise InputError(f"a radius must be >= 0, got {radius}")
        return self.correct & (self.credited >= radius)

    def certified_accuracy(self, radius: float) -> float:
        """Return the share of all images that are right with at least this radius."""
        return float(self.certified(radius).mean())

    def bootstrap(
        self,
        radius: float | None = None,
        *,
        confidence: float = CONFIDENCE,
        resamples: int = RESAMPLES,
        seed: int = 0,
    ) -> Interval:
        """Return ACR, or the certified accuracy at a radius, with its interval over images."""
        values = self.credited if radius is None else self.certified(radius)
        return bootstrap_mean(values, confidence=confidence, resamples=resamples, seed=seed)[0]

    def _repr_html_(self) -> str:
        """Return the figures of the set for a notebook."""
        images, s = len(self), self.settings
        abstained = sum(c.abstained for c in self.certificates)
        wrong = images - abstained - int(self.correct.sum())
        radii = [r for r in (0.25, 0.5, 1.0) if s is None or r <= s.largest_radius]
        rows = [
            ("average certified radius (ACR)", shown(self.bootstrap(), images, "{:.3f}")),
            ("right and certified at some radius", shown(self.bootstrap(0.0), images, "{:.1f}", 100) + " %"),
            *((f"right with a radius of at least {r:g}", f"{self.certified_accuracy(r):.1%}") for r in radii),
            ("certified, but the wrong class", f"{wrong:,} images"),
            ("abstained", f"{abstained:,} images"),
            ("settings", "unknown" if s is None else f"σ = {s.sigma:g}, {s.noise} noise, n = {s.n:,}, α = {s.alpha:g}"),
        ]
        return facts_html(f"Certificates of {images:,} images", rows)
