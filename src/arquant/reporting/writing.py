"""Write what runs say, as a page, a table or figures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from arquant.base.errors import InputError
from arquant.base.files import in_one_move
from arquant.base.html_snippet import table_html as snippet
from arquant.reporting import benchmark_page
from arquant.reporting.benchmark_tables import table_of
from arquant.reporting.card import to_card
from arquant.reporting.charts import Chart
from arquant.reporting.claims_text import claims
from arquant.reporting.figures import charts
from arquant.reporting.gathering import gather
from arquant.reporting.html import to_html
from arquant.reporting.model import SCHEMA, Report, to_json
from arquant.reporting.options import Format
from arquant.reporting.tables import Table, tables, to_csv, to_latex, to_markdown


@dataclass(frozen=True)
class Written:
    """The files of a report: the page or table, its data (with a page), the figures; what was warned of; its tables."""

    path: Path
    data: Path | None
    figures: tuple[Path, ...]
    models: tuple[str, ...]
    notes: tuple[str, ...]
    tables: tuple[Table, ...] = ()

    def _repr_html_(self) -> str:
        """Return the tables for a notebook, and where the report is."""
        found = "".join(snippet(table.title, table.columns, table.rows) for table in self.tables)
        return f"{found}<p>Report: <code>{escape(str(self.path))}</code></p>"


def _markdown(found: Report) -> str:
    return to_markdown(found, claims=[text for entry in found.judged for text in claims(entry)])


_FORMATS: dict[Format, tuple[str, Callable[[Report], str]]] = {
    "html": (".html", to_html),
    "md": (".md", _markdown),
    "latex": (".tex", to_latex),
    "csv": (".csv", to_csv),
    "card": (".md", to_card),
}


def write_report(
    runs: Sequence[str | Path], *, out: str | Path | None = None, format: Format = "html", figures: str | Path | None = None
) -> Written:  # fmt: skip
    """Write a report on one or several runs.

    Nothing in the runs is changed and no code that they name is run. What cannot be read is noted in the report.

    Args:
        runs: run folders of `certify`, `quantize`, `finetune` or `search`, or certificate files; or the folder of one
            `benchmark`.
        out: a file, or a folder for `report.html`; by default the first run's folder.
        format: `html` (one self-contained page, with its data in a `.json` beside it), tables as `md`, `latex`, `csv`, or
            `card`: a model card in Markdown, with front matter as model hubs read it, for one run.
        figures: also write every figure as SVG and PDF into this folder; needs matplotlib.
    """
    if any(map(benchmark_page.is_benchmark, runs)):
        return _benchmark_written(runs, out, format, figures)
    found = gather(runs)
    suffix, render = _FORMATS[format]
    stem = "card" if format == "card" else "report"
    path = _target(Path(runs[0]), None if out is None else Path(out), f"{stem}{suffix}")
    data = path.with_suffix(".json") if format == "html" else None
    if data is not None and data.exists() and not _is_report(data):
        raise InputError(f"--out {path} would replace {data}, which is no report; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, render(found))
    if data is not None:
        _write(data, json.dumps(to_json(found), indent=1, default=str) + "\n")
    drawn = _drawn(charts(found), figures)
    return Written(path, data, drawn, tuple(entry.name for entry in found.entries), found.notes, tables(found))


def _benchmark_written(
    runs: Sequence[str | Path], out: str | Path | None, format: Format, figures: str | Path | None
) -> Written:
    """Write the report on one benchmark, whose data are in its folder already."""
    if len(runs) > 1:
        raise InputError("a benchmark is reported alone; its models are runs too: DIR/METHOD/seed-K")
    found = benchmark_page.read(runs[0])
    text = benchmark_page.render(found, format)
    path = _target(Path(runs[0]), None if out is None else Path(out), f"report{_FORMATS[format][0]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, text)
    methods = tuple(row["method"] for row in found["rows"])
    return Written(path, None, _drawn(benchmark_page.charts_of(found), figures), methods, (), (table_of(found),))


def _drawn(found: Sequence[Chart], figures: str | Path | None) -> tuple[Path, ...]:
    if figures is None:
        return ()
    from arquant.reporting.paper_figures import save_figures

    return tuple(save_figures(tuple(found), Path(figures)))


def _is_report(path: Path) -> bool:
    """Return True if a file holds the data of an earlier report."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("schema") == SCHEMA


def _target(run: Path, out: Path | None, name: str) -> Path:
    if out is None:
        return (run.parent if run.is_file() else run) / name
    if out.is_dir() or not out.suffix:
        return out / name
    if out.suffix != Path(name).suffix:
        raise InputError(f"--out {out} should end in {Path(name).suffix}, or name a folder")
    return out


def _write(path: Path, text: str) -> None:
    try:
        with in_one_move(path) as scratch:
            scratch.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
