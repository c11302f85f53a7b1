"""`arquant metrics`: what certificate files say, one or two of them."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import read_certificates, settings_json
from arquant.certificates.metrics import metrics_json
from arquant.certificates.recomputation import check_where_known
from arquant.certificates.resampling import Interval, shown, verdict

log = logging.getLogger("arquant")


def metrics(
    file: str | Path,
    second: str | Path | None = None,
    *,
    radii: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """The figures of a certificate file, or of two with their paired difference (second minus first).

    Keys are those of `metrics_json`, and `settings`: what the certificates were made with, None where there is no sidecar.
    What had to be ignored in a file, or could not be known, is logged as a warning.
    """
    first, other = _read(file), None if second is None else _read(second)
    summary = metrics_json(first, other, radii=radii, confidence=confidence)
    summary["settings"] = _settings(first)
    if other is not None:
        summary["second"]["settings"] = _settings(other)
    return summary


def _read(file: str | Path) -> CertificateSet:
    """A file whose figures may be told: where its settings are known, they are derived again from the votes."""
    found = read_certificates(file)
    for warning in found.warnings:
        log.warning("%s", warning)
    check_where_known(found, str(file))
    return found


def _settings(found: CertificateSet) -> dict[str, Any] | None:
    return None if found.settings is None else settings_json(found.settings)


def metrics_lines(summary: dict[str, Any]) -> list[str]:
    """The figures as lines of text."""
    lines = []
    if (settings := summary["settings"]) is not None:
        alpha = f"{settings['alpha']:g}" + (
            f" for all {settings['family_wise']:,} images" if settings["family_wise"] else ""
        )
        label = " of the label, for evaluation only" if settings["mode"] == "label" else ""
        lines.append(
            f"sigma {settings['sigma']:g}, {settings['noise']} noise, n {settings['n']:,}, alpha {alpha}, "
            f"{settings['certificate']}{label}, {settings['norm']} radii in units of the pixel range"
        )
    lines += _table([("", summary)] if "second" not in summary else [("first", summary), ("second", summary["second"])])
    if "difference" in summary:
        gap, images = Interval(*(summary["difference"][name] for name in ("acr", "low", "high"))), summary["images"]
        lines.append(
            f"second - first: ACR {shown(gap, images, '{:+.4f}')}, paired over {images} images: {verdict(gap, images)}"
        )
        lines += [f"note: {note}" for note in summary["notes"]]
    if "certificates" in summary:
        lines.append(f"certificates: {summary['certificates']}")
    return lines


def _table(columns: list[tuple[str, dict[str, Any]]]) -> list[str]:
    head = [f"{'':24}" + "".join(f"{name:>26}" for name, _ in columns)] if len(columns) > 1 else []
    acr = [shown(Interval(c["acr"], c["acr_low"], c["acr_high"]), c["images"]) for _, c in columns]
    rows = [("images", [str(c["images"]) for _, c in columns]), ("ACR", acr)]
    rows.append(("abstained", [f"{c['abstained']:.1%}" for _, c in columns]))
    for radius in columns[0][1]["certified_accuracy"]:
        shares = [f"{c['certified_accuracy'][radius]:.1%}" for _, c in columns]
        rows.append((f"certified at {radius}", shares))
    return head + [f"{name:24}" + "".join(f"{value:>26}" for value in values) for name, values in rows]
