"""From options to the settings of certificates."""

from arquant.base.errors import InputError
from arquant.certificates.adaptive import DEFAULT_TOLERANCE, Adaptive
from arquant.certificates.certificate import Settings
from arquant.noise.source import Noise


def settings_of(
    images: int, *, sigma: float, noise: str, n0: int, n: int, alpha: float, label_directed: bool, multiclass: bool,
    family_wise: bool, adaptive: bool, tolerance: float | None, seed: int,
) -> Settings:  # fmt: skip
    """Return the settings of the certificates of so many images; refuse options that no certificate can have."""
    if tolerance is not None and not adaptive:
        raise InputError(f"--tolerance {tolerance} belongs to --adaptive")
    settings = Settings(
        sigma=sigma, noise=noise, n0=n0, n=n, alpha=alpha, certificate="multiclass" if multiclass else "one-sided",
        mode="label" if label_directed else "select", family_wise=images if family_wise else None, seed=seed,
        adaptive=Adaptive(tolerance=DEFAULT_TOLERANCE if tolerance is None else tolerance) if adaptive else None,
    )  # fmt: skip
    Noise(noise, sigma)  # not every noise can have every sigma
    return settings
