"""`arquant metrics`: what certificate files say, one or two of them."""

import logging
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arquant.base.errors import InputError
from arquant.commands.command import command
from arquant.commands.shared import PathLike

if TYPE_CHECKING:
    from arquant.certificates.certificate import CertificateSet
    from arquant.commands.console import Console

log = logging.getLogger("arquant")


@dataclass(frozen=True)
class Metrics:
    """Metrics"""

    file: PathLike
    """a run folder, or a certificates.tsv, ours or one of the field's"""
    second: PathLike | None = None
    """another one, to compare image by image"""
    _: KW_ONLY
    radii: tuple[float, ...] | None = None
    """radii of the certified accuracy; 0,0.25,...,2 if not given"""
    confidence: float = 0.95
    """of the bootstrap intervals over images"""
    common: bool = False
    """compare on the images that both files have; else they must have the same"""


@command(
    Metrics,
    "certified accuracy, ACR and paired differences of certificate files",
    common=("radii", "confidence", "common"),
    examples=("arquant metrics runs/float runs/w4",),
)
def metrics(options: Metrics) -> dict[str, Any]:
    """Return the figures of a certificate file, or of two with their paired difference (second minus first).

    Keys are those of `metrics_json`, `settings`: what the certificates were made with, None where there is no sidecar, and
    `largest_radius`: what a unanimous vote proves under them.
    What had to be ignored in a file, or could not be known, is logged as a warning.
    """
    from arquant.certificates.metrics import metrics_json, on_common_images

    first, other = _read(options.file), None if options.second is None else _read(options.second)
    if options.common:
        if other is None:
            raise InputError("common compares two files; name a second one")
        first, other = on_common_images(first, other)
    summary = metrics_json(first, other, radii=options.radii, confidence=options.confidence)
    for data, found in ((summary, first), (summary.get("second"), other)):
        if data is not None and found is not None:
            data["settings"] = _settings(found)
            data["largest_radius"] = None if found.settings is None else found.settings.largest_radius
    return summary


def _read(file: str | Path) -> "CertificateSet":
    """Read a file whose figures may be told: where its settings are known, they are derived again from the votes."""
    from arquant.certificates.files import TSV_NAME, read_certificates
    from arquant.certificates.recomputation import check_where_known

    if Path(file).is_dir() and not (Path(file) / TSV_NAME).exists():
        raise InputError(f"{file} has no {TSV_NAME}; make one: arquant certify {file} --out {file}")
    found = read_certificates(file)
    for warning in found.warnings:
        log.warning("%s", warning)
    check_where_known(found, str(file))
    return found


def _settings(found: "CertificateSet") -> dict[str, Any] | None:
    from arquant.certificates.files import settings_json

    return None if found.settings is None else settings_json(found.settings)


@metrics.shown
def _show(summary: dict[str, Any], _options: Metrics, console: "Console") -> None:
    console.result(summary, metrics_lines(summary))


def metrics_lines(summary: dict[str, Any]) -> list[str]:
    """Return the figures as lines of text."""
    from arquant.certificates.resampling import Interval, shown, verdict

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
    from arquant.certificates.resampling import Interval, shown
    from arquant.certificates.rounding import down

    head = [f"{'':24}" + "".join(f"{name:>26}" for name, _ in columns)] if len(columns) > 1 else []
    acr = [shown(Interval(c["acr"], c["acr_low"], c["acr_high"]), c["images"]) for _, c in columns]
    rows = [("images", [str(c["images"]) for _, c in columns]), ("ACR", acr)]
    rows.append(("abstained", [f"{c['abstained']:.1%}" for _, c in columns]))
    left_out = []
    for radius in columns[0][1]["certified_accuracy"]:
        provable = [c["largest_radius"] is None or float(radius) <= c["largest_radius"] for _, c in columns]
        shares = [
            f"{c['certified_accuracy'][radius]:.1%}" if can else "not provable"
            for can, (_, c) in zip(provable, columns, strict=True)
        ]
        if any(provable):
            rows.append((f"certified at {radius}", shares))
        else:
            left_out.append(radius)
    lines = head + [f"{name:24}" + "".join(f"{value:>26}" for value in values) for name, values in rows]
    if left_out:
        votes = " and ".join(dict.fromkeys(f"n = {c['settings']['n']:,}" for _, c in columns))
        most = max(c["largest_radius"] for _, c in columns)
        lines.append(f"not provable with {votes}: {', '.join(left_out)} (at most {down(most)})")
    return lines
