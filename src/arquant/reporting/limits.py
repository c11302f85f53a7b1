"""What limits a result, and what to do next: more votes, longer fine-tuning or more images."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from arquant.certificates.certificate import CertificateSet, Settings
from arquant.certificates.claims import claim
from arquant.certificates.resampling import MINIMUM_IMAGES
from arquant.reporting.model import Entry, Report
from arquant.reporting.result_charts import right_shares

MORE = 10
"""times as many votes"""
MUCH = 0.05
"""a gain of ACR, as a share of it, that is worth the votes"""
SHORT = 50_000
"""images: a fine-tuning that saw fewer is short"""
POWER = (1.96 + 0.84) / 1.96
"""how many times its half interval a difference must be to lie outside of it in four cases of five"""


def limits(report: Report, main: Entry) -> tuple[str, ...]:
    """Return sentences on votes, fine-tuning and images; the one that limits most comes first and says so."""
    found = [
        (worth, text) for worth, text in (_votes(main), _finetuning(report, main), _images(report, main)) if text
    ]  # fmt: skip
    ranked = [text for _, text in sorted(found, key=lambda each: -each[0])]
    return tuple(f"Limits most here: {text}" if place == 0 else f"Next: {text}" for place, text in enumerate(ranked))


def _votes(main: Entry) -> tuple[float, str]:
    found = main.certificates
    settings = None if found is None else found.settings
    if found is None or settings is None or settings.certificate != "one-sided" or found.acr == 0:
        return 0, ""
    more = acr_with_votes(found, settings, MORE * settings.n)
    if more is None:
        return 0, ""
    near = float(np.mean(found.credited >= 0.98 * settings.largest_radius))
    text = (
        f"votes. With n = {MORE * settings.n:,} instead of {settings.n:,} and the same shares of the votes, the ACR would be "
        f"about {more:.2f} instead of {found.acr:.2f}; {near:.0%} of the images are at the largest radius that n = "
        f"{settings.n:,} can prove ({settings.largest_radius:.2f}). (arquant certify RUN --n {MORE * settings.n} --out NEW)"
    )
    return min((more - found.acr) / found.acr / MUCH, 2.0), text


def acr_with_votes(found: CertificateSet, settings: Settings, n: int) -> float | None:
    """Return about what the ACR would be with n votes per image of the same shares; None if these are not recorded."""
    shares = right_shares(found)
    if len(shares) != len(found):
        return None
    seen = np.array([c.n for c in found.certificates])
    careful = (shares * seen + 0.5) / (seen + 1)  # all of few votes are not all of many
    votes = np.floor(careful * n).astype(np.int64)
    return float(claim(votes, n, settings.effective_alpha, settings.sigma, noise_kind=settings.noise).radius.mean())


def _finetuning(report: Report, main: Entry) -> tuple[float, str]:
    recipe = _final_recipe(main)
    seen = (recipe.get("steps") or 0) * (recipe.get("batch") or 0)
    gaps = [d.clean for d in report.differences if d.second == main.name and report.entry(d.first).role == "float"]
    gap = next((gap for gap in gaps if gap is not None), None)
    if not main.layers or not recipe or gap is None:
        return 0, ""
    length = f"{recipe['steps']:,} steps, {seen:,} images" if seen else f"{recipe.get('epochs') or 0:g} epochs"
    short = 0 < seen < SHORT
    side = "below" if gap.value < 0 else "above"
    text = (
        f"fine-tuning. The network was fine-tuned for {length}{', which is short' if short else ''}; on clean images it is "
        f"{100 * abs(gap.value):.1f} points {side} the float network (arquant finetune RUN --epochs 10)."
    )
    return (2.5 if short else 0.8) if gap.value < 0 else 0.1, text


def _final_recipe(main: Entry) -> Mapping[str, Any]:
    options = main.search.facts["identity"].get("options") if main.search is not None else main.config
    recipe = options.get("final_recipe") or options.get("recipe") if isinstance(options, Mapping) else None
    numbers = isinstance(recipe, Mapping) and all(
        isinstance(recipe.get(name) or 0, int | float) for name in ("steps", "batch", "epochs")
    )
    return recipe if numbers and isinstance(recipe, Mapping) else {}


def _images(report: Report, main: Entry) -> tuple[float, str]:
    ties = [d for d in report.differences if d.second == main.name and d.acr is not None and d.verdict == "a tie"]
    ties = [d for d in ties if d.images >= MINIMUM_IMAGES and d.acr is not None and d.acr.value]
    if not ties:
        few = main.certificates is not None and len(main.certificates) < MINIMUM_IMAGES
        return (3.0, f"images. Fewer than {MINIMUM_IMAGES} images give no interval at all.") if few else (0, "")
    tie = min(ties, key=lambda d: -abs(d.acr.value if d.acr is not None else 0))
    if tie.acr is None:
        return 0, ""
    half = (tie.acr.high - tie.acr.low) / 2
    needed = tie.images * (POWER * half / abs(tie.acr.value)) ** 2
    rounded = round(needed, -max(int(math.log10(needed)) - 1, 0))
    return 0.9, (
        f"images. The ACR minus that of {tie.first} is {tie.acr.value:+.3f} ± {half:.3f} on {tie.images:,} images, a tie; "
        f"if the difference is real, about {rounded:,.0f} images would show it in four cases of five."
    )
