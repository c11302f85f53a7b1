"""Render a comparison: certified models side by side, each against the first, paired by image."""

from collections.abc import Callable
from typing import Any

from arquant.certificates.metrics import metrics_json
from arquant.reporting.model import Report, difference_json
from arquant.reporting.options import TableFormat
from arquant.reporting.tables import to_csv, to_latex, to_markdown, to_text

_FORMATS: dict[TableFormat, Callable[[Report], str]] = {
    "text": to_text,
    "md": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}


def comparison_json(found: Report) -> dict[str, Any]:
    """Return the figures and costs of every model, and the differences (each minus the first), as plain data."""
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


def comparison_text(found: Report, format: TableFormat = "text") -> str:
    """Return the comparison as tables: text, md, latex, or csv (which has no differences)."""
    return _FORMATS[format](found)
