"""A table or figure of the paper beside what was run here: rows with both numbers, and the settings that differ.

What is run is data: a `Job` names a command and its options, and `arquant.commands.reproduce` runs it. What a job gives is
figures by part (a method of a benchmark, a network): plain numbers in the units of the paper's tables.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Literal

from arquant.reporting.charts import Chart, Series
from arquant.reporting.reproduction_scales import PAPER_SETTINGS, Scale
from arquant.reporting.tables import Table

Kind = Literal["benchmark", "longer", "adversarial", "attacks", "costs"]
Figures = Mapping[str, Any]
"""of one part of a job: numbers by the names of QUANTITIES, and the policy as pairs of layer and widths"""
Results = Mapping[str, Mapping[str, Figures]]
"""of all jobs that were run: folder of the job -> part -> figures"""
FLOAT = "FP 32"
"""the group of the float network"""
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
QUANTITIES: dict[str, tuple[str, str]] = {
    "acr": ("ACR", "{:.3f}"),
    "accuracy": ("accuracy %", "{:.1f}"),
    **{f"r{radius:g}": (f"r = {radius:g} %", "{:.1f}") for radius in RADII},
    **{f"d{radius:g}": (f"Δ at r = {radius:g}, %", "{:+.1f}") for radius in RADII},
    "gbops": ("GBOPs", "{:.4g}"),
    "percent": ("% of float BOPs", "{:.2f}"),
    "mib": ("MiB", "{:.4g}"),
    "ms": ("latency ms", "{:.2f}"),
    "hours": ("search h", "{:.5g}"),
    "final_hours": ("fine-tuning and certificates h", "{:.5g}"),
    "steps": ("training steps of the search", "{:,.0f}"),
    "epsilon": ("distance", "{:g}"),
    "plain": ("right %", "{:.1f}"),
    "attacked": ("right under attack %", "{:.1f}"),
    "bits": ("bits, first to last layer (w/a)", "{}"),
}
"""name -> heading and format; BOPs by the paper's convention, MiB of the weights"""
DIFFERENCE = "Δ: difference from the float network."


@dataclass(frozen=True, eq=False)
class Job:
    """Something to run, in parts that rows ask for: a method of a benchmark, a width of a network.

    Attributes:
        folder: of its own, below the output folder; jobs of one folder are the same, and targets share their parts.
        options: of the command, as plain data, but for the parts.
        after: the job whose part of the same name it takes up.
    """

    folder: str
    kind: Kind
    options: Mapping[str, Any] = field(default_factory=dict)
    after: "Job | None" = None


@dataclass(frozen=True)
class Row:
    """A row of the paper's table or a point of its figure.

    Attributes:
        label: as the paper names it, with what it stands for here.
        paper: its numbers.
        job, part: where our numbers come from; no job where there are none at this scale, which `why` explains.
        group: rows of one group are one curve of a figure.
        panel: of the figure.
    """

    label: str
    paper: Mapping[str, float] = field(default_factory=dict)
    job: Job | None = None
    part: str = ""
    group: str = ""
    why: str = ""
    panel: str = ""


@dataclass(frozen=True)
class Target:
    """A table or figure of the paper.

    Attributes:
        place: its label in arq.tex.
        rows: for a scale, what to run and what the paper has.
        columns: which quantities are shown.
        differs: settings that differ from the paper's at every scale, as (what, paper, here).
        axes: of a figure: pairs of quantities, across and upwards.
    """

    name: str
    title: str
    place: str
    columns: tuple[str, ...]
    rows: Callable[[Scale], Sequence[Row]]
    differs: tuple[tuple[str, str, str], ...] = ()
    axes: tuple[tuple[str, str], ...] = ()

    def jobs(self, scale: Scale) -> list[tuple[Job, list[str]]]:
        """Return what must be run, and which parts of it, in order."""
        found: dict[str, tuple[Job, list[str]]] = {}
        for row in self.rows(scale):
            for job in () if row.job is None else (row.job.after, row.job):
                if job is not None:
                    parts = found.setdefault(job.folder, (job, []))[1]
                    parts += [row.part] * (row.part not in parts)
        return sorted(found.values(), key=lambda each: each[0].after is not None)


def tables_of(target: Target, scale: Scale, results: Results) -> tuple[Table, Table]:
    """Return the table, with the paper's number beside each of ours, and the settings that differ."""
    rows = target.rows(scale)
    pairs = [[_pair(name, row, figures_of(row, results)) for name in target.columns] for row in rows]
    shown = [place for place in range(len(target.columns)) if any(cells[place] != "–" for cells in pairs)]
    body = tuple((row.label, *(cells[i] for i in shown)) for row, cells in zip(rows, pairs, strict=True))
    headings = tuple(QUANTITIES[target.columns[i]][0] for i in shown)
    whys = dict.fromkeys(row.why for row in rows if row.why)
    caption = " ".join([
        f"{target.place} of the paper at scale {scale.name}: {scale.about}. In each cell our number, then the paper's in "
        "brackets; – where there is none. BOPs by the paper's convention.", *_explained(headings), *whys,
    ])  # fmt: skip
    return Table(target.title, ("", *headings), body, caption), _settings(target, scale)


def _explained(headings: Sequence[str]) -> list[str]:
    return [DIFFERENCE] if any(heading.startswith("Δ") for heading in headings) else []


def figures_of(row: Row, results: Results) -> Figures:
    """Return our numbers of a row; none where it is not run, or failed."""
    return {} if row.job is None else results.get(row.job.folder, {}).get(row.part, {})


def _pair(name: str, row: Row, found: Figures) -> str:
    number = QUANTITIES[name][1]
    ours, theirs = found.get(name), row.paper.get(name)
    if ours is None and theirs is None:
        return "–"
    spread = found.get(f"{name}_sd")
    mine = "–" if ours is None else number.format(ours) + ("" if spread is None else f" ± {number.format(spread)}")
    return mine if theirs is None else f"{mine} ({number.format(theirs)})"


def _settings(target: Target, scale: Scale) -> Table:
    """Return what differs: of the protocol only if networks are trained and certified, of attacks if there are some."""
    here, kinds = scale.settings(), {job.kind for job, _ in target.jobs(scale)}
    rows = [(name, stated, here[name]) for name, stated in PAPER_SETTINGS.items() if stated != here[name]]
    attacked = [("attacked", "not stated", scale.attacked)]
    found = rows if kinds - {"costs", "attacks"} else attacked if "attacks" in kinds else []
    return Table("Settings that differ", ("", "paper", "here"), (*target.differs, *found))


def charts_of(target: Target, scale: Scale, results: Results) -> list[Chart]:
    """Return the figure, a chart for each panel and pair of axes that have points: ours by group, the paper's hollow."""
    rows = target.rows(scale)
    panels = list(dict.fromkeys(row.panel for row in rows))
    found = []
    for across, up in target.axes:
        for panel in panels:
            series = _series([row for row in rows if row.panel == panel], across, up, results)
            if series:
                title = f"{target.title}{', ' * bool(panel)}{panel}"
                key = "-".join(
                    filter(None, (target.name, up if len(target.axes) > 1 else "", panel.replace("σ ", "sigma-")))
                )
                headings = (QUANTITIES[across][0], QUANTITIES[up][0])
                caption = " ".join(["The table has the same data.", *_explained(headings)])
                found.append(Chart(key, title, caption, *headings, tuple(series), (), ()))
    return found


def _series(rows: Sequence[Row], across: str, up: str, results: Results) -> list[Series]:
    """Return our points and the paper's, by group; the float network, which costs far more, is a line over all others."""
    sources: tuple[tuple[str, Callable[[Row], Figures]], ...] = (
        ("", lambda row: figures_of(row, results)),
        (" (paper)", lambda row: row.paper),
    )
    groups = list(dict.fromkeys(row.group for row in rows))
    points = {
        (group, suffix): [
            (f"{row.label}{suffix}", float(f[across]), float(f[up]))
            for row in rows
            if row.group == group and (f := figures(row)).get(across) is not None and f.get(up) is not None
        ]
        for suffix, figures in sources
        for group in groups
    }
    others = [x for (group, _), these in points.items() for _, x, _ in these if group != FLOAT]
    series = []
    for (group, suffix), these in points.items():
        name, colour, faint = group + suffix, groups.index(group), bool(suffix)
        tips = tuple(f"{label}: {y:g} at {x:g}" for label, x, y in these)
        if these and group != FLOAT:
            xs, ys = tuple(x for _, x, _ in these), tuple(y for _, _, y in these)
            series.append(Series(name, "points", xs, ys, tips, colour=colour, faint=faint))
        elif these and others:
            ends, level = (0.9 * min(others), 1.1 * max(others)), these[0][2]
            series.append(Series(name, "line", ends, (level, level), tips[:1] * 2, colour=colour, faint=faint))
    return series


def policy_charts(target: Target, scale: Scale, results: Results) -> list[Chart]:
    """Return the widths of every layer by row, in one chart: weights as full points, inputs as hollow ones."""
    known = [(row, dict(f["policy"])) for row in target.rows(scale) if (f := figures_of(row, results)).get("policy")]
    if not known:
        return []
    layers = tuple(known[0][1])
    series = []
    for colour, (row, policy) in enumerate(known):
        for place, what in enumerate(("weights", "inputs")):
            bits = [int(policy[layer].removeprefix("w").split("a")[place]) for layer in layers]
            tips = tuple(
                f"{layer}: {width} bits, {what}, {row.label}" for layer, width in zip(layers, bits, strict=True)
            )
            xs, ys = tuple(map(float, range(len(layers)))), tuple(map(float, bits))
            series.append(Series(f"{row.label}, {what}", "points", xs, ys, tips, colour=colour, faint=bool(place)))
    body = tuple((layer, *(policy[layer] for _, policy in known)) for layer in layers)
    columns = ("layer", *(row.label for row, _ in known))
    axes = ("layer", "bits")
    return [
        Chart(target.name, target.title, "", *axes, tuple(series), columns, body, ticks=layers, whole=True, y_max=8.0)
    ]


def to_csv(target: Target, scale: Scale, results: Results) -> str:
    """Write our numbers and the paper's, unrounded, one row each; an empty field is unknown."""
    buffer = StringIO()
    names = [name for name in target.columns if name != "bits"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["row", *(f"{name}_{side}" for name in names for side in ("ours", "paper"))])
    for row in target.rows(scale):
        found = figures_of(row, results)
        cells = [value for name in names for value in (found.get(name), row.paper.get(name))]
        writer.writerow([row.label, *("" if value is None else value for value in cells)])
    return buffer.getvalue()
