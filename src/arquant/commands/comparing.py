"""`arquant compare`: certified models side by side, each against the first, paired by image."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError
from arquant.certificates.metrics import metrics_json
from arquant.reporting.gathering import gather_comparison
from arquant.reporting.model import Report, difference_json
from arquant.reporting.tables import to_csv, to_latex, to_markdown, to_text

_FORMATS: dict[str, Callable[[Report], str]] = {
    "text": to_text,
    "md": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}


def compare(*runs: str | Path) -> Report:
    """Compare run folders or certificate files with the first of them, paired by image.

    Nothing in the runs is changed and no code that they name is run.

    Raises:
        MismatchError: images, labels, sigma, n, alpha, certificate type or norm differ from the first's.
    """
    return gather_comparison(runs)


def comparison_json(found: Report) -> dict[str, Any]:
    """The figures and costs of every model, and the differences (each minus the first), as plain data."""
    models = [
        {
            "name": entry.name, "folder": entry.folder, "bits": entry.widths,
            **metrics_json(certificates), "costs": vars(entry.costs),
        }
        for entry in found.entries
        if (certificates := entry.certificates) is not None
    ]  # fmt: skip
    differences = [difference_json(difference) for difference in found.differences]
    return {"models": models, "differences": differences, "warnings": list(found.notes)}


def comparison_text(found: Report, format: str = "text") -> str:
    """The comparison as tables: text, md, latex, or csv (which has no differences)."""
    if format not in _FORMATS:
        raise InputError(f"unknown format {format!r}; there are {', '.join(_FORMATS)}")
    return _FORMATS[format](found)
