"""Figures of certificate sets and their paired comparison, refused where the sets are not comparable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from arquant.base.errors import InputError, MismatchError
from arquant.certificates.bounds import check_alpha, check_probability
from arquant.certificates.certificate import CertificateSet, Settings
from arquant.certificates.resampling import CONFIDENCE, RESAMPLES, Interval, paired_bootstrap

DEFAULT_RADII = tuple(0.25 * step for step in range(9))

_MUST_AGREE = ("sigma", "n", "alpha", "effective_alpha", "certificate", "norm")
_SHOWN = ("noise", "mode", "adaptive", "n0", "seed")
_LISTED = 5


@dataclass(frozen=True)
class Comparison:
    """Second minus first, paired by image, with intervals over images.

    Attributes:
        acr: the difference of ACR.
        certified_accuracy: the difference at each radius.
        images: how many were compared.
        notes: settings that may differ and do (the stopping rule, ...).
        warnings: what could not be checked.
    """

    acr: Interval
    certified_accuracy: dict[float, Interval]
    images: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def compare(
    first: CertificateSet,
    second: CertificateSet,
    *,
    radii: Sequence[float] = DEFAULT_RADII,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two sets on the same images; raises MismatchError, naming every difference, if they are not comparable.

    idx, labels, sigma, n, alpha (as asked for and per image), certificate type and norm must agree, and the hash of the
    images where both know it: ACR at another n or alpha is another quantity. The stopping rule, the kind of noise, the
    mode, n0 and the seed may differ and are noted.
    """
    reasons = mismatches(first, second)
    warnings = [f"settings unknown: the {name} set has no sidecar" for name, each in
                (("first", first), ("second", second)) if each.settings is None]  # fmt: skip
    notes: list[str] = []
    if first.settings is not None and second.settings is not None:
        notes = _differences(first.settings, second.settings, _SHOWN)
    if reasons:
        raise MismatchError("these certificate sets cannot be compared: " + "; ".join(reasons))
    rows = [np.argsort(each.idx) for each in (first, second)]
    values = [
        np.column_stack([each.credited, *(each.certified(r) for r in radii)])[order].astype(np.float64)
        for each, order in zip((first, second), rows, strict=True)
    ]
    found = paired_bootstrap(*values, confidence=confidence, resamples=resamples, seed=seed)
    accuracy = dict(zip(map(float, radii), found[1:], strict=True))
    return Comparison(found[0], accuracy, len(first), tuple(notes), tuple(warnings))


def mismatches(first: CertificateSet, second: CertificateSet) -> list[str]:
    """List the reasons why two sets cannot be compared, as far as their settings are known."""
    reasons = _image_reasons(first, second)
    if first.settings is not None and second.settings is not None:
        reasons += _differences(first.settings, second.settings, _MUST_AGREE)
    return reasons


def on_common_images(first: CertificateSet, second: CertificateSet) -> tuple[CertificateSet, CertificateSet]:
    """Return the certificates of the images, by idx, that both sets have; their hashes, of all images, are left out.

    Raises:
        MismatchError: there are none.
    """
    shared = set(first.idx.tolist()) & set(second.idx.tolist())
    if not shared:
        raise MismatchError("these certificate sets have no image in common")
    one, other = (
        replace(each, certificates=[row for row in each.certificates if row.idx in shared], images_sha256=None)
        for each in (first, second)
    )
    return one, other


def metrics_json(
    first: CertificateSet,
    second: CertificateSet | None = None,
    *,
    radii: Sequence[float] | None = None,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the figures of one set, or of two with their paired difference, as plain data: radii and fractions.

    Keys: acr, acr_low, acr_high, clean_accuracy, clean_accuracy_low, clean_accuracy_high, certified_accuracy {"0.0": ..},
    abstained, images; for two sets also second {the same}, difference {acr, low, high} (second minus first) and notes.
    """
    radii = DEFAULT_RADII if radii is None else radii
    how: dict[str, Any] = {"confidence": confidence, "resamples": resamples, "seed": seed}
    data = _summary(first, radii, how)
    if second is None:
        return data
    found = compare(first, second, radii=radii, **how)
    data["second"] = _summary(second, radii, how)
    data["difference"] = {"acr": found.acr.value, "low": found.acr.low, "high": found.acr.high}
    data["notes"] = [*found.warnings, *found.notes]
    return data


def dataset_accuracy_bound(
    share: float, images: int, alpha: float, *, rho: float = 0.001, method: str = "exact"
) -> float:
    """Return a share of the images: with probability >= 1 - rho over all noise, at least so many are truly certified.

    A certified accuracy `share` over `images` certificates, each false with probability <= alpha, contains some false
    ones. With noise that is independent from image to image their number is at most a Binomial(images, alpha) one:
    "exact" subtracts its (1 - rho)-quantile.

    "cohen" is the formula of Cohen's published code, for comparison with his tables: share - alpha
    - sqrt(alpha (1 - alpha) ln(1/rho) / N) - ln(1/rho) / (3 N). It is no bound in general: Bernstein's inequality has a
    2 under the root, and at N = 10,000, alpha = rho = 0.001 the formula allows 20 false certificates, which are
    exceeded with probability 0.0016. Neither holds if images share their noise.
    """
    check_probability("share", share)
    check_alpha(alpha)
    check_alpha(rho)
    if images < 1:
        raise InputError(f"images must be at least 1, got {images}")
    if method == "exact":
        exceeded = special.betainc(np.arange(1, images + 1), np.arange(images, 0, -1), alpha)  # P(more than 0, 1, ...)
        false = float(np.count_nonzero(exceeded > rho)) / images
    elif method == "cohen":
        log = np.log(1 / rho)
        false = alpha + float(np.sqrt(alpha * (1 - alpha) * log / images)) + float(log) / (3 * images)
    else:
        raise InputError(f"method must be exact or cohen, got {method!r}")
    return max(share - false, 0.0)


def _summary(certificates: CertificateSet, radii: Sequence[float], how: Mapping[str, Any]) -> dict[str, Any]:
    acr, clean = certificates.bootstrap(**how), certificates.bootstrap(0.0, **how)
    return {
        "acr": acr.value,
        "acr_low": acr.low,
        "acr_high": acr.high,
        "clean_accuracy": clean.value,
        "clean_accuracy_low": clean.low,
        "clean_accuracy_high": clean.high,
        "certified_accuracy": {str(float(r)): certificates.certified_accuracy(r) for r in radii},
        "abstained": certificates.abstained,
        "images": len(certificates),
    }


def _image_reasons(first: CertificateSet, second: CertificateSet) -> list[str]:
    reasons = []
    for name, here, there in (("first", first, second), ("second", second, first)):
        missing = np.setdiff1d(here.idx, there.idx)
        if missing.size:
            reasons.append(f"idx: {missing.size} only in the {name} ({_list(missing)})")
    if reasons and (shared := np.intersect1d(first.idx, second.idx).size):
        return [*reasons, f"--common compares the {shared:,} that both have"]
    if not reasons:
        a, b = np.argsort(first.idx), np.argsort(second.idx)
        differ = first.idx[a][first.labels[a] != second.labels[b]]
        if differ.size:
            reasons.append(f"labels: {differ.size} differ (idx {_list(differ)})")
    if first.images_sha256 and second.images_sha256 and first.images_sha256 != second.images_sha256:
        reasons.append(f"images: sha256 {first.images_sha256[:12]} / {second.images_sha256[:12]}")
    return reasons


def _differences(first: Settings, second: Settings, names: Sequence[str]) -> list[str]:
    pairs = [(name, getattr(first, name), getattr(second, name)) for name in names]
    return [f"{name.replace('effective_alpha', 'alpha per image')} {a} / {b}" for name, a, b in pairs if a != b]


def _list(values: np.ndarray[Any, Any]) -> str:
    shown = ", ".join(str(int(value)) for value in values[:_LISTED])
    return shown + (", ..." if values.size > _LISTED else "")
