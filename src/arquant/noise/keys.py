"""Noise keys: which noise may serve which purpose. Two purposes never share noise."""

import hashlib
import json
import secrets
from dataclasses import dataclass, field

import numpy as np

from arquant.base.errors import InputError

PURPOSES = ("train", "calibrate", "search", "shortlist", "select", "certify", "predict", "check", "probe")
_FROZEN = ("select", "certify")


@dataclass(frozen=True)
class NoiseKey:
    """A Philox key and what it may be used for. Make one with `noise_key`."""

    purpose: str
    words: tuple[int, int] = field(repr=False)
    """least significant word first; secret until what it tests is frozen"""

    @property
    def id(self) -> str:
        """Return a name for the key that does not reveal it."""
        return hashlib.sha256(b"arquant noise key id %d %d" % self.words).hexdigest()[:16]


def noise_key(seed: int, purpose: str, fingerprint: str | None = None) -> NoiseKey:
    """Return the key of `purpose` under `seed`: the first 128 bits of a SHA-256.

    The keys of `select` and `certify` also depend on the fingerprint of the frozen model: they are reproducible, yet no
    candidate of a search was chosen on their noise. Whoever varies weights or seed can still look for a lucky key; fresh
    noise (`arquant check --fresh`) does not repeat its luck. Other purposes take none, so that candidates meet the same noise.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed must be an integer of at least 0, got {seed!r}")
    if purpose not in PURPOSES:
        raise InputError(f"the purpose of noise must be one of {', '.join(PURPOSES)}, got {purpose!r}")
    if purpose in _FROZEN and not fingerprint:
        raise InputError(f"noise to {purpose} with needs the fingerprint of the frozen model, got {fingerprint!r}")
    if purpose not in _FROZEN and fingerprint is not None:
        raise InputError(f"noise for {purpose} does not depend on a model; leave out the fingerprint {fingerprint!r}")
    address = json.dumps(["arquant noise", 1, int(seed), purpose, fingerprint])
    digest = hashlib.sha256(address.encode()).digest()
    return NoiseKey(purpose, (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")))


def fresh_seed() -> int:
    """Return 128 bits from the operating system: a seed that nobody can have prepared an input for."""
    return secrets.randbits(128)
