"""Certifying a candidate by replaying the noise of the float model's cached votes (`incremental_bounds` has the theory).

The guarantees hold for a candidate that was fixed independently of the cached noise. Inside a search they do not: there
the claims only enter scores, and what ships is certified with fresh noise.
"""

from collections.abc import Callable

import numpy as np

from arquant.base.errors import InputError, MismatchError
from arquant.certificates.bounds import IntArray, clopper_pearson_lower, radius_of
from arquant.certificates.incremental_bounds import (
    DEFAULT_GAMMA,
    IncrementalClaim,
    Replay,
    best_of,
    directional,
    irs,
    paired,
)
from arquant.certification.vote_cache import VoteCache, Votes

METHODS = ("rs", "irs", "directional", "paired", "best-of")


def replay_of(cache: VoteCache, votes: Votes, classes: IntArray | None = None) -> Replay:
    """Count how a candidate's votes differ from the cached ones on the same samples, image by image.

    Args:
        cache: the float model's votes.
        votes: the candidate's labels of samples 0 .. n_p - 1 of each image.
        classes: the class that each image is certified for; by default the float model's, as IRS does. With the true
            labels, a candidate that is right where the float model is wrong gets its credit.
    """
    if votes.ndim != 2 or len(votes) != len(cache.votes) or not 0 < votes.shape[1] <= cache.n:
        raise MismatchError(
            f"votes of shape {votes.shape} do not replay cached votes of shape {cache.votes.shape}: the images must be "
            "the same, and their samples no more than the cached ones"
        )
    chosen = cache.selected if classes is None else classes
    original = cache.votes[:, : votes.shape[1]]
    was, now = original == chosen[:, None], votes == chosen[:, None]
    return Replay(
        cached_votes=cache.for_class(chosen),
        cached_n=cache.n,
        n=votes.shape[1],
        disagreements=np.count_nonzero(original != votes, axis=1),
        lost=np.count_nonzero(was & ~now, axis=1),
        gained=np.count_nonzero(~was & now, axis=1),
        votes=np.count_nonzero(now, axis=1),
    )


def incremental_claims(
    cache: VoteCache,
    votes: Votes,
    method: str,
    *,
    sigma: float,
    noise: str = "grid",
    alpha: float = 0.001,
    alpha_zeta: float = 0.001,
    gamma: float = DEFAULT_GAMMA,
    classes: IntArray | None = None,
) -> IncrementalClaim:
    """Return what a method proves of a candidate at the total level alpha + alpha_zeta, image by image.

    Args:
        method: "rs" (the candidate's own votes), "irs" (as published), "directional", "paired" or "best-of".
        gamma: for "irs": from this bound of the cached votes on, the candidate's own votes are used.
        classes: see `replay_of`.
    """
    replay = replay_of(cache, votes, classes)
    total = alpha + alpha_zeta
    claims: dict[str, Callable[[], IncrementalClaim]] = {
        "rs": lambda: _plain(replay, sigma, noise, total),
        "irs": lambda: irs(replay, sigma, alpha=alpha, alpha_zeta=alpha_zeta, gamma=gamma, noise_kind=noise),
        "directional": lambda: directional(replay, sigma, alpha=alpha, alpha_zeta=alpha_zeta, noise_kind=noise),
        "paired": lambda: paired(replay, sigma, alpha=alpha, alpha_zeta=alpha_zeta, noise_kind=noise),
        "best-of": lambda: best_of(replay, sigma, alpha=total, noise_kind=noise),
    }
    if method not in claims:
        raise InputError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    return claims[method]()


def disagreement(cache: VoteCache, votes: Votes) -> float:
    """Return the share of all replayed samples on which the candidate's label differs from the float model's."""
    return float(np.mean(cache.votes[:, : votes.shape[1]] != votes))


def _plain(replay: Replay, sigma: float, noise: str, alpha: float) -> IncrementalClaim:
    p_lower = clopper_pearson_lower(replay.votes, replay.n, alpha)
    nothing = np.full(p_lower.shape, np.nan)
    return IncrementalClaim(p_lower, radius_of(noise, p_lower, sigma), np.full(p_lower.shape, "fresh"), nothing)
