"""A learning curve drawn with letters: every candidate, and the best so far."""

from collections.abc import Sequence
from dataclasses import dataclass

_LABEL = 9
"""columns of the axis' numbers"""


@dataclass(frozen=True)
class Marks:
    """The letters of a chart."""

    scored: str
    dropped: str
    best: str
    axis: str
    corner: str
    floor: str


UNICODE = Marks("•", "×", "━", "│", "└", "─")
ASCII = Marks("o", "x", "=", "|", "+", "-")


@dataclass(frozen=True)
class Point:
    """A candidate's value, None if it has none; `counts` if it may become the best so far."""

    value: float | None
    counts: bool = True


def learning_curve(points: Sequence[Point], *, width: int = 72, height: int = 10, marks: Marks = UNICODE) -> list[str]:
    """Return the chart as lines of at most `width` columns; empty without values.

    From left to right the candidates in their order, several to a column where there are many; upwards their value. The
    line is the largest value so far of those that count.
    """
    values = [point.value for point in points if point.value is not None]
    columns, rows = max(width - _LABEL - 2, 8), max(height, 3)
    if not values:
        return []
    low, high = min(values), max(values)
    span = (high - low) or max(abs(high), 1e-9) * 0.1

    def row(value: float) -> int:
        return round((value - low) / span * (rows - 1))

    used = min(columns, max(len(points), 2))
    grid = [[" "] * used for _ in range(rows)]
    best: float | None = None
    for number, point in enumerate(points):
        column = min(number * used // len(points), used - 1)
        if point.counts and point.value is not None:
            best = point.value if best is None else max(best, point.value)
        if best is not None and grid[row(best)][column] == " ":
            grid[row(best)][column] = marks.best
        if point.value is not None:
            grid[row(point.value)][column] = marks.scored if point.counts else marks.dropped
    labels = {0: low, rows - 1: high, (rows - 1) // 2: low + span * ((rows - 1) // 2) / (rows - 1)}
    lines = [
        f"{labels[r]:{_LABEL}.4f} {marks.axis}" + "".join(grid[r]).rstrip() if r in labels
        else f"{'':{_LABEL}} {marks.axis}" + "".join(grid[r]).rstrip()
        for r in reversed(range(rows))
    ]  # fmt: skip
    return [*lines, f"{'':{_LABEL}} {marks.corner}{marks.floor * used}", _numbers(len(points), used)]


def _numbers(count: int, used: int) -> str:
    """Return the line below: the first and the last candidate's number."""
    last = str(count - 1)
    return f"{'':{_LABEL}}  0" + last.rjust(max(used - 1, len(last) + 1)) if count > 1 else f"{'':{_LABEL}}  0"
