"""Scores: estimates that rank candidates. They prove nothing, and no certificate can be made of one.

A reward gives each search image a value; the score is their mean. A reward of your own is a function, registered:

    @register_reward("cautious")
    def cautious(ballots: Ballots) -> FloatArray:
        return np.minimum(ballots.radii(), 0.5)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.special import ndtri

from arquant.base.errors import InputError, MismatchError
from arquant.certificates.bounds import FloatArray, IntArray, clopper_pearson_lower
from arquant.certification.certifier import Certifier, Samples
from arquant.certification.incremental import incremental_claims
from arquant.certification.smoothing_certifier import Smoothing
from arquant.certification.vote_cache import VoteCache
from arquant.searching.journal_lines import Estimate

Z95 = 1.959963984540054


@dataclass(frozen=True, eq=False)
class Ballots:
    """A candidate's votes on the search images, with those of the float model; or what another certifier saw of both.

    Attributes:
        votes: samples 0 .. n - 1 of each image; in smoothing, labels.
        reference: the float model's votes.
        certifier: what samples mean.
        replayed: whether both saw the same noise; only then may votes be compared sample by sample.
    """

    votes: Samples = field(repr=False)
    reference: VoteCache = field(repr=False)
    certifier: Certifier
    replayed: bool = True

    def __post_init__(self) -> None:
        if self.votes.ndim != 2 or len(self.votes) != len(self.reference.votes) or not self.votes.size:
            raise MismatchError(f"votes of shape {self.votes.shape} for {len(self.reference.votes)} images")

    @property
    def n(self) -> int:
        """Return the number of samples per image."""
        return int(self.votes.shape[1])

    @property
    def labels(self) -> IntArray:
        """Return the true classes."""
        return self.reference.labels

    @property
    def smoothing(self) -> Smoothing:
        """Return the constants of smoothing; refuse a certifier that counts no votes."""
        if not isinstance(self.certifier, Smoothing):
            raise InputError(
                f"this reward is made of votes on noisy images, and {type(self.certifier).__name__} counts none; use "
                "the reward acr, acc, acc@RADIUS or acr+acc"
            )
        return self.certifier

    @cached_property
    def right(self) -> IntArray:
        """Count the votes of each image for its label."""
        _ = self.smoothing  # that it may refuse
        counts: IntArray = (self.votes == self.labels[:, None]).sum(axis=1, dtype=np.int64)
        return counts

    def radii(self) -> FloatArray:
        """Return the radius that the samples would certify for the label, 0 where none: what ACR averages."""
        return self.certifier.radii(self.votes, self.labels)

    def reference_radii(self) -> FloatArray:
        """Return the same of the float model, from all its votes."""
        return self.certifier.radii(self.reference.votes, self.labels)


@dataclass(frozen=True, eq=False)
class Score:
    """An estimate, for ranking only: no coverage is claimed for it.

    Attributes:
        reward: what was estimated.
        value: the mean of `per_image`.
        standard_error: of the mean over images; it covers the choice of images and the noise of their votes. Two
            candidates share both, so their difference is known far better: see `difference`.
        n: votes per image.
    """

    reward: str
    value: float
    standard_error: float
    n: int
    per_image: FloatArray = field(repr=False)

    @classmethod
    def of(cls, reward: str, per_image: FloatArray, n: int) -> "Score":
        """Return the score with these values; raise InputError if one of them is not finite."""
        if per_image.ndim != 1 or not per_image.size or not np.isfinite(per_image).all():
            raise InputError(f"reward {reward!r} must give one finite number per image")
        return cls(reward, float(per_image.mean()), standard_error(per_image), n, per_image)

    def estimate(self) -> Estimate:
        """Return what a file says of the score, with an approximate 95 % interval over images."""
        margin = Z95 * self.standard_error
        return Estimate(
            estimate=self.reward, value=self.value, standard_error=self.standard_error, low=self.value - margin,
            high=self.value + margin, images=len(self.per_image), n=self.n,
        )  # fmt: skip


def standard_error(values: FloatArray) -> float:
    """Return the standard error of the mean of independent values; 0 for a single one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def difference(first: Score, second: Score) -> tuple[float, float]:
    """Return second minus first, paired by image, with its standard error over images."""
    if (first.reward, first.n, len(first.per_image)) != (second.reward, second.n, len(second.per_image)):
        raise MismatchError(
            f"scores of different kinds cannot be compared: {first.reward} of {len(first.per_image)} images x {first.n} "
            f"votes, {second.reward} of {len(second.per_image)} x {second.n}"
        )
    gap = second.per_image - first.per_image
    return float(gap.mean()), standard_error(gap)


RewardFunction = Callable[[Ballots], FloatArray]


@dataclass(frozen=True)
class Reward:
    """A named reward.

    Attributes:
        replays: it compares votes sample by sample, on the cached noise only.
        proves: it is made of proved radii, which too few votes cannot prove: it is then the same for every candidate.
        gaussian: it is defined for Gaussian noise only.
    """

    name: str
    function: RewardFunction
    replays: bool = False
    proves: bool = False
    gaussian: bool = False

    @property
    def on_fresh_noise(self) -> "Reward":
        """Return the reward for noise on which the float model has not voted: `acr` in place of one that replays votes."""
        return find_reward("acr") if self.replays else self

    def check(self, smoothing: Smoothing, n: int, *, cached: int | None = None, option: str = "--search-n") -> None:
        """Refuse a reward that is undefined for this noise, or that tells no candidates apart.

        Args:
            n: votes per image of a candidate.
            cached: of the float model, beside which they are scored; by default as many.
            option: what sets them.
        """
        if self.gaussian and smoothing.noise not in ("grid", "gaussian"):
            raise InputError(f"reward {self.name!r} is defined for Gaussian noise, not for {smoothing.noise!r}")
        if not self.proves:
            return
        best, worst = (self.score(_one_image(smoothing, n, cached or n, right)).value for right in (True, False))
        if best == worst:
            beside = f" beside {cached} of the float model" if cached else ""
            raise InputError(
                f"reward {self.name!r} would be the same for every candidate: {n} votes per image{beside} prove too little, "
                f"even if all are right (sigma {smoothing.sigma:g}, alpha {smoothing.alpha:g}); use a larger {option}, or "
                "another reward"
            )

    def score(self, ballots: Ballots) -> Score:
        """Return the score of a candidate."""
        if self.replays and not ballots.replayed:
            raise InputError(f"reward {self.name!r} needs votes on the cached noise")
        return Score.of(self.name, np.asarray(self.function(ballots), dtype=np.float64), ballots.n)


def _one_image(smoothing: Smoothing, n: int, cached: int, right: bool) -> Ballots:
    """Return votes that are all right, or all wrong, where those of the float model are all right."""
    label = np.zeros(1, np.int64)
    votes = np.full((1, n), 0 if right else 1, np.uint8)
    return Ballots(votes, VoteCache(np.zeros((1, max(n, cached)), np.uint8), label, label, {}), smoothing)


_registry: dict[str, Reward] = {}


def register_reward(
    name: str, *, replays: bool = False, proves: bool = False, gaussian: bool = False
) -> Callable[[RewardFunction], RewardFunction]:
    """Make a reward known under `name` (a decorator); a name that another function has is an InputError."""

    def add(function: RewardFunction) -> RewardFunction:
        known = _registry.get(name)
        if known is not None and known.function.__qualname__ != function.__qualname__:
            raise InputError(f"reward {name!r} is already registered by {known.function.__module__}")
        _registry[name] = Reward(name, function, replays, proves, gaussian)
        return function

    return add


def find_reward(name: str) -> Reward:
    """Return the reward registered under `name`, or `acc@RADIUS`; an unknown one is an InputError that lists close ones."""
    if name.startswith("acc@"):
        radius = _radius_in(name)
        return Reward(name, partial(_accuracy_at, radius), proves=True)
    if name not in _registry:
        known = [*_registry, "acc@RADIUS"]
        close = get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else f"known are {', '.join(known)}"
        raise InputError(f"unknown reward {name!r}; {hint}")
    return _registry[name]


@register_reward("acr", proves=True)
def acr(ballots: Ballots) -> FloatArray:
    """Give each image the radius of its label at level alpha, 0 where nothing is proved: ACR at n votes."""
    return ballots.radii()


@register_reward("acr-signed", gaussian=True)
def acr_signed(ballots: Ballots) -> FloatArray:
    """Give the paper's boxed objective: sigma Phi^-1 of the label's bound, also below 1/2; the bound is floored at 1/(n+2)."""
    bound = clopper_pearson_lower(ballots.right, ballots.n, ballots.smoothing.alpha)
    return np.asarray(ballots.smoothing.sigma * ndtri(np.maximum(bound, 1 / (ballots.n + 2))), dtype=np.float64)


@register_reward("val")
def val(ballots: Ballots) -> FloatArray:
    """Give the share of right votes: the base classifier's accuracy on noisy images (HAQ takes one noisy copy each)."""
    return ballots.right / ballots.n


@register_reward("acc", proves=True)
def acc(ballots: Ballots) -> FloatArray:
    """Give 1 where the label is proved at any radius: the smoothed classifier's clean accuracy."""
    return (ballots.radii() > 0).astype(np.float64)


def _radius_in(name: str) -> float:
    try:
        radius = float(name.removeprefix("acc@"))
    except ValueError:
        radius = -1.0
    if not 0 <= radius < np.inf:
        raise InputError(f"the certified accuracy at a radius is written acc@0.5, got {name!r}")
    return radius


def _accuracy_at(radius: float, ballots: Ballots) -> FloatArray:
    radii = ballots.radii()
    return ((radii > 0) & (radii >= radius)).astype(np.float64)


@register_reward("acr+acc", proves=True)
def acr_and_acc(ballots: Ballots) -> FloatArray:
    """Give ACR / ACR_orig + Acc / Acc_orig; the paper states no weights, these make both terms 1 for equal networks."""
    radii, reference = ballots.radii(), ballots.reference_radii()
    if not reference.any():
        raise InputError(
            f"reward acr+acc is undefined: {ballots.reference.n} votes per image of the float model certify none of the search "
            "images; use a larger --reference-n, or another reward"
        )
    values: FloatArray = radii / reference.mean() + (radii > 0) / (reference > 0).mean()
    return values


@register_reward("irs", replays=True, proves=True)
def irs(ballots: Ballots) -> FloatArray:
    """Give the paper's reward ACR_P - ACR_orig, with IRS as published: the certified class is the float model's."""
    cache, smoothing = ballots.reference, ballots.smoothing
    claims = incremental_claims(
        cache,
        ballots.votes,
        "irs",
        sigma=smoothing.sigma,
        noise=smoothing.noise,
        alpha=smoothing.alpha,
        alpha_zeta=smoothing.alpha_zeta,
        gamma=smoothing.gamma,
    )
    original = smoothing.radii(cache.votes, cache.selected)
    gained: FloatArray = (claims.radius - original) * (cache.selected == cache.labels)
    return gained


@register_reward("acr-cv", replays=True, proves=True)
def acr_cv(ballots: Ballots) -> FloatArray:
    """Estimate the ACR that as many votes as the cache holds would certify, from far fewer: see `label_share`.

    It reads somewhat high, the more so the fewer votes: the radius rises ever faster with the share, so an error of the share
    upwards counts for more than one downwards. All candidates of a search have equally many votes, so their order is hardly
    touched.
    """
    count, smoothing = ballots.reference.n, ballots.smoothing
    wanted = label_share(ballots) * count
    table = smoothing.radii_of(np.arange(count + 1), count)
    return np.interp(wanted, np.arange(count + 1), table)


def label_share(ballots: Ballots) -> FloatArray:
    """Estimate the probability that the candidate votes for the label, with the float model's vote as a control variate.

    On the n replayed samples we see how often the candidate is right where the float model is right, and where it is
    wrong; all cached votes tell how often the float model is right. Weighting the two conditional rates by those shares
    is the control-variate estimate with the optimal coefficient cov/var (both votes are binary) and unbiased as long as
    both cases occur among the n samples; a case that does not gets the rate of all images together.
    """
    known = ballots.reference.votes[:, : ballots.n] == ballots.labels[:, None]
    right = ballots.votes == ballots.labels[:, None]
    share = ballots.reference.for_class(ballots.labels) / ballots.reference.n
    return _rate(right & known, known) * share + _rate(right & ~known, ~known) * (1 - share)


def _rate(hits: Any, cases: Any) -> FloatArray:
    """Return hits per case, image by image; where there is no case, over all images."""
    hit, case = hits.sum(axis=1), cases.sum(axis=1)
    everywhere = hit.sum() / case.sum() if case.any() else 0.0
    return np.where(case > 0, hit / np.maximum(case, 1), everywhere).astype(np.float64)
