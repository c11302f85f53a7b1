"""The figures of a report as data: what is drawn, what hovering says, and the table behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from arquant.certificates.certificate import CertificateSet
from arquant.certificates.metrics import mismatches
from arquant.reporting.model import NORMS, Entry, Report
from arquant.searching.sensitivity_table import KINDS, SensitivityTable

Kind = Literal["line", "points", "bars"]
STEPS = 48
"""radii at which hovering tells the certified accuracy"""
PIXELS = 500
"""steps of a curve at most; radii are rounded down to them"""
BINS = 20


@dataclass(frozen=True)
class Series:
    """Marks of one colour.

    Attributes:
        tips: what hovering over each mark says; none for a line without marks.
        low, high: intervals around `y`.
        path: where a line goes, if not straight from mark to mark.
        colour: number in the palette.
        faint: of less weight: dashed lines, hollow points.
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
    faint: bool = False

    @property
    def dash(self) -> int:
        """Return the number of the line's dash. Four dashes and eight colours make 32 lines that differ."""
        return (self.colour // 2 + self.colour // 8) % 4


@dataclass(frozen=True)
class Chart:
    """One figure. `ticks` names the positions 0, 1, ... of x (layers); the flags concern the axes."""

    key: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    ticks: tuple[str, ...] = ()
    whole: bool = False
    percent: bool = False
    log_x: bool = False
    y_max: float | None = None


def charts(report: Report) -> tuple[Chart, ...]:
    """Draw every figure that the report's data allow, in the order of the page."""
    found = [_accuracy(report), _pareto(report)]
    for entry in report.entries:
        if entry.layers:
            found += [_bits(entry), _shares(entry)]
    found += [_learning(report, number) for number in range(len(report.searches))]
    found += [*sensitivities(report.sensitivity), _histogram(report)]
    return tuple(chart for chart in found if chart is not None)


def _accuracy(report: Report) -> Chart | None:
    known = [(e, e.certificates) for e in report.certified if e.certificates is not None]
    if not known:
        return None
    top = max(float(found.credited.max()) for _, found in known)
    grid = np.linspace(0, max(top * 1.04, 0.1), STEPS + 1)
    series = []
    for place, (entry, found) in enumerate(known):
        shares = tuple(found.certified_accuracy(float(r)) for r in grid)
        tips = tuple(f"{entry.name}: {s:.1%} at radius {r:.3f}" for r, s in zip(grid, shares, strict=True))
        path = _stairs(found, float(grid[-1]))
        series.append(Series(entry.name, "line", tuple(map(float, grid)), shares, tips, path=path, colour=place))
    rows = tuple(
        (f"{r:g}", *(f"{found.certified_accuracy(r):.1%}" for _, found in known)) for r in report.radii
    )  # fmt: skip
    return Chart(
        "accuracy", "Certified accuracy against radius",
        "The share of all images that are right with at least this radius. Wrong and abstained images count as 0.",
        f"radius ({_norms([found for _, found in known])}, units of the pixel range)", "certified accuracy", tuple(series),
        ("radius", *(entry.name for entry, _ in known)), rows, percent=True, y_max=1.0,
    )  # fmt: skip


def _stairs(found: CertificateSet, end: float) -> tuple[tuple[float, float], ...]:
    """Return the exact curve; with more than PIXELS different radii, one that lies nowhere above it."""
    radii = found.credited[found.correct]
    if len(np.unique(radii)) > PIXELS:
        radii = np.floor(radii / end * PIXELS) * end / PIXELS
    left, total = float(len(radii)), len(found)
    path = [(0.0, left / total)]
    for radius, count in zip(*np.unique(radii, return_counts=True), strict=True):
        path.append((float(radius), left / total))
        left -= float(count)
        path.append((float(radius), left / total))
    return (*path, (end, left / total))


def _pareto(report: Report) -> Chart | None:
    points = []
    for place, entry in enumerate(report.certified):
        if entry.costs.bops is not None and entry.acr is not None:
            points.append((entry.costs.bops / 1e9, entry.acr, entry, place))
    if len(points) < 2:
        return None
    series = [
        Series(
            e.name, "points", (x,), (acr.value,),
            (f"{e.name}: ACR {acr.value:.4f} [{acr.low:.4f}, {acr.high:.4f}] at {x:.4g} GBOPs",),
            (acr.low,), (acr.high,), colour=place,
        )
        for x, acr, e, place in points
    ]  # fmt: skip
    groups = _comparable_groups([e for _, _, e, _ in points])
    fronts = _fronts(groups)
    rows = tuple(
        (e.name, f"{x:.4f}", f"{acr.value:.4f}", f"{acr.low:.4f}", f"{acr.high:.4f}") for x, acr, e, _ in points
    )
    costs = [x for x, _, _, _ in points]
    return Chart(
        "pareto", "ACR against cost",
        "Average certified radius with its 95 % interval over images. Up and to the left is better. "
        + _joined(groups, fronts),
        "billion bit operations per image", "ACR", (*series, *fronts),
        ("model", "GBOPs", "ACR", "low", "high"), rows, log_x=max(costs) > 8 * min(costs) > 0,
    )  # fmt: skip


def _comparable_groups(entries: list[Entry]) -> list[list[Entry]]:
    """Group entries whose ACRs are the same quantity; one of unknown settings stands alone."""
    groups: list[list[Entry]] = []
    for entry in entries:
        fitting = (group for group in groups if all(_comparable(entry, other) for other in group))
        if (group := next(fitting, None)) is not None:
            group.append(entry)
        else:
            groups.append([entry])
    return groups


def _comparable(first: Entry, second: Entry) -> bool:
    one, other = first.certificates, second.certificates
    if one is None or other is None or one.settings is None or other.settings is None:
        return False
    return one.settings.mode == other.settings.mode and not mismatches(one, other)


def _joined(groups: list[list[Entry]], fronts: list[Series]) -> str:
    """Say in words which points a line joins."""
    which = "models that no other beats, among those with the same images, σ, n, α, kind of certificate and mode"
    text = f"A dashed line joins the {which}." if fronts else f"No line is drawn; it would join {which}."
    if len(groups) > 1:
        text += f" There are {len(groups)} such groups here; an ACR of one is not comparable with that of another."
    return text


def _fronts(groups: list[list[Entry]]) -> list[Series]:
    """Draw a line for each group in which more than one model is worth having."""
    series: list[Series] = []
    for group in groups:
        points = [(e.costs.bops / 1e9, e.acr.value) for e in group if e.costs.bops is not None and e.acr is not None]
        front = pareto_front(points)
        if len(front) > 1:
            name = "Pareto front" + (f", {_settings(group[0])}" if len(groups) > 1 else "")
            xs, ys = tuple(x for x, _ in front), tuple(y for _, y in front)
            series.append(Series(name, "line", xs, ys, (), colour=7 - len(series), faint=True))
    return series


def _settings(entry: Entry) -> str:
    found = entry.certificates
    if found is None or found.settings is None:
        return "settings unknown"
    return f"σ = {found.settings.sigma:g}, n = {found.settings.n:,}, {len(found):,} images"


def pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the (cost, value) points that no other point beats in both, by rising cost."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front


def _bits(entry: Entry) -> Chart:
    names, places = tuple(layer.name for layer in entry.layers), tuple(map(float, range(len(entry.layers))))
    series = tuple(
        Series(
            what, "bars", places, tuple(float(value) for value in values),
            tuple(f"{name}: {value}-bit {what}" for name, value in zip(names, values, strict=True)), colour=colour,
        )
        for what, values, colour in (
            ("weights", [layer.w for layer in entry.layers], 0), ("activations", [layer.a for layer in entry.layers], 1)
        )
    )  # fmt: skip
    rows = tuple((layer.name, str(layer.w), str(layer.a)) for layer in entry.layers)
    return Chart(
        f"bits-{entry.name}", f"Bits per layer: {entry.name}", "Along the network, in order of execution.",
        "layer", "bits", series, ("layer", "weight bits", "activation bits"), rows, ticks=names, whole=True, y_max=8.0,
    )  # fmt: skip


def _shares(entry: Entry) -> Chart | None:
    names, places = tuple(layer.name for layer in entry.layers), tuple(map(float, range(len(entry.layers))))
    series, columns = [], ["layer"]
    for what, values, colour in (
        ("bit operations", [layer.bops_share for layer in entry.layers], 2),
        ("weight bytes", [layer.bytes_share for layer in entry.layers], 3),
    ):
        known = tuple(float(value) for value in values if value is not None)
        if len(known) == len(names):
            tips = tuple(f"{name}: {value:.1%} of the {what}" for name, value in zip(names, known, strict=True))
            series.append(Series(what, "bars", places, known, tips, colour=colour))
            columns.append(what)
    if not series:
        return None
    rows = tuple((name, *(f"{each.y[i]:.2%}" for each in series)) for i, name in enumerate(names))
    return Chart(
        f"shares-{entry.name}", f"Where the cost is: {entry.name}", "Each layer's share of the whole.", "layer",
        "share of the cost", tuple(series), tuple(columns), rows, ticks=names, percent=True,
    )  # fmt: skip


def _learning(report: Report, number: int) -> Chart | None:
    search = report.searches[number]
    candidates = search.candidates
    scored = [c for c in candidates if c.score is not None and c.outcome != "repeated"]
    if not scored:
        return None
    what = f"score ({scored[0].estimate})"
    series = []
    for outcome, words, colour in (("scored", "candidates", 0), ("abandoned", "dropped by racing", 5)):
        chosen = [(c, c.score) for c in scored if c.outcome == outcome and c.score is not None]
        if chosen:
            tips = tuple(f"candidate {c.number}: {what} {score:.4f}, {c.budget}" for c, score in chosen)
            xs, ys = tuple(float(c.number) for c, _ in chosen), tuple(score for _, score in chosen)
            series.append(Series(words, "points", xs, ys, tips, colour=colour, faint=outcome == "abandoned"))
    for place, budget in enumerate(search.budgets):
        mine = [
            (float(c.number), c.score)
            for c in scored
            if budget in c.within and c.outcome == "scored" and c.score is not None
        ]
        if mine:
            best = tuple(map(float, np.maximum.accumulate([score for _, score in mine])))
            corners = [
                (x, b) for (x, _), before, b in zip(mine, (best[0], *best), best, strict=False) for b in (before, b)
            ]
            path = (*corners, (float(candidates[-1].number), best[-1]))
            xs = tuple(x for x, _ in mine)
            series.append(Series(f"best so far, {budget}", "line", xs, best, (), path=path, colour=2 + place % 3))
    rows = tuple(
        (
            str(c.number),
            c.budget,
            c.outcome,
            _number(c.score),
            _number(c.standard_error),
            _number(c.acr),
            _number(c.bops and c.bops / 1e9),
        )
        for c in candidates
    )
    return Chart(
        f"learning-{number + 1}" if number else "learning",
        "The search's learning curve" + (f": {search.folder}" if len(report.searches) > 1 else ""),
        "Estimates from few votes on the search images. They rank candidates and prove nothing.",
        "candidate", what, tuple(series),
        ("candidate", "budget", "outcome", what, "standard error", "estimated ACR", "GBOPs"), rows,
    )  # fmt: skip


def sensitivities(table: SensitivityTable | None) -> tuple[Chart, ...]:
    """Draw the loss of each layer at each width: a figure for weights, one for activations."""
    if table is None or not table.values:
        return ()
    return tuple(chart for kind in KINDS if (chart := _sensitivity(table, kind)) is not None)


def _sensitivity(table: SensitivityTable, kind: str) -> Chart | None:
    names, what, facts = tuple(table.values), KINDS[kind], table.facts
    # nothing is lost at the width of the base
    widths = [bits for bits in table.widths if any(table.values[name].get(kind, {}).get(bits) for name in names)]
    if not widths:
        return None
    series = []
    for place, bits in enumerate(widths):
        shift = 0.6 * ((place + 0.5) / len(widths) - 0.5)
        known = [
            (at + shift, name, table.values[name][kind][bits], table.margin(name, kind, bits))
            for at, name in enumerate(names)
            if bits in table.values[name].get(kind, {})
        ]
        tips = tuple(f"{name}, {bits}-bit {what}: loses {loss:.4f} ± {margin:.4f}" for _, name, loss, margin in known)
        lows, highs = (tuple(loss + side * margin for _, _, loss, margin in known) for side in (-1, 1))
        xs, ys = tuple(x for x, *_ in known), tuple(loss for _, _, loss, _ in known)
        series.append(Series(f"{bits} bits", "points", xs, ys, tips, lows, highs, colour=place))
    rows = tuple(
        (name, *(_number(table.values[name].get(kind, {}).get(bits)) for bits in widths)) for name in names
    )  # fmt: skip
    measured = "as the table gives it."
    if "base" in facts:
        measured = (
            f"all others at {facts['base']}, with 95 % intervals over images; {facts.get('steps', 0)} steps of fine-tuning. "
            "An estimate from few votes, which proves nothing."
        )
    return Chart(
        f"sensitivity-{kind}", f"Sensitivity of each layer and width: {what}",
        f"What the score loses when only this layer's {what} have fewer bits, {measured}",
        "layer", f"loss of {facts.get('score', 'the score')}", tuple(series),
        ("layer", *(f"{bits} bits" for bits in widths)), rows, ticks=names,
    )  # fmt: skip


def _histogram(report: Report) -> Chart | None:
    known = [
        (e, e.certificates) for e in report.certified
        if e.certificates is not None and any(c.p_lower is not None for c in e.certificates.certificates)
    ]  # fmt: skip
    if not known:
        return None
    series, edges = [], np.linspace(0, 1, BINS + 1)
    for place, (entry, found) in enumerate(known):
        counts, edges = found.p_lower_histogram(BINS)
        tips = tuple(
            f"{entry.name}: {count} images with p from {low:.2f} to {high:.2f}"
            for count, low, high in zip(counts, edges, edges[1:], strict=False)
        )
        middles = tuple(map(float, (edges[1:] + edges[:-1]) / 2))
        series.append(Series(entry.name, "bars", middles, tuple(map(float, counts)), tips, colour=place))
    rows = tuple(
        (f"{edges[i]:.2f} to {edges[i + 1]:.2f}", *(f"{each.y[i]:.0f}" for each in series)) for i in range(BINS)
    )
    return Chart(
        "histogram", "How sure the votes were",
        f"Lower bound of the probability of the class stated, under noise. {_what_certifies(known)}{_given_up(known)}",
        "lower bound p", "images", tuple(series), ("p", *(e.name for e, _ in known)), rows, whole=True,
    )  # fmt: skip


def _what_certifies(known: Sequence[tuple[Entry, CertificateSet]]) -> str:
    """Say how large a bound must be to certify."""
    if any(found.settings is not None and found.settings.certificate == "multiclass" for _, found in known):
        return (
            "A one-sided certificate needs one above 0.5, a multiclass one above the upper bound of every other class."
        )
    return "Only bounds above 0.5 certify."


def _given_up(known: Sequence[tuple[Entry, CertificateSet]]) -> str:
    """Return a sentence on the images that have no bound, if there are any."""
    counts = [sum(c.given_up for c in found.certificates) for _, found in known]
    if not any(counts):
        return ""
    each = ", ".join(f"{count} of {entry.name}" for (entry, _), count in zip(known, counts, strict=True) if count)
    return f" Images that were given up as hopeless have none and are left out: {each}."


def _norms(sets: Sequence[CertificateSet]) -> str:
    """Name the norm of the radii; all of them, if the sets differ."""
    known = ("norm unknown" if found.settings is None else NORMS[found.settings.norm] for found in sets)
    return " or ".join(dict.fromkeys(known))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
