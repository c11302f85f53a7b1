"""When an image has been voted on enough, and what the votes then prove: the decision behind every certificate."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from arquant.certificates.adaptive import adaptive_decision, level_at
from arquant.certificates.bounds import looks
from arquant.certificates.certificate import Settings
from arquant.certificates.claims import claim


@dataclass(frozen=True)
class Verdict:
    """The claim of the votes at the level that was paid for; a radius of 0.0 is an abstention."""

    stop: str
    p_lower: float
    p_upper: float | None
    radius: float


def next_look(counted: int, settings: Settings) -> int:
    """Return the number of samples at which an image with `counted` votes is judged next."""
    if settings.adaptive is None:
        return settings.n
    times = looks(settings.n)
    return int(times[np.searchsorted(times, counted, side="right")])


def judge(counts: Mapping[int, int], klass: int, counted: int, settings: Settings) -> Verdict | None:
    """Judge the votes for `klass`, which must not depend on them; None if more are needed.

    With probability at least 1 - alpha over all looks together, a positive radius is true: the smoothed classifier returns
    `klass` within it.
    """
    others = max((count for other, count in counts.items() if other != klass), default=0)
    runner_up = others if settings.certificate == "multiclass" else None
    return _judge(counts.get(klass, 0), runner_up, counted, settings)


@functools.lru_cache(maxsize=1 << 14)
def _judge(votes: int, runner_up: int | None, counted: int, settings: Settings) -> Verdict | None:
    stop, alpha = "final", settings.effective_alpha
    if settings.adaptive is not None:
        decision, _ = adaptive_decision(
            votes,
            int(np.searchsorted(looks(settings.n), counted)),
            settings.n,
            alpha,
            tolerance=settings.adaptive.tolerance,
            futility_beta=settings.adaptive.futility_beta,
            runner_up=runner_up,
            noise_kind=settings.noise,
        )
        stop = str(decision[0])
    if stop == "continue":
        return None
    if stop == "futility":
        return Verdict(stop, 0.0, None, 0.0)
    level = level_at(counted, settings.n, alpha, settings.adaptive)
    proved = claim(votes, counted, level, settings.sigma, noise_kind=settings.noise, runner_up=runner_up)
    p_upper = None if proved.p_upper is None else float(proved.p_upper[0])
    return Verdict("fixed" if stop == "final" else stop, float(proved.p_lower[0]), p_upper, float(proved.radius[0]))
