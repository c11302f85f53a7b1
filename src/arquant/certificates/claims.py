"""From votes to a claim: the bounds they prove at a level, and the radius that follows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from arquant.base.errors import InputError
from arquant.certificates.bounds import (
    NORMS,
    FloatArray,
    check_noise,
    clopper_pearson_lower,
    clopper_pearson_upper,
    radius_of,
    two_sided_radius,
)


class Claim(NamedTuple):
    """The bounds and radius that votes prove, one entry per image; a radius of 0.0 is no claim.

    `p_lower` bounds the probability of the class from below; `p_upper` bounds every other class from above and is None
    for the one-sided certificate, where 1 - p_lower takes its place.
    """

    p_lower: FloatArray
    p_upper: FloatArray | None
    radius: FloatArray


def claim(
    votes: ArrayLike,
    n: ArrayLike,
    alpha: ArrayLike,
    sigma: float,
    *,
    noise_kind: str = "grid",
    runner_up: ArrayLike | None = None,
) -> Claim:
    """Turn votes into claims, each true with probability >= 1 - alpha: the smoothed class is the same within the radius.

    Args:
        votes: votes for one class per image, fixed before these n votes were drawn.
        n: votes drawn, independent of each other and of whatever chose the class.
        alpha: the level of this claim, in (0, 1).
        sigma: standard deviation of the noise per coordinate, in units of the pixel range.
        noise_kind: grid, gaussian, uniform or laplace; the radius is in the norm `NORMS[noise_kind]`.
        runner_up: the largest count among the other classes. If given, the two-sided certificate is used: half of
            alpha bounds the class from below, half bounds the runner-up from above. The true runner-up is one fixed
            class whose count is at most `runner_up`, so no correction for the number of classes is needed.
    """
    check_noise(noise_kind)
    if runner_up is None:
        p_lower = clopper_pearson_lower(np.atleast_1d(votes), n, alpha)
        return Claim(p_lower, None, radius_of(noise_kind, p_lower, sigma))
    if NORMS[noise_kind] != "l2":
        raise InputError(f"the multiclass certificate needs Gaussian noise (grid or gaussian), got {noise_kind!r}")
    half = np.asarray(alpha, dtype=np.float64) / 2
    p_lower = clopper_pearson_lower(np.atleast_1d(votes), n, half)
    p_upper = clopper_pearson_upper(np.atleast_1d(runner_up), n, half)
    return Claim(p_lower, p_upper, two_sided_radius(p_lower, p_upper, sigma))
