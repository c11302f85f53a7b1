"""Fewer samples at equal soundness: stop when a claim is hopeless, or when more samples would hardly enlarge it.

Both rules look only at the sample counts `looks(n)`: 64, 128, 256, ... below n, then n.

* **Futility** (free). An image whose class is below 1/2 with confidence 1 - futility_beta is abandoned: it abstains.
  Stopping removes claims and adds none, so no alpha is spent; a true certificate is lost with probability at most
  futility_beta per look.
* **Tolerance** (paid for). Every look j may claim, at its share alpha_j of alpha (`look_alphas`), so by the union bound
  any stopping rule is sound. We stop when the certified radius is positive and the radius that n samples would be
  expected to prove exceeds it by at most tolerance * sigma. A vote that proves nothing yet goes on, because stopping
  there loses certified accuracy at small radii (2.3 % of all images at tolerance 0.02).

How the weights and the tolerance were chosen: Bernoulli replay of 10,000 images whose probabilities follow the
published certified-accuracy curve of ResNet-20 at sigma 0.5 (p = Phi(R / sigma), 67 % of the images), 18 % with a wrong
top class and 15 % without a class above 1/2; alpha = 0.001. Samples saved and ACR lost against the fixed n:

    n = 100,000   futility alone 1.16x, 0.0000 · tolerance 0.01: 1.57x, 0.0021 · **0.02: 2.32x, 0.0046** · 0.03: 3.11x,
                  0.0074 · 0.05: 4.51x, 0.0129; certified accuracy at radius 0 falls by 0.0001
    0.02 at other n: 10,000 1.31x, 0.0048 · 50,000 1.95x, 0.0047 · 1,000,000 5.68x, 0.0050
    0.02 for P(label) instead of P(top class): 2.73x, 0.0046 (futility alone 1.47x)
    0.02 on the curves of ResNet-110: 2.32x, 0.0045; of MACER's ResNet-20: 2.05x, 0.0044

Halving the share of alpha from each look to the one before lies on the frontier: other decay rates (0.3 to 1), larger
shares for the last look (0.7 to 0.9), tolerances that shrink with the samples left and estimates shrunk away from 1
were no better at equal loss.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arquant.base.errors import InputError
from arquant.certificates.bounds import check_alpha, clopper_pearson_lower, clopper_pearson_upper, look_alphas, looks
from arquant.certificates.claims import claim

Decision = Literal["continue", "futility", "tolerance", "final"]

DEFAULT_TOLERANCE = 0.02
DEFAULT_FUTILITY_BETA = 1e-4


@dataclass(frozen=True)
class Adaptive:
    """The stopping rule of a run.

    Attributes:
        tolerance: how much radius, in units of sigma, may be given up by stopping; None stops for futility only, and
            all of alpha is then kept for the last look.
        futility_beta: the chance, per look, of abandoning an image that could have been certified.
    """

    tolerance: float | None = DEFAULT_TOLERANCE
    futility_beta: float = DEFAULT_FUTILITY_BETA

    def __post_init__(self) -> None:
        if self.tolerance is not None and not (np.isfinite(self.tolerance) and self.tolerance >= 0):
            raise InputError(f"tolerance must be None or a number >= 0 in units of sigma, got {self.tolerance}")
        if not 0 < self.futility_beta < 1:
            raise InputError(f"futility_beta must lie strictly between 0 and 1, got {self.futility_beta}")


def level_at(n_used: int, n: int, alpha: float, rule: Adaptive | None) -> float:
    """Return the level at which a claim from n_used of n samples may be made, so that all claims together cost alpha.

    Without a tolerance stop only the full n may claim, at alpha itself. Raises InputError where no claim may be made.
    """
    check_alpha(alpha)
    if rule is None or rule.tolerance is None:
        if n_used != n:
            raise InputError(f"a claim from {n_used} of {n} samples needs a tolerance stop; none was set for this run")
        return alpha
    at = np.flatnonzero(looks(n) == n_used)
    if len(at) == 0:
        raise InputError(f"{n_used} samples is no look of n={n}; looks are {', '.join(map(str, looks(n)))}")
    return float(look_alphas(alpha, n)[at[0]])


def adaptive_decision(
    k: ArrayLike,
    look_index: int,
    n: int,
    alpha: float,
    *,
    tolerance: float | None = DEFAULT_TOLERANCE,
    futility_beta: float = DEFAULT_FUTILITY_BETA,
    runner_up: ArrayLike | None = None,
    noise_kind: str = "grid",
) -> tuple[NDArray[np.str_], float]:
    """Decide what to do with each image at a look, and return the level at which a claim may be made there.

    Args:
        k: votes for the class at this look, one per image.
        look_index: which of `looks(n)` this is.
        n: the full number of samples.
        alpha: per image, for all looks together.
        tolerance, futility_beta: see `Adaptive`.
        runner_up: largest count of another class, for the two-sided certificate.
        noise_kind: which radius is meant.

    Returns:
        One of "continue", "futility" (abstain now), "tolerance" (claim now) or "final" (the last look: claim what the
        votes prove) per image; and the level of claims at this look (of no use with "continue" or "futility").
    """
    rule = Adaptive(tolerance, futility_beta)
    times = looks(n)
    if not 0 <= look_index < len(times):
        raise InputError(f"n={n} has {len(times)} looks, there is no look {look_index}")
    seen, votes = int(times[look_index]), np.atleast_1d(np.asarray(k))
    others = None if runner_up is None else np.atleast_1d(np.asarray(runner_up))
    stop = np.full(votes.shape, "continue", dtype=f"<U{max(map(len, get_args(Decision)))}")
    if look_index == len(times) - 1:
        stop[:] = "final"
        return stop, level_at(seen, n, alpha, rule)
    level = alpha if tolerance is None else level_at(seen, n, alpha, rule)
    if tolerance is not None:
        # "then" extrapolates the present shares of votes to n samples, rounded against the claim, and pays the last look's
        # level. It is a forecast, so it may be wrong without making a claim false: every look's claim is paid for.
        last = level_at(n, n, alpha, rule)
        now = claim(votes, seen, level, 1.0, noise_kind=noise_kind, runner_up=others).radius
        then_others = None if others is None else np.ceil(others * (n / seen))
        then = claim(np.floor(votes * (n / seen)), n, last, 1.0, noise_kind=noise_kind, runner_up=then_others).radius
        # A vote that proves nothing yet goes on: stopping there would lose certified accuracy at small radii.
        stop[(now > 0) & (then - now <= tolerance)] = "tolerance"
    # Futility comes last and wins. It only removes claims, so its level futility_beta is not paid out of alpha.
    rival = 0.5 if others is None else clopper_pearson_lower(others, seen, futility_beta)
    stop[clopper_pearson_upper(votes, seen, futility_beta) < rival] = "futility"
    return stop, level
