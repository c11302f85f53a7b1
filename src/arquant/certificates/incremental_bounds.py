"""Bound a candidate network's probability from votes on replayed noise and the cached votes of the original.

The original f voted n times on an image; the cached class is A. The candidate f_P is run on the first n_p of the same
noise samples, and its votes are compared with f's. Every bound rests on P(f_P = A) = P(f = A) - P(f = A, f_P != A)
+ P(f != A, f_P = A); they differ in what they bound and how they share the error. Because each combines its bad events
by the union bound, using the same noise for all of them is sound.

Every guarantee here needs (1) A fixed before the n votes were drawn, and (2) f_P fixed independently of the replayed
noise. A candidate that was chosen by looking at scores on this noise violates (2): certify it with fresh noise.

Deviation: the published procedure chooses its branch by the very votes that it bounds, see `irs`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arquant.base.errors import InputError
from arquant.certificates.bounds import (
    FloatArray,
    IntArray,
    check_alpha,
    check_counts,
    check_probability,
    clopper_pearson_lower,
    clopper_pearson_upper,
    radius_of,
)

DEFAULT_GAMMA = 0.99


@dataclass(frozen=True)
class Replay:
    """Counts of a replay, one entry per image (numbers are taken as one image).

    Attributes:
        cached_votes, cached_n: votes of the original for class A among its n.
        n: how many of the original's noise samples were replayed through the candidate.
        disagreements: samples with f_P != f.
        lost: samples with f = A and f_P != A.
        gained: samples with f != A and f_P = A.
        votes: samples with f_P = A.
    """

    cached_votes: ArrayLike
    cached_n: ArrayLike
    n: ArrayLike
    disagreements: ArrayLike
    lost: ArrayLike
    gained: ArrayLike
    votes: ArrayLike

    def __post_init__(self) -> None:
        names = ("cached_votes", "cached_n", "n", "disagreements", "lost", "gained", "votes")
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(getattr(self, name))) for name in names))
        for name, array in zip(names, arrays, strict=True):
            object.__setattr__(self, name, array)
        cached_votes, cached_n, n, disagreements, lost, gained, votes = arrays
        check_counts(cached_votes, cached_n)
        for count in (disagreements, lost, gained, votes):
            check_counts(count, n)
        # how often the original chose A among the replayed samples, and among the others
        replayed = votes + lost - gained
        possible = (lost + gained <= disagreements) & (gained <= votes) & (lost + votes <= n) & (n <= cached_n)
        possible &= (replayed <= cached_votes) & (cached_votes - replayed <= cached_n - n)
        if not np.all(possible):
            at = int(np.argmin(possible))
            raise InputError(f"these counts cannot come from one replay (image {at}): {_describe(names, arrays, at)}")


class IncrementalClaim(NamedTuple):
    """The claim about the candidate, one entry per image; radius 0.0 is an abstention.

    `branch` names the bound that was used: "irs", "directional", "paired" or "fresh" (the candidate's own votes).
    `zeta` is the bound on what the candidate loses against the original, as far as it was used (else nan).
    """

    p_lower: FloatArray
    radius: FloatArray
    branch: NDArray[np.str_]
    zeta: FloatArray


def irs(
    replay: Replay,
    sigma: float,
    *,
    alpha: float = 0.001,
    alpha_zeta: float = 0.001,
    gamma: float = DEFAULT_GAMMA,
    fresh_votes: ArrayLike | None = None,
    noise_kind: str = "grid",
) -> IncrementalClaim:
    """Apply incremental randomized smoothing exactly as published.

    With p_A the Clopper-Pearson lower bound of the cached votes at alpha: where p_A < gamma, the claim is p_A - zeta with
    zeta the upper bound of the disagreement rate at alpha_zeta; elsewhere it is plain smoothing of the candidate's own
    votes at alpha + alpha_zeta.

    Guarantee: with probability >= 1 - (alpha + alpha_zeta) the candidate has P(f_P = A) >= p_lower, *for a branch fixed
    in advance* (gamma = 0 or 1). As published the branch depends on the cached votes, and the union bound then gives
    1 - (alpha + 2 alpha_zeta): if gamma <= P(f = A), a false claim needs a false zeta (alpha_zeta) in the first branch or
    a false plain bound (alpha + alpha_zeta) in the second; if gamma > P(f = A), reaching the second branch already is
    the bad event of p_A. `best_of` has no such gap.

    Args:
        replay: counts per image.
        sigma: standard deviation of the noise.
        alpha, alpha_zeta, gamma: the paper uses 0.001, 0.001 and 0.99 (CIFAR-10) or 0.995 (ImageNet).
        fresh_votes: votes of the candidate for A among `replay.n` fresh samples, as the paper draws them for the second
            branch; None takes the replayed votes, for which the same guarantee holds.
        noise_kind: which radius.
    """
    check_probability("gamma", gamma)
    check_alpha(alpha + alpha_zeta)
    cached = clopper_pearson_lower(replay.cached_votes, replay.cached_n, alpha)
    zeta = clopper_pearson_upper(replay.disagreements, replay.n, alpha_zeta)
    votes = replay.votes if fresh_votes is None else fresh_votes
    fresh = clopper_pearson_lower(votes, replay.n, alpha + alpha_zeta)
    incremental = cached < gamma
    p_lower = np.where(incremental, _minus(cached, zeta), fresh)
    return _claim(
        p_lower, sigma, noise_kind, np.where(incremental, "irs", "fresh"), np.where(incremental, zeta, np.nan)
    )


def directional(
    replay: Replay, sigma: float, *, alpha: float = 0.001, alpha_zeta: float = 0.001, noise_kind: str = "grid"
) -> IncrementalClaim:
    """Bound P(f = A) from below at alpha and subtract an upper bound of P(f = A, f_P != A): only lost votes count.

    Guarantee: with probability >= 1 - (alpha + alpha_zeta), P(f_P = A) >= p_lower. Never smaller than the first branch
    of `irs` at the same levels, since lost votes are some of the disagreements.
    """
    cached = clopper_pearson_lower(replay.cached_votes, replay.cached_n, alpha)
    zeta = clopper_pearson_upper(replay.lost, replay.n, alpha_zeta)
    return _claim(_minus(cached, zeta), sigma, noise_kind, np.full(cached.shape, "directional"), zeta)


def paired(
    replay: Replay, sigma: float, *, alpha: float = 0.001, alpha_zeta: float = 0.001, noise_kind: str = "grid"
) -> IncrementalClaim:
    """Bound as `directional` does and add P(f != A, f_P = A) from below; lost and gained votes share alpha_zeta equally.

    Guarantee: with probability >= 1 - (alpha + alpha_zeta), P(f_P = A) >= p_lower.
    """
    cached = clopper_pearson_lower(replay.cached_votes, replay.cached_n, alpha)
    lost = clopper_pearson_upper(replay.lost, replay.n, alpha_zeta / 2)
    gained = clopper_pearson_lower(replay.gained, replay.n, alpha_zeta / 2)
    zeta = np.nextafter(lost - gained, 2.0)
    return _claim(_minus(cached, zeta), sigma, noise_kind, np.full(cached.shape, "paired"), zeta)


def best_of(replay: Replay, sigma: float, *, alpha: float = 0.002, noise_kind: str = "grid") -> IncrementalClaim:
    """Return the better of plain smoothing on the replayed votes (alpha / 2) and `directional` (alpha / 4 twice).

    Guarantee: with probability >= 1 - alpha, P(f_P = A) >= p_lower, whichever of the two was larger: all three bounds
    hold together. Never much worse than either, and needs no gamma.
    """
    fresh = clopper_pearson_lower(replay.votes, replay.n, alpha / 2)
    lost = directional(replay, sigma, alpha=alpha / 4, alpha_zeta=alpha / 4, noise_kind=noise_kind)
    better = lost.p_lower > fresh
    branch = np.where(better, "directional", "fresh")
    return _claim(np.maximum(fresh, lost.p_lower), sigma, noise_kind, branch, np.where(better, lost.zeta, np.nan))


def _minus(p_lower: FloatArray, zeta: FloatArray) -> FloatArray:
    """Return the difference rounded down, at least 0 and below 1 (a negative zeta could reach 1)."""
    return np.clip(np.nextafter(p_lower - zeta, -2.0), 0.0, np.nextafter(1.0, 0.0))


def _claim(
    p_lower: FloatArray, sigma: float, noise_kind: str, branch: NDArray[np.str_], zeta: FloatArray
) -> IncrementalClaim:
    return IncrementalClaim(p_lower, radius_of(noise_kind, p_lower, sigma), branch, zeta)


def _describe(names: tuple[str, ...], arrays: tuple[IntArray, ...], at: int) -> str:
    return ", ".join(f"{name}={int(array.ravel()[at])}" for name, array in zip(names, arrays, strict=True))
