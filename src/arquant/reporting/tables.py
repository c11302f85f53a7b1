"""The tables of a report, in the field's layout, as Markdown, LaTeX or CSV."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO

from arquant.certificates.resampling import MINIMUM_IMAGES, Interval, shown
from arquant.reporting.model import Entry, Report


@dataclass(frozen=True)
class Table:
    """Cells of text with a header."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


def tables(report: Report) -> tuple[Table, ...]:
    """Return the tables that have rows: models by accuracy, models by cost, paired differences."""
    found = [_accuracy(report), _costs(report), _differences(report)]
    return tuple(without_empty_columns(table) for table in found if table.rows)


def without_empty_columns(table: Table) -> Table:
    """Return the table without columns in which nothing is known."""
    kept = [i for i in range(len(table.columns)) if any(row[i] != "–" for row in table.rows)]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def _accuracy(report: Report) -> Table:
    radii = report.radii
    conditions = list(dict.fromkeys(entry.conditions for entry in report.certified))
    rows = []
    for entry in report.certified:
        found = entry.certificates
        if found is not None:
            shares = (f"{100 * found.certified_accuracy(r):.1f}" for r in radii[1:])
            intervals = (
                _shown(entry.acr, "{:.3f}", images=len(found)),
                _shown(entry.clean, "{:.1f}", 100, images=len(found)),
            )
            made = entry.conditions if len(conditions) > 1 else "–"
            rows.append((entry.name, entry.widths or "–", *intervals, *shares, f"{100 * found.abstained:.1f}", made))
    columns = ("model", "bits", "ACR", *(f"r = {r:g}" for r in radii), "abstained", "certified with")
    caption = (
        "Certified accuracy at radius r and abstentions in % of all images; r = 0 is the smoothed model's accuracy on clean "
        f"images. In brackets: 95 % intervals over images; fewer than {MINIMUM_IMAGES} images have none. "
    )
    if len(conditions) > 1:
        caption += "Conditions differ: figures compare only where a difference is given."
    elif conditions:
        caption += f"Certified with {conditions[0]}."
    return Table("Robustness", columns, tuple(rows), caption)


def _costs(report: Report) -> Table:
    rows = tuple(_cost_row(entry) for entry in report.entries if any(v is not None for v in vars(entry.costs).values()))
    columns = ("model", "bits", "GBOPs", "% of float32", "weights", "file", "ms per vote")
    caption = (
        "Bit operations per image (exact convention), bytes of the quantized weights and of the file, and the measured "
        "time of the certification per vote on the machine that it ran on, noise included."
    )
    return Table("Cost", columns, rows, caption)


def _cost_row(entry: Entry) -> tuple[str, ...]:
    costs = entry.costs
    return (
        entry.name,
        entry.widths or "–",
        "–" if costs.bops is None else f"{costs.bops / 1e9:.4g}",
        "–" if costs.percent is None else f"{costs.percent:.2f}",
        "–" if costs.weight_bytes is None else f"{costs.weight_bytes / 1000:,.1f} kB",
        "–" if costs.file_bytes is None else f"{costs.file_bytes / 1000:,.1f} kB",
        "–" if costs.ms_per_vote is None else f"{costs.ms_per_vote:.3g}",
    )


def _differences(report: Report) -> Table:
    rows = tuple(
        (
            f"{d.second} − {d.first}", _shown(d.acr, "{:+.4f}", images=d.images),
            _shown(d.clean, "{:+.1f}", 100, images=d.images), str(d.images or "–"), d.verdict,
        )
        for d in report.differences
    )  # fmt: skip
    caption = (
        "Paired by image, with 95 % bootstrap intervals; an interval that holds 0 is a tie. Right at r = 0 is in % of all "
        "images, the verdict is on ACR. Intervals are over images: training with another seed moves the figures as well."
    ) + "".join(
        f" {each.second} and {each.first}: {'; '.join(each.notes)}." for each in report.differences if each.notes
    )
    columns = ("models", "ACR: difference [low, high]", "right at r = 0: difference [low, high]", "images", "verdict")
    return Table("Differences", columns, rows, caption)


def _shown(interval: Interval | None, number: str, scale: float = 1, *, images: int) -> str:
    """Return a value and its interval; a dash if unknown."""
    return "–" if interval is None else shown(interval, images, number, scale)


def to_markdown(report: Report, *, claims: Sequence[str] = ()) -> str:
    """Write tables for a README or an issue, with the claims."""
    parts = [markdown(table) for table in tables(report)]
    if claims:
        parts.append("### What may be claimed\n\n" + "\n".join(f"- {_cell(text)}" for text in claims) + "\n")
    return "\n".join(parts)


def to_text(report: Report) -> str:
    """Write tables for a terminal."""
    return "\n".join(text(table) for table in tables(report))


def text(table: Table) -> str:
    """Write a table for a terminal."""
    rows = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]  # fmt: skip
    return "\n".join([table.title, *lines, table.caption, ""])


def to_latex(report: Report) -> str:
    """Write tables for a paper: booktabs."""
    return "\n".join(latex(table) for table in tables(report))


def to_csv(report: Report) -> str:
    """Write the figures of every model, one row each, unrounded; an empty field is unknown."""
    radii = report.radii
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["model", "role", "bits", "images", *_SETTINGS, "alpha_per_image", "acr", "acr_low", "acr_high", "abstained"]
        + [f"certified_{r:g}" for r in radii]
        + ["certified_0_low", "certified_0_high"]
        + ["bops", "percent_of_fp32", "weight_bytes", "file_bytes", "ms_per_vote"]
    )
    for entry in report.entries:
        writer.writerow(_csv_row(entry, radii))
    return buffer.getvalue()


_SETTINGS = ("sigma", "noise", "norm", "certificate", "mode", "n", "alpha")


def _csv_row(entry: Entry, radii: Sequence[float]) -> list[object]:
    found, costs = entry.certificates, entry.costs
    row: list[object] = [entry.name, entry.role, entry.widths]
    if found is None or entry.acr is None or entry.clean is None:
        row += [""] * (8 + len(_SETTINGS) + len(radii))
    else:
        acr, settings = entry.acr, found.settings
        row += [len(found), *("" if settings is None else getattr(settings, name) for name in _SETTINGS)]
        row.append("" if settings is None else settings.effective_alpha)
        row += [acr.value, acr.low, acr.high, found.abstained, *(found.certified_accuracy(r) for r in radii)]
        row += [entry.clean.low, entry.clean.high]
    known = (costs.bops, costs.percent, costs.weight_bytes, costs.file_bytes, costs.ms_per_vote)
    return row + ["" if value is None else value for value in known]


def markdown(table: Table) -> str:
    """Write a table for a README or an issue."""
    lines = [f"### {table.title}", "", _md_row(table.columns)]
    lines.append(_md_row([":---", *["---:"] * (len(table.columns) - 1)]))
    lines += [_md_row(row) for row in table.rows]
    return "\n".join([*lines, "", _cell(table.caption), ""])


def _md_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def latex(table: Table) -> str:
    """Write a table for a paper: booktabs."""
    rows = [" & ".join(_tex(cell) for cell in row) + r" \\" for row in table.rows]
    head = " & ".join(_tex(cell) for cell in table.columns) + r" \\"
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_tex(table.title)}. {_tex(table.caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "<": "$<$", ">": "$>$", "σ": r"$\sigma$",
    "α": r"$\alpha$", "ℓ": r"$\ell$", "₁": r"\textsubscript{1}", "₂": r"\textsubscript{2}",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text.replace("\n", " "))
