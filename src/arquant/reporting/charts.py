"""The figures of a report as data: what is drawn, what hovering says, and the table behind it."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "points", "bars", "stack"]
MODEL_COLOURS = 8
NEUTRALS = 6
"""colours of what is no model: candidates, widths"""


@dataclass(frozen=True)
class Series:
    """Marks of one kind.

    Attributes:
        tips: what hovering over each mark says; none for a line without marks.
        low, high: intervals around `y`: bars of points, a band around a line. In a stack: left and right end.
        path: where a line goes, if not straight from mark to mark.
        colour: of the model that it shows; negative for what is no model, see `neutral`.
        colours: of each mark, in a stack.
        faint: of less weight: dashed lines, hollow points, pale bars.
        look: how the parts of a stack differ: 0 solid, 1 pale, 2 hatched, 3 empty.
    """

    name: str
    kind: Kind
    x: tuple[float, ...]
    y: tuple[float, ...]
    tips: tuple[str, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    path: tuple[tuple[float, float], ...] = ()
    colour: int = 0
    colours: tuple[int, ...] = ()
    faint: bool = False
    look: int = 0

    @property
    def dash(self) -> int:
        """Return the number of the line's dash. Four dashes and eight colours make 32 lines that differ."""
        return (self.colour // 2 + self.colour // 8) % 4


@dataclass(frozen=True)
class Line:
    """A line across a figure, at a value of x (or of y), and what it says."""

    at: float
    text: str
    level: bool = False
    """at a value of y"""
    closed: bool = False
    """nothing can lie beyond it"""


@dataclass(frozen=True)
class Chart:
    """One figure.

    Attributes:
        ticks: names of the positions 0, 1, ... of x (layers), or of the bars of a stack.
        lines: limits and zero lines.
        half: drawn beside the figure before or after it, where the screen is wide enough.
        whole, percent, log_x, y_max, x_max: of the axes.
    """

    key: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    ticks: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    half: bool = False
    whole: bool = False
    percent: bool = False
    log_x: bool = False
    y_max: float | None = None
    x_max: float | None = None

    @property
    def stacked(self) -> bool:
        """Tell whether it shows parts of a whole, one bar per model."""
        return any(each.kind == "stack" for each in self.series)


def neutral(place: int) -> int:
    """Return a colour that no model has."""
    return -1 - place


def number(value: float | None) -> str:
    """Return a number of a table; empty if unknown."""
    return "" if value is None else f"{value:.3f}"
