"""Figures of what was certified: outcomes by model, differences, certified accuracy, p_A and ACR against cost."""

from collections.abc import Sequence

import numpy as np

from arquant.certificates.certificate import Certificate, CertificateSet
from arquant.certificates.metrics import mismatches
from arquant.certificates.resampling import MINIMUM_IMAGES, bootstrap_mean, shown
from arquant.reporting.charts import Chart, Line, Series
from arquant.reporting.model import NORMS, Entry, Report

STEPS = 48
"""radii at which hovering tells the certified accuracy"""
PIXELS = 500
"""steps of a curve at most; radii are rounded down to them"""
BINS = 20
BANDS = 4
"""models at most whose curves have bands"""
SURE = (0.5, 0.7, 0.9, 0.99)


def outcomes(report: Report) -> Chart | None:
    """Draw one bar per model: right with a large radius, right with a small one, wrong but certified, abstained."""
    known, split = _certified(report), report.split_radius
    if not known:
        return None
    counted = [outcome_counts(found, split) for _, found in known]
    totals = [len(found) for _, found in known]
    series, edges = [], np.zeros(len(known))
    names = (f"right, radius ≥ {split:g}", f"right, radius < {split:g}", "wrong class, yet certified", "abstained")
    for look, name in enumerate(names):
        shares = np.array([counts[look] / total for counts, total in zip(counted, totals, strict=True)])
        tips = tuple(
            f"{entry.name}: {counts[look]:,} of {total:,} images {name}"
            for (entry, _), counts, total in zip(known, counted, totals, strict=True)
        )
        places, ends = tuple(map(float, range(len(known)))), edges + shares
        series.append(
            Series(
                name, "stack", places, tuple(map(float, shares)), tips, tuple(map(float, edges)), tuple(map(float, ends)),
                colours=tuple(entry.colour for entry, _ in known), look=look,
            )
        )  # fmt: skip
        edges = ends
    rows = tuple(
        (entry.name, *(f"{count:,}" for count in counts)) for (entry, _), counts in zip(known, counted, strict=True)
    )
    return Chart(
        "outcomes", "What became of the images", _wrong_words(known) + " A certificate says that the answer is stable, not "
        "that it is right.",
        "share of all images", "", tuple(series), ("model", *names), rows, ticks=tuple(e.name for e, _ in known),
        half=True, percent=True,
    )  # fmt: skip


def outcome_counts(found: CertificateSet, split: float) -> tuple[int, int, int, int]:
    """Return how many images are right with at least `split`, right with less, wrong but certified, and abstained."""
    large = int(found.certified(split).sum())
    right, abstained = int(found.correct.sum()), sum(c.abstained for c in found.certificates)
    return large, right - large, len(found) - right - abstained, abstained


def _wrong_words(known: Sequence[tuple[Entry, CertificateSet]]) -> str:
    parts = []
    for entry, found in known:
        *_, wrong, abstained = outcome_counts(found, 0.0)
        parts.append(f"{wrong:,} of {len(found) - abstained:,} ({entry.name})")
    return f"Certificates for a wrong class: {', '.join(parts)}."


def differences(report: Report) -> Chart | None:
    """Draw the paired differences of certified accuracy between the main entry and the others, by radius."""
    main = report.main
    known = [d for d in report.differences if d.certified_accuracy]
    own = [d for d in known if main is not None and d.second == main.name]
    shown_ones = own or [d for d in known if main is not None and d.first == main.name]
    if main is None or not shown_ones:
        return None
    top, series, rows = max(report.radii[-1], report.large_radius), [], []
    for place, each in enumerate(shown_ones):
        other = each.first if own else each.second
        gaps = {r: gap for r, gap in each.certified_accuracy.items() if r <= top and not main.unprovable(r)}
        shift = 0.02 * (place - (len(shown_ones) - 1) / 2)
        tips = tuple(
            f"{each.second} minus {each.first} at radius {r:g}: {shown(gap, each.images, '{:+.1f}', 100)} points"
            for r, gap in gaps.items()
        )
        ys, lows, highs = (tuple(100 * gap[part] for gap in gaps.values()) for part in (0, 1, 2))
        bars = (lows, highs) if each.images >= MINIMUM_IMAGES else ((), ())
        xs, name = tuple(r + shift for r in gaps), f"against {other}" if own else other
        series.append(Series(name, "points", xs, ys, tips, *bars, colour=report.entry(other).colour))
        rows += [(other, f"{r:g}", *(f"{100 * part:+.1f}" for part in gap)) for r, gap in gaps.items()]
    whose = f"Gained and lost by {main.name}" if own else f"Gained and lost against {main.name}"
    whose += f", {series[0].name}" if len(series) == 1 else ""
    return Chart(
        "differences", whose,
        "Difference of certified accuracy at each radius, paired by image, with its 95 % interval over images. Above the "
        "line is better, below it is worse; an interval that crosses the line is a tie.",
        "radius", "points of certified accuracy", tuple(series), ("model", "radius", "difference", "low", "high"),
        tuple(rows), half=True, lines=(Line(0.0, "", level=True),),
    )  # fmt: skip


def accuracy(report: Report) -> Chart | None:
    """Draw certified accuracy against radius, with bands over images and the limit of n votes."""
    known = _certified(report)
    if not known:
        return None
    limits = {entry.limit: entry for entry, _ in known if entry.limit is not None}
    top = max([*(float(found.credited.max()) for _, found in known), *limits, 0.1])
    grid = np.linspace(0, top * 1.12, STEPS + 1)
    series = []
    for entry, found in known:
        table = np.column_stack([found.certified(float(r)) for r in grid])
        banded = len(known) <= BANDS and len(found) >= MINIMUM_IMAGES
        spans = bootstrap_mean(table) if banded else []
        shares = tuple(map(float, table.mean(axis=0)))
        tips = tuple(_curve_tip(entry, float(r), share) for r, share in zip(grid, shares, strict=True))
        path = _stairs(found, float(grid[-1]))
        low, high = (tuple(span[part] for span in spans) for part in (1, 2))
        xs = tuple(map(float, grid))
        series.append(Series(entry.name, "line", xs, shares, tips, low, high, path=path, colour=entry.colour))
    rows = tuple((f"{r:g}", *(provable_share(entry, found, r) for entry, found in known)) for r in _tabled(report))
    lines = tuple(
        Line(limit, f"n = {_n(entry):,} proves no more", closed=limit == max(limits)) for limit, entry in limits.items()
    )
    banded_words = " Bands: 95 % intervals over images." if len(known) <= BANDS else ""
    return Chart(
        "accuracy", "Certified accuracy against radius",
        "The share of all images that are right with at least this radius. Wrong and abstained images count as 0. The area "
        f"under a curve is its ACR.{banded_words}{_limit_words(known)}",
        f"radius ({_norms([found for _, found in known])}, units of the pixel range)", "certified accuracy", tuple(series),
        ("radius", *(entry.name for entry, _ in known)), rows, lines=lines, percent=True, y_max=1.0,
    )  # fmt: skip


def provable_share(entry: Entry, found: CertificateSet, radius: float) -> str:
    """Return the certified accuracy at a radius as text, or that n votes could not have proved it."""
    if entry.unprovable(radius):
        return f"not provable with n = {_n(entry):,}"
    return f"{found.certified_accuracy(radius):.1%}"


def _tabled(report: Report) -> tuple[float, ...]:
    last = report.radii[-1]
    return (*report.radii, last + 0.25) if any(e.unprovable(last + 0.25) for e in report.certified) else report.radii


def _curve_tip(entry: Entry, radius: float, share: float) -> str:
    if entry.unprovable(radius):
        return f"{entry.name}: radius {radius:.3f} is not provable with n = {_n(entry):,}"
    return f"{entry.name}: {share:.1%} at radius {radius:.3f}"


def _limit_words(known: Sequence[tuple[Entry, CertificateSet]]) -> str:
    limits = dict.fromkeys((_n(entry), entry.limit) for entry, _ in known if entry.limit is not None)
    each = " and ".join(f"radii above {limit:.3f} are not provable with n = {n:,}" for n, limit in limits)
    return f" {each[0].upper()}{each[1:]} votes, however good the model is." if each else ""


def _n(entry: Entry) -> int:
    settings = None if entry.certificates is None else entry.certificates.settings
    return 0 if settings is None else settings.n


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


def vote_shares(report: Report) -> Chart | None:
    """Draw the distribution of p_A: the share of the votes that the right class had."""
    known = [(entry, shares) for entry, found in _certified(report) if len(shares := right_shares(found))]
    if not known:
        return None
    series, edges = [], np.linspace(0, 1, BINS + 1)
    for entry, shares in known:
        counts, edges = np.histogram(shares, bins=BINS, range=(0.0, 1.0))
        tips = tuple(
            f"{entry.name}: {count} of {len(shares)} images with {low:.0%} to {high:.0%} of the votes"
            for count, low, high in zip(counts, edges, edges[1:], strict=False)
        )
        middles = tuple(map(float, (edges[1:] + edges[:-1]) / 2))
        parts = tuple(float(count / len(shares)) for count in counts)
        series.append(Series(entry.name, "bars", middles, parts, tips, colour=entry.colour))
    rows = tuple((entry.name, *(f"{np.mean(shares >= least):.1%}" for least in SURE)) for entry, shares in known)
    return Chart(
        "votes", "How sure the votes were",
        "p_A is the share of an image's noisy copies that get the right class, estimated from its votes. Images right of the "
        "line are right by majority; the further right, the larger the radius. More votes help a heap at the right end; only "
        f"a better model helps the images at the left.{_without_counts(report)}",
        "p_A: share of the votes for the right class", "share of images", tuple(series),
        ("images with p_A of", *(f"at least {least:g}" for least in SURE)), rows, percent=True,
        lines=(Line(0.5, "majority"),), x_max=1.0,
    )  # fmt: skip


def right_shares(found: CertificateSet) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return for each image whose votes are recorded by class the share that its label had."""
    return np.array([dict(c.counts).get(c.label, 0) / c.n for c in found.certificates if _counted(c)])


def _counted(certificate: Certificate) -> bool:
    return certificate.n > 0 and bool(certificate.counts)


def _without_counts(report: Report) -> str:
    missing = {entry.name: sum(not _counted(c) for c in found.certificates) for entry, found in _certified(report)}
    each = ", ".join(f"{count:,} of {name}" for name, count in missing.items() if count)
    return f" Images whose votes are not recorded by class are left out: {each}." if each else ""


def pareto(report: Report) -> Chart | None:
    """Draw ACR against bit operations; the points of a search within several budgets as one family."""
    points = [
        (e.costs.bops / 1e9, e.acr, e) for e in report.certified if e.costs.bops is not None and e.acr is not None
    ]
    if len(points) < 2:
        return None
    families = _families([entry for _, _, entry in points])
    series = []
    for name, members in families.items():
        chosen = [(x, acr, e) for x, acr, e in points if e in members]
        tips = tuple(
            f"{e.name}: ACR {shown(acr, len(e.certificates or ()), '{:.3f}')} at {x:.3g} billion bit operations"
            for x, acr, e in chosen
        )
        ys, lows, highs = (tuple(acr[part] for _, acr, _ in chosen) for part in (0, 1, 2))
        xs = tuple(x for x, _, _ in chosen)
        hollow = members[0].role == "uniform"  # it may lie on what the search found
        series.append(Series(name, "points", xs, ys, tips, lows, highs, colour=members[0].colour, faint=hollow))
    groups = _comparable_groups([entry for _, _, entry in points])
    fronts = _family_lines(families, points) or _fronts(groups)
    rows = tuple((e.name, f"{x:.3f}", *(f"{part:.3f}" for part in acr)) for x, acr, e in points)
    costs = [x for x, _, _ in points]
    return Chart(
        "pareto", "ACR against cost",
        "Average certified radius with its 95 % interval over images. Up and to the left is better. "
        + _joined(groups, fronts, families=len(families) < len(points)),
        "billion bit operations per image", "ACR", (*series, *fronts),
        ("model", "billion bit operations", "ACR", "low", "high"), rows, log_x=max(costs) > 8 * min(costs) > 0,
    )  # fmt: skip


def _families(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Group the points of a search within several budgets, and their uniform controls; every other entry stands alone."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        several = entry.search is not None and len(entry.search.budgets) > 1 and entry.role in ("result", "uniform")
        name = {"result": "searched", "uniform": "uniform"}[entry.role] if several else entry.name
        found.setdefault(name, []).append(entry)
    return found


def _family_lines(families: dict[str, list[Entry]], points: Sequence[tuple[float, object, Entry]]) -> list[Series]:
    """Draw a line along each family of several points that can be compared."""
    series = []
    for name, members in families.items():
        if len(members) > 1 and len(_comparable_groups(members)) == 1:
            spots = sorted(
                (e.costs.bops / 1e9, e.acr.value) for _, _, e in points if e in members and e.costs.bops and e.acr
            )
            xs, ys = tuple(x for x, _ in spots), tuple(y for _, y in spots)
            series.append(Series(f"{name}, by budget", "line", xs, ys, (), colour=members[0].colour, faint=True))
    return series


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


def _joined(groups: list[list[Entry]], fronts: list[Series], *, families: bool) -> str:
    """Say in words which points a line joins."""
    if families and fronts:
        return "Dashed lines join what the search found within each budget, and the uniform network of each budget."
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


def _certified(report: Report) -> list[tuple[Entry, CertificateSet]]:
    return [(entry, entry.certificates) for entry in report.certified if entry.certificates is not None]


def _norms(sets: Sequence[CertificateSet]) -> str:
    """Name the norm of the radii; all of them, if the sets differ."""
    known = ("norm unknown" if found.settings is None else NORMS[found.settings.norm] for found in sets)
    return " or ".join(dict.fromkeys(known))
