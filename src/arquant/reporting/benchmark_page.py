"""A benchmark's folder as `report` shows it: its table as a page, Markdown, LaTeX or CSV, and what each method certifies."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError
from arquant.base.files import envelope, read_json, write_json
from arquant.reporting.benchmark_tables import FORMATS, table_of
from arquant.reporting.charts import Chart, Series
from arquant.reporting.html import tables_page
from arquant.reporting.options import Format

SCHEMA, VERSION = "arquant.benchmark", 1
RESULT = "benchmark.json"


def keep(folder: Path, result: Mapping[str, Any]) -> None:
    """Write the data of a benchmark into its folder."""
    write_json(folder / RESULT, envelope(SCHEMA, VERSION, dict(result)))


def is_benchmark(folder: str | Path) -> bool:
    """Tell whether a folder holds the data of a benchmark."""
    return (Path(folder) / RESULT).is_file()


def read(folder: str | Path) -> dict[str, Any]:
    """Return the data that `keep` wrote."""
    return read_json(Path(folder) / RESULT, SCHEMA, VERSION)


def render(found: Mapping[str, Any], format: Format) -> str:
    """Return a benchmark's data as a page or table; InputError for a model card, since it has many models."""
    if format not in _RENDERED:
        raise InputError(
            f"a benchmark has no report as {format}: name one of its models, DIR/METHOD/seed-K, or use --format "
            f"{' | '.join(_RENDERED)}"
        )
    return _RENDERED[format](found)


def charts_of(found: Mapping[str, Any]) -> list[Chart]:
    """Return the certified accuracy of every method by radius: means over seeds, with a band of a standard deviation."""
    known = [(place, row) for place, row in enumerate(found["rows"]) if row["acr"] is not None]
    if not known:
        return []
    series = tuple(_curve(row, place) for place, row in known)
    rows = tuple(
        (f"{radius:g}", *(f"{each.y[place]:.1%}" for each in series)) for place, radius in enumerate(series[0].x)
    )
    caption = (
        "Share of images that are right with a certified radius of at least r; means over seeds, bands of a deviation."
    )
    columns = ("radius", *(each.name for each in series))
    return [
        Chart(
            "certified-accuracy", "Certified accuracy by radius", caption, "radius r", "images certified at r", series,
            columns, rows, percent=True, y_max=1.0,
        )
    ]  # fmt: skip


def _curve(row: Mapping[str, Any], colour: int) -> Series:
    shares = {
        0.0: row["clean_accuracy"],
        **{float(radius): share for radius, share in row["certified_accuracy"].items()},
    }
    means = tuple(share["mean"] for share in shares.values())
    spreads = [share["standard_deviation"] or 0.0 for share in shares.values()]
    tips = tuple(f"{row['method']}: {mean:.1%} at {radius:g}" for radius, mean in zip(shares, means, strict=True))
    low = tuple(max(0.0, mean - spread) for mean, spread in zip(means, spreads, strict=True))
    high = tuple(min(1.0, mean + spread) for mean, spread in zip(means, spreads, strict=True))
    return Series(row["method"], "line", tuple(shares), means, tips, low, high, colour=colour)


def _page(found: Mapping[str, Any]) -> str:
    title = f"Methods within {found['budget']}, σ = {found['sigma']:g}"
    return tables_page(title, [table_of(found)], charts_of(found))


_RENDERED: dict[Format, Callable[[Mapping[str, Any]], str]] = {
    "html": _page, "md": FORMATS["md"], "latex": FORMATS["latex"], "csv": FORMATS["csv"],
}  # fmt: skip
