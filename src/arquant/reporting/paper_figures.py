"""The figures as SVG and PDF files at paper quality, drawn by matplotlib (an extra)."""

import re
from itertools import chain, count
from pathlib import Path
from typing import Any

from arquant.base.errors import MissingExtraError
from arquant.reporting.charts import Chart, Line, Series

_COLOURS = ("#1f5fbf", "#c2410c", "#15803d", "#9333ea", "#0e7490", "#be123c", "#854d0e", "#a21caf")
_NEUTRALS = ("#1f2937", "#374151", "#4b5563", "#64748b", "#6b7280", "#737d8c")
_LOOKS: tuple[dict[str, Any], ...] = (
    {}, {"alpha": 0.35}, {"facecolor": "#f3d3d8", "hatch": "///"}, {"facecolor": "white", "edgecolor": "#525b66"},
)  # fmt: skip
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
            figure = Figure(
                figsize=(6.3, 3.4) if chart.ticks and not chart.stacked else (4.4, 3.1), layout="constrained"
            )
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
    if chart.stacked:
        return _stack(chart, axes)
    for line in chart.lines:
        _across(line, axes)
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
    return None


def _stack(chart: Chart, axes: Any) -> None:
    """Draw one bar per model."""
    for each in chart.series:
        for place, (left, share) in enumerate(zip(each.low, each.y, strict=True)):
            style = {"color": _colour(each.colours[place]), **_LOOKS[each.look]}
            if "facecolor" in style:
                del style["color"]
            axes.barh(-place, share, 0.6, left, label=each.name if place == 0 else None, **style)
    axes.set_yticks([-place for place in range(len(chart.ticks))], [_plain(name) for name in chart.ticks])
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_xlabel(_plain(chart.x_label))
    axes.legend(frameon=False, fontsize=7, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2)
    axes.spines[["top", "right"]].set_visible(False)


def _across(line: Line, axes: Any) -> None:
    if line.level:
        axes.axhline(line.at, color="#1b1f24", linewidth=0.8, linestyle="--")
        return
    axes.axvline(line.at, color="#1b1f24", linewidth=0.8, linestyle="--")
    axes.text(line.at, 1.0, _plain(line.text), transform=axes.get_xaxis_transform(), fontsize=6, ha="right", va="top")


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)] if number >= 0 else _NEUTRALS[(-number - 1) % len(_NEUTRALS)]


def _curve(series: Series, axes: Any) -> None:
    colour, name = _colour(series.colour), _plain(series.name)
    if series.kind == "line":
        if series.low:
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.13, linewidth=0)
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
    alpha = 0.4 if series.faint else 1.0
    axes.bar(xs, series.y, band / of, color=_colour(series.colour), alpha=alpha, label=_plain(series.name))


def _plain(text: str) -> str:
    """Return text in which matplotlib sees no mathematics, and of which its fonts have every letter."""
    return text.replace("$", r"\$").replace("ℓ₂", "l2").replace("ℓ₁", "l1")
