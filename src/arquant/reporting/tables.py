"""The tables of a report, in the field's layout, as Markdown, LaTeX or CSV."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO

from arquant.certificates.resampling import MINIMUM_IMAGES, Interval, shown
from arquant.reporting.model import SMALL_RADIUS, Entry, Report


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
            shares = (
                "not provable" if entry.unprovable(r) else f"{100 * found.certified_accuracy(r):.1f}" for r in radii[1:]
            )
            intervals = (
                "–" if entry.acr is None else report.acr_text(entry.acr, len(found)),
                _shown(entry.clean, "{:.1f}", 100, images=len(found)),
            )
            made = entry.conditions if len(conditions) > 1 else "–"
            rows.append((entry.name, bits_of(entry), *intervals, *shares, f"{100 * found.abstained:.1f}", made))
    columns = ("model", "bits", "ACR", *(f"r = {r:g}" for r in radii), "abstained", "certified with")
    caption = (
        "ACR: the average certified radius, where wrong and abstained images count 0. Under r: images that are right with a "
        "radius of at least r, in % of all; r = 0 is the smoothed model's accuracy on clean images. In brackets: 95 % "
        f"intervals over images; fewer than {MINIMUM_IMAGES} images have none. {_unprovable(report)}"
    )
    if len(conditions) > 1:
        caption += "Conditions differ: figures compare only where a difference is given."
    elif conditions:
        caption += f"Certified with {conditions[0]}."
    return Table("Robustness", columns, tuple(rows), caption)


def _unprovable(report: Report) -> str:
    """Say which radii n votes cannot prove."""
    limits = {}
    for entry in report.certified:
        if entry.certificates is not None and entry.certificates.settings is not None and entry.limit is not None:
            limits[entry.certificates.settings.n] = entry.limit
    each = " and ".join(f"above {limit:.3f} with n = {n:,}" for n, limit in limits.items())
    return f"Radii {each} votes are not provable. " if each else ""


def _costs(report: Report) -> Table:
    rows = tuple(_cost_row(entry) for entry in report.entries if any(v is not None for v in vars(entry.costs).values()))
    columns = ("model", "bits", "GBOPs", "% of float32", "weights", "file", "ms per vote")
    caption = (
        "GBOPs: billion bit operations per image (multiplications times the widths of both factors), a model of hardware that "
        "has such arithmetic. Bytes of the quantized weights and of the file. Milliseconds were measured while certifying, "
        "noise included, on the machine that did it."
    )
    return Table("Cost", columns, rows, caption)


def bits_of(entry: Entry) -> str:
    """Return the widths of a model, unless its name says them."""
    return "–" if not entry.widths or entry.widths in entry.name or "float" in entry.name else entry.widths


def _cost_row(entry: Entry) -> tuple[str, ...]:
    costs = entry.costs
    return (
        entry.name,
        bits_of(entry),
        "–" if costs.bops is None else f"{costs.bops / 1e9:.4g}",
        "–" if costs.percent is None else f"{costs.percent:.2f}",
        "–" if costs.weight_bytes is None else f"{costs.weight_bytes / 1000:,.1f} kB",
        "–" if costs.file_bytes is None else f"{costs.file_bytes / 1000:,.1f} kB",
        "–" if costs.ms_per_vote is None else f"{costs.ms_per_vote:.2g}",
    )


def _differences(report: Report) -> Table:
    large = report.large_radius
    rows = tuple(
        (
            f"{d.second} − {d.first}",
            *(_shown(d.certified_accuracy.get(r), "{:+.1f}", 100, images=d.images) for r in (0.0, SMALL_RADIUS, large)),
            "–" if d.acr is None else report.acr_text(d.acr, d.images, signed=True), str(d.images or "–"), d.verdict,
        )
        for d in report.differences
    )  # fmt: skip
    caption = (
        "Paired by image, with 95 % intervals over images; an interval that holds 0 is a tie. Points of certified accuracy at "
        f"r = 0 (clean images), at a small and at a large radius; the verdict is on ACR. {_one_training(report)}"
    ) + "".join(
        f" {each.second} and {each.first}: {'; '.join(each.notes)}." for each in report.differences if each.notes
    )
    columns = (
        "difference [low, high]", "right at r = 0", f"at r = {SMALL_RADIUS:g}", f"at r = {large:g}", "ACR", "images",
        "verdict",
    )  # fmt: skip
    return Table("Gained and lost", columns, rows, caption)


def _one_training(report: Report) -> str:
    trained = any(report.entry(name).layers for d in report.differences for name in (d.first, d.second))
    return "Each model was trained once: another seed would move the figures as well." if trained else ""


def _shown(interval: Interval | None, number: str, scale: float = 1, *, images: int) -> str:
    """Return a value and its interval; a dash if unknown."""
    return "–" if interval is None else shown(interval, images, number, scale)


def to_markdown(report: Report, *, claims: Sequence[str] = ()) -> str:
    """Write tables for a README or an issue, with the claims."""
    parts = [markdown(table) for table in tables(report)]
    if claims:
        parts.append("### What may be claimed\n\n" + "\n".join(f"- {escaped(text)}" for text in claims) + "\n")
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
    return "\n".join([*lines, "", escaped(table.caption), ""])


def _md_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Return text in which Markdown sees no tables and no HTML."""
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
