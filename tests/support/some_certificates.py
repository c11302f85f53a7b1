"""Certificates for tests, made the way a run makes them."""

import numpy as np

from arquant.certificates.adaptive import level_at
from arquant.certificates.certificate import ABSTAIN, Certificate, CertificateSet, Settings
from arquant.certificates.claims import claim

SETTINGS = Settings(0.5, n=1000, alpha=0.001)


def certificate(votes, settings=SETTINGS, *, idx=0, label=0, klass=0, others=(), n=None, stop="fixed"):
    """The certificate for `votes` of n votes for `klass`; the rest goes to `others` and then to one more class."""
    n = settings.n if n is None else n
    counts = {klass: votes, **dict(others)}
    counts[klass + 7] = n - sum(counts.values())
    level = level_at(n, settings.n, settings.effective_alpha, settings.adaptive)
    rivals = [v for c, v in counts.items() if c != klass]
    runner_up = max(rivals) if settings.certificate == "multiclass" else None
    found = claim(votes, n, level, settings.sigma, noise_kind=settings.noise, runner_up=runner_up)
    radius = float(found.radius[0])
    return Certificate(
        idx=idx,
        label=label,
        predict=klass if radius > 0 else ABSTAIN,
        radius=radius,
        seconds=1.25,
        votes=votes,
        n=n,
        p_lower=float(found.p_lower[0]),
        p_upper=None if found.p_upper is None else float(found.p_upper[0]),
        counts=tuple(sorted((c, v) for c, v in counts.items() if v)),
        select_votes=90,
        n0=100,
        stop=stop,
    )


def certificate_set(images=40, settings=SETTINGS, *, seed=0, better=0.0):
    """A set in which some images are right, some wrong and some abstain; idx 0, 20, 40, ..."""
    rng = np.random.default_rng(seed)
    chances = np.clip(rng.uniform(0.4, 1.0, images) + better, 0, 1)
    rows = [
        certificate(int(rng.binomial(settings.n, p)), settings, idx=20 * i, label=i % 4, klass=i % 4 + (i % 5 == 0))
        for i, p in enumerate(chances)
    ]
    return CertificateSet(rows, settings, {"model": "toy"})
