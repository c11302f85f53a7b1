"""The figures as SVG and PDF files at paper quality, drawn by matplotlib (an extra)."""

import re
from itertools import chain, count
from pathlib import Path
from typing import Any

from arquant.base.errors import MissingExtraError
from arquant.reporting.charts import Chart, Series

_COLOURS = ("#1f5fbf", "#c2410c", "#15803d", "#9333ea", "#0e7490", "#be123c", "#854d0e", "#475569")
_DASHES = ("-", "--", ":", "-.")
FORMATS = ("svg", "pdf")


def save_figures(charts: tuple[Chart, ...], folder: Path) -> list[Path]:
    """Write each chart as SVG and PDF into `folder`; returns the files."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "figures") from None
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "arquant"}):
        for chart in charts:
            figure = Figure(figsize=(6.3, 3.4) if chart.ticks else (4.4, 3.1), layout="constrained")
            FigureCanvasAgg(figure)
            _draw(chart, figure.subplots())
            stem = _stem(chart.key, {path.stem for path in written})
            for kind in FORMATS:
                path = folder / f"{stem}.{kind}"
                figure.savefig(path, metadata={"Date": None} if kind == "svg" else {"CreationDate": None})
                written.append(path)
    return written


def _stem(key: str, taken: set[str]) -> str:
    """Return a file name for a figure, with a number if another figure has it already."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", key).strip("-") or "figure"
    names = chain([plain], (f"{plain}-{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _draw(chart: Chart, axes: Any) -> None:
    bars = [each for each in chart.series if each.kind == "bars"]
    for each in chart.series:
        if each.kind == "bars":
            _bars(each, axes, bars.index(each), len(bars), chart)
        else:
            _curve(each, axes)
    axes.set_xlabel(_plain(chart.x_label))
    axes.set_ylabel(chart.y_label)
    if chart.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if chart.y_max is not None:
        axes.set_ylim(0, chart.y_max * 1.02)
    if chart.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), [_plain(name) for name in chart.ticks], rotation=90, fontsize=6)
    if len(chart.series) > 1:
        axes.legend(
            frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(len(chart.series), 4)
        )
    axes.spines[["top", "right"]].set_visible(False)


def _curve(series: Series, axes: Any) -> None:
    colour, name = _COLOURS[series.colour % len(_COLOURS)], _plain(series.name)
    if series.kind == "line":
        points = series.path or tuple(zip(series.x, series.y, strict=True))
        dash = ":" if series.faint else _DASHES[series.dash]
        axes.plot([x for x, _ in points], [y for _, y in points], dash, color=colour, label=name, linewidth=1.4)
        return
    axes.plot(
        series.x, series.y, "o", color=colour, label=name, markersize=5 if len(series.x) < 5 else 2.5,
        markerfacecolor="none" if series.faint else colour,
    )  # fmt: skip
    axes.vlines(series.x[: len(series.low)], series.low, series.high, color=colour, linewidth=1.2)


def _bars(series: Series, axes: Any, place: int, of: int, chart: Chart) -> None:
    band = (1.0 if chart.ticks else 1 / len(series.x)) * 0.84
    xs = [x - band / 2 + (place + 0.5) * band / of for x in series.x]
    axes.bar(xs, series.y, band / of, color=_COLOURS[series.colour % len(_COLOURS)], label=_plain(series.name))


def _plain(text: str) -> str:
    """Return text in which matplotlib sees no mathematics, and of which its fonts have every letter."""
    return text.replace("$", r"\$").replace("ℓ₂", "l2").replace("ℓ₁", "l1")
