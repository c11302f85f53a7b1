"""The guarantee of a certificate set as sentences with its numbers, and what is not claimed."""

import math
from decimal import ROUND_CEILING, Context, Decimal

from arquant.certificates.certificate import CertificateSet, Settings
from arquant.certificates.metrics import dataset_accuracy_bound
from arquant.certificates.rounding import down
from arquant.reporting.model import NORMS, Entry, Report

RHO = 0.001


def claims(entry: Entry) -> list[str]:
    """Return the claims about an entry, one sentence per item; empty if it has no certificates."""
    if entry.refused:
        return [f"{entry.name}: nothing may be claimed. {entry.refused}, so none of its figures are shown."]
    found = entry.certificates
    if found is None:
        return []
    if found.settings is None:
        return [
            f"{entry.name}: σ, n and α are unknown, since these certificates have no sidecar. Only their author can say "
            "what they guarantee."
        ]
    return [_guarantee(entry, found, found.settings), _together(found, found.settings), _share(found, found.settings)]


def _guarantee(entry: Entry, found: CertificateSet, settings: Settings) -> str:
    claimed = sum(not c.abstained for c in found.certificates)
    wrong = claimed - int(found.correct.sum())
    target = (
        "its label (bounded because the label was known: for evaluation only)"
        if settings.mode == "label"
        else "the class stated"
    )
    limit = math.ceil(1000 * settings.largest_radius) / 1000
    largest = max(c.radius for c in found.certificates)
    return (
        f"{entry.name}: {claimed:,} of {len(found):,} images have a certificate: the smoothed classifier ({entry.described}, "
        f"under {settings.noise} noise of σ = {settings.sigma:g}) returns {target} at the image and at every image within "
        f"{NORMS[settings.norm]} distance R of it. {_stated_wrong(wrong, settings)}For each image tried, the chance of a false "
        f"certificate is at most {_up(settings.effective_alpha, 3)} over the noise drawn. R is given per image, "
        f"{down(largest)} at most; {settings.n:,} votes cannot prove more than {limit:.3f}. Distances are in units of the "
        "pixel range: 1 is black to white in one channel of one pixel."
    )


def _stated_wrong(wrong: int, settings: Settings) -> str:
    return f"For {wrong:,} of them that class is wrong. " if wrong and settings.mode == "select" else ""


def _together(found: CertificateSet, settings: Settings) -> str:
    if settings.family_wise is not None:
        return (
            f"All {settings.family_wise:,} certificates hold together with probability at least "
            f"{_one_minus(settings.alpha)} (α = {settings.alpha:g} is shared: {_up(settings.effective_alpha, 2)} per image)."
        )
    expected = _up(settings.alpha, 3, times=len(found))
    return (
        f"Among {len(found):,} images, each with a chance of up to α = {settings.alpha:g}, up to {expected} false certificates "
        "are to be expected. They are not claimed to hold all at once (--family-wise does that)."
    )


def _share(found: CertificateSet, settings: Settings) -> str:
    radius = settings.sigma / 2
    parts = []
    for r, words in ((0.0, "right"), (radius, f"right with a radius of at least {radius:g}")):
        bound = dataset_accuracy_bound(found.certified_accuracy(r), len(found), settings.effective_alpha, rho=RHO)
        parts.append(f"{down(100 * bound, 1)} % are {words}")
    return (
        f"With probability at least {_one_minus(RHO)} over all noise, at least {parts[0]} and at least {parts[1]}, of "
        f"these {len(found):,} images, false certificates already subtracted."
    )


def not_claimed(report: Report) -> list[str]:
    """List the conclusions that a reader might draw, and must not."""
    items = [
        "That one forward pass of the model is robust. The smoothed classifier is what is certified: many noisy copies "
        "must vote, with the same σ and noise.",
        "Anything about perturbations larger than R or of another kind, such as rotations, crops, patches or weather.",
        "Anything about other images. Intervals in square brackets say how the figures would move had other images "
        "been drawn from the same source; they are no guarantees.",
        "Anything about images that abstained.",
    ]
    engines = sorted({_engine(entry) for entry in report.certified} - {""})
    if engines:
        items.append(
            f"The same for another runtime. The votes were computed by {' and by '.join(engines)}; other kernels or another "
            "precision are another function and may vote differently."
        )
    examined = [f"{s.facts.get('examined', len(s.candidates)):,}" for s in report.searches if s.candidates]
    if examined:
        which, who = ("the search", "It") if len(examined) == 1 else ("the searches", "They")
        items.append(
            f"That {which} proved anything. {who} examined {' and '.join(examined)} candidates by estimates that only rank "
            "them. Certificates use noise that no candidate was chosen on."
        )
    return items


def _engine(entry: Entry) -> str:
    engine = entry.provenance.get("engine")
    if not isinstance(engine, dict):
        return ""
    return f"{engine.get('engine')} {engine.get('precision') or ''}".strip()


def _one_minus(alpha: float) -> str:
    """Return 1 - alpha as a decimal that is not rounded up; 1 - 2e-06 where too many nines would be needed."""
    if alpha < 1e-5:
        return f"1 − {_up(alpha, 2)}"
    text = f"{1 - alpha:.6f}".rstrip("0")
    return text if float(text) <= 1 - alpha + 1e-12 else f"1 − {_up(alpha, 3)}"


def _up(value: float, digits: int, *, times: int = 1) -> str:
    """Return a multiple of a number with so many digits, rounded up."""
    exact = Decimal(repr(value)) * times
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).plus(exact)):.{digits}g}"
