"""Charts as inline SVG: colours and fonts come from the page's style, so that they follow light, dark and print."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from arquant.reporting.charts import MODEL_COLOURS, NEUTRALS, Chart, Line, Series

WIDE, HALF, NARROW = 760, 480, 340
_BAR = 58
"""height of a model's row in a stack"""
_DASHES = ("", "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class _Frame:
    """The places of data on the page: pixel positions of x and y."""

    width: int
    height: int
    left: int
    bottom: int
    x: Callable[[float], float]
    y: Callable[[float], float]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    band: float
    """pixels between neighbouring bars' positions"""


def svg(chart: Chart, width: int = WIDE, *, css: str = "") -> Markup:
    """Draw one chart, `width` units wide, of class `css`.

    Series number s is a group with data-s="s"; its marks have the class m and their text in data-t.
    """
    if chart.stacked:
        height, body = _BAR * len(chart.ticks) + 4, [_stack(chart, width)]
    else:
        frame = _frame(chart, width)
        height, body = frame.height, [_axes(chart, frame), *(_across(line, frame) for line in chart.lines)]
        bars = [number for number, each in enumerate(chart.series) if each.kind == "bars"]
        for number, each in enumerate(chart.series):
            marks = {"line": _line, "points": _points}.get(each.kind)
            inner = marks(each, frame) if marks else _bars(each, frame, bars.index(number), len(bars))
            body.append(f'<g data-s="{number}" class="{palette(each.colour)}">{inner}</g>')
    label = escape(f"{chart.title}. {chart.caption} The table below holds the same data.")
    return Markup(
        f'<svg class="{css}" viewBox="0 0 {width} {height}" role="img" tabindex="0" aria-label="{label}">'
        f"{''.join(body)}</svg>"
    )


def palette(colour: int) -> str:
    """Return the class of a colour: those of models, which the ninth shares with the first, or of what is no model."""
    return f"c{colour % MODEL_COLOURS}" if colour >= 0 else f"k{(-colour - 1) % NEUTRALS}"


def _stack(chart: Chart, width: int) -> str:
    """Draw one bar per model, its name above it; parts differ in their looks, shares are written into wide ones."""
    parts = []
    for row, name in enumerate(chart.ticks):
        top = _BAR * row
        parts.append(f'<text class="label" x="0" y="{top + 14}">{escape(_short(name, width // 8))}</text>')
        for number, each in enumerate(chart.series):
            left, across = width * each.low[row], width * each.y[row]
            inside = f'x="{left:.1f}" y="{top + 20}" width="{max(across - 1, 0):.1f}" height="26"'
            written = f"{each.y[row]:.0%}" if across > 34 else ""
            parts.append(
                f'<g data-s="{number}" class="{palette(each.colours[row])} look{each.look}">'
                f'<rect class="m" {inside} data-t="{escape(each.tips[row])}"/>'
                f'<text x="{left + across / 2:.1f}" y="{top + 38}" text-anchor="middle">{written}</text></g>'
            )
    return "".join(parts)


def _across(line: Line, frame: _Frame) -> str:
    """Draw a line across the figure with its words; what lies beyond a closed one is shaded."""
    right, middle = frame.width - 14, frame.left + 0.55 * (frame.width - frame.left)
    if line.level:
        y = frame.y(line.at)
        return (
            f'<path class="across" d="M{frame.left} {y:.1f}H{right}"/>'
            f'<text x="{right}" y="{y - 5:.1f}" text-anchor="end">{escape(line.text)}</text>'
        )
    x = frame.x(line.at)
    anchor, dx = ("end", -6) if x > middle else ("start", 6)
    shade = f'<rect class="beyond" x="{x:.1f}" y="14" width="{max(right - x, 0):.1f}" height="{frame.bottom - 14}"/>'
    return (
        (shade if line.closed else "") + f'<path class="across" d="M{x:.1f} 14V{frame.bottom}"/>'
        f'<text x="{x + dx:.1f}" y="26" text-anchor="{anchor}">{escape(line.text)}</text>'
    )


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> tuple[float, ...]:
    """Round numbers from low to high, at most `most` of them; only whole ones if `whole`."""
    raw = max(high - low, 1e-12) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = (1, 2, 4, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(power * m for m in steps if power * m >= raw * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return tuple(step * k for k in range(first, math.floor(high / step + 1e-9) + 1))


def _frame(chart: Chart, width: int) -> _Frame:
    narrow = width < 500
    longest = max((len(name) for name in chart.ticks), default=0)
    height = 290 if narrow else 380
    left, top, right = 54 if narrow else 62, 14, 14
    bottom = min(30 + 5 * longest, 130) if chart.ticks else 50
    height += max(0, bottom - 50)
    (x0, x1), (y0, y1) = _x_range(chart), _y_range(chart)
    across, down = width - left - right, height - top - bottom

    def x(value: float) -> float:
        value = math.log10(value) if chart.log_x else value
        return left + across * (value - x0) / (x1 - x0)

    def y(value: float) -> float:
        return top + down * (1 - (value - y0) / (y1 - y0))

    if chart.ticks:
        every = math.ceil(len(chart.ticks) / (across / 12))
        x_ticks = tuple((float(i), name) for i, name in enumerate(chart.ticks) if i % every == 0)
    elif chart.log_x:
        x_ticks = _log_ticks(x0, x1, few=narrow)
    else:
        x_ticks = tuple((t, f"{t:g}") for t in ticks(x0, x1, 5 if narrow else 9))
    shown = "{:.0%}" if chart.percent else "{:g}"
    y_ticks = tuple((t, shown.format(round(t, 10))) for t in ticks(y0, y1, 5 if narrow else 6, whole=chart.whole))
    count = max((len(each.x) for each in chart.series if each.kind == "bars"), default=1)
    return _Frame(width, height, left, height - bottom, x, y, x_ticks, y_ticks, across / count)


def _x_range(chart: Chart) -> tuple[float, float]:
    values = [v for each in chart.series for v in (*each.x, *(x for x, _ in each.path))]
    if chart.ticks:
        return -0.5, len(chart.ticks) - 0.5
    if chart.log_x:
        return math.log10(min(values)) - 0.15, math.log10(max(values)) + 0.15
    if chart.x_max is not None:
        return 0.0, chart.x_max
    low, high = min(values), max(values)
    if all(each.kind == "line" for each in chart.series):
        return low, high if high > low else low + 1
    pad = 0.06 * (high - low) or max(abs(high) * 0.1, 0.5)
    return low - pad, high + pad


def _y_range(chart: Chart) -> tuple[float, float]:
    values = [v for each in chart.series for v in (*each.y, *each.low, *each.high)]
    values += [line.at for line in chart.lines if line.level]
    if chart.y_max is not None:
        return 0.0, chart.y_max * 1.02
    high = max(values)
    if any(each.kind == "bars" for each in chart.series):
        return 0.0, high * 1.06 or 1.0
    low = min(values)
    pad = 0.08 * (high - low) or 0.1
    return (max(0.0, low - pad) if low >= 0 else low - pad), high + pad


def _log_ticks(x0: float, x1: float, *, few: bool) -> tuple[tuple[float, str], ...]:
    values = [m * 10.0**k for k in range(math.floor(x0), math.ceil(x1) + 1) for m in ((1,) if few else (1, 2, 5))]
    return tuple((v, f"{v:g}") for v in values if x0 <= math.log10(v) <= x1)


def _axes(chart: Chart, frame: _Frame) -> str:
    parts = []
    for value, text in frame.y_ticks:
        y = frame.y(value)
        parts.append(f'<path class="grid" d="M{frame.left} {y:.1f}H{frame.width - 14}"/>')
        parts.append(f'<text x="{frame.left - 7}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in frame.x_ticks:
        x, y = frame.x(value), frame.bottom
        if chart.ticks:
            turn = f'transform="rotate(-60 {x + 3:.1f} {y + 12})" text-anchor="end"'
            parts.append(f'<text class="tick" x="{x + 3:.1f}" y="{y + 12}" {turn}>{escape(_short(text))}</text>')
        else:
            parts.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{escape(text)}</text>')
    parts.append(f'<path class="axis" d="M{frame.left} {frame.bottom}H{frame.width - 14}"/>')
    middle = (frame.left + frame.width - 14) / 2
    if not chart.ticks:
        parts.append(
            f'<text class="label" x="{middle:.0f}" y="{frame.bottom + 40}" text-anchor="middle">{escape(chart.x_label)}</text>'
        )
    centre = (frame.bottom + 14) / 2
    parts.append(
        f'<text class="label" x="11" y="{centre:.0f}" text-anchor="middle" transform="rotate(-90 11 {centre:.0f})">'
        f"{escape(chart.y_label)}</text>"
    )
    return "".join(parts)


def _line(series: Series, frame: _Frame) -> str:
    points = series.path or tuple(zip(series.x, series.y, strict=True))
    d = "M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in points)
    dash = "4 4" if series.faint else _DASHES[series.dash]
    style = f' stroke-dasharray="{dash}"' if dash else ""
    marks = _marks(series, frame, 'r="4" class="m hid"')
    return f'{_band(series, frame)}<path class="line" d="{d}"{style}/>{marks}'


def _band(series: Series, frame: _Frame) -> str:
    """Draw the intervals around a line."""
    upper = [f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in zip(series.x, series.high, strict=False)]
    lower = [f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in zip(series.x, series.low, strict=False)]
    return f'<path class="band" d="M{"L".join([*upper, *lower[::-1]])}Z"/>' if upper else ""


def _points(series: Series, frame: _Frame) -> str:
    bars = "".join(
        f'<path class="error" d="M{frame.x(x):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"/>'
        for x, low, high in zip(series.x, series.low, series.high, strict=False)
    )
    size = 6 if len(series.x) < 5 and not series.faint else 3.5
    return bars + _marks(series, frame, f'r="{size}" class="m{" hollow" if series.faint else ""}"')


def _marks(series: Series, frame: _Frame, how: str) -> str:
    return "".join(
        f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" {how} data-t="{escape(tip)}"/>'
        for x, y, tip in zip(series.x, series.y, series.tips, strict=False)
    )


def _bars(series: Series, frame: _Frame, place: int, of: int) -> str:
    whole = frame.band * 0.84
    width = whole / of
    parts = []
    for x, y, tip in zip(series.x, series.y, series.tips, strict=True):
        left, top = frame.x(x) - whole / 2 + place * width, frame.y(y)
        parts.append(
            f'<rect class="m{" pale" if series.faint else ""}" x="{left:.1f}" y="{top:.1f}" '
            f'width="{max(width - 0.6, 0.8):.1f}" height="{max(frame.bottom - top, 0):.1f}" data-t="{escape(tip)}"/>'
        )
    return "".join(parts)


def _short(text: str, most: int = 22) -> str:
    return text if len(text) <= most else "…" + text[-(most - 1) :]


def legend(chart: Chart) -> Sequence[tuple[int, str, str]]:
    """Return number, look and name of each series, if there is more than one."""
    looks = [
        f"look{each.look}" if chart.stacked else f"{palette(each.colour)}{' pale' if each.faint else ''}"
        for each in chart.series
    ]
    named = zip(range(len(looks)), looks, (each.name for each in chart.series), strict=True)
    return list(named) if len(looks) > 1 else []
