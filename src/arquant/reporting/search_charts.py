"""Figures of a search: the bits it chose, its learning curve, its candidates by cost, and sensitivities of layers."""

import math
from collections.abc import Sequence

import numpy as np

from arquant.reporting.charts import Chart, Line, Series, neutral, number
from arquant.reporting.model import Entry, Report
from arquant.reporting.search_content import Candidate, Search
from arquant.searching.sensitivity_table import KINDS, SensitivityTable

Scored = Sequence[tuple[Candidate, float]]
_Z = 1.96


def bits(entry: Entry, place: int) -> Chart | None:
    """Draw the widths of each layer; hovering and the table add its share of the cost."""
    names, places = tuple(layer.name for layer in entry.layers), tuple(map(float, range(len(entry.layers))))
    if entry.role == "uniform" or not names:  # a uniform network's bars are all alike
        return None
    costs = [
        "".join(
            f", {share:.1%} of the {what}"
            for share, what in ((layer.bops_share, "bit operations"), (layer.bytes_share, "weight bytes"))
            if share is not None
        )
        for layer in entry.layers
    ]
    series = tuple(
        Series(
            what, "bars", places, tuple(float(value) for value in values),
            tuple(f"{name}: {value}-bit {what}{cost}" for name, value, cost in zip(names, values, costs, strict=True)),
            colour=entry.colour, faint=faint,
        )
        for what, values, faint in (
            ("weights", [layer.w for layer in entry.layers], False),
            ("activations", [layer.a for layer in entry.layers], True),
        )
    )  # fmt: skip
    rows = tuple(
        (layer.name, str(layer.w), str(layer.a), _share(layer.bops_share), _share(layer.bytes_share))
        for layer in entry.layers
    )
    return Chart(
        f"bits-{place}", f"Bits per layer: {entry.name}",
        "Along the network, in the order in which its layers run. A layer with many bits and a small share of the cost is "
        "cheap to protect; hover over a bar for its share.",
        "layer", "bits", series,
        ("layer", "weight bits", "activation bits", "of the bit operations", "of the weight bytes"), rows, ticks=names,
        whole=True, y_max=8.0,
    )  # fmt: skip


def learning(report: Report, place: int) -> Chart | None:
    """Draw the score of every candidate with its interval, the best so far, and the winner."""
    search = report.searches[place]
    scored = [(c, c.score) for c in search.candidates if c.score is not None and c.outcome != "repeated"]
    if not scored:
        return None
    several = f": {search.folder}" if len(report.searches) > 1 else ""
    why = " ".join(winner.why for winner in search.winners)
    return Chart(
        f"learning-{place + 1}" if place else "learning", f"The search's learning curve{several}",
        f"Each point is a candidate, scored with few votes on the search images. {_lengths(scored)}{why}{_noise(scored)} "
        "Scores rank candidates and prove nothing.",
        "candidate", "estimated ACR" if scored[0][0].estimate.startswith("acr") else f"score ({scored[0][0].estimate})",
        (*_candidates(scored), *_best_so_far(search, scored), *_winners(report, search, scored)),
        ("candidate", "bits", "budget", "outcome", "score", "standard error", "estimated ACR", "billion bit operations"),
        tuple(
            (str(c.number), c.widths, c.budget, c.outcome, number(c.score), number(c.standard_error), number(c.acr),
             number(c.bops and c.bops / 1e9))
            for c in search.candidates
        ),
    )  # fmt: skip


def _candidates(scored: Scored) -> list[Series]:
    """Draw the candidates: those of each length of fine-tuning apart, and those that were dropped."""
    lengths = sorted({c.steps or 0 for c, _ in scored if c.outcome == "scored"})
    groups = [
        (f"candidates after {steps:,} steps" if len(lengths) > 1 else "candidates", neutral(3 * (place < len(lengths) - 1)),
         [(c, score) for c, score in scored if c.outcome == "scored" and (c.steps or 0) == steps])
        for place, steps in enumerate(lengths)
    ]  # fmt: skip
    groups.append(("dropped early", neutral(4), [(c, score) for c, score in scored if c.outcome == "abandoned"]))
    series = []
    for words, colour, chosen in groups:
        xs, ys = tuple(float(c.number) for c, _ in chosen), tuple(score for _, score in chosen)
        tips, faint = tuple(_tip(c, score) for c, score in chosen), words == "dropped early"
        series.append(Series(words, "points", xs, ys, tips, *_spans(chosen), colour=colour, faint=faint))
    return [each for each in series if each.x]


def _tip(candidate: Candidate, score: float) -> str:
    margin = "" if candidate.standard_error is None else f" ± {_Z * candidate.standard_error:.3f}"
    steps = "" if candidate.steps is None else f" after {candidate.steps:,} steps"
    return f"candidate {candidate.number} ({candidate.widths}): {score:.3f}{margin}{steps}, within {candidate.budget}"


def _spans(chosen: Scored) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if any(c.standard_error is None for c, _ in chosen):
        return (), ()
    low, high = (tuple(score + side * _Z * (c.standard_error or 0) for c, score in chosen) for side in (-1, 1))
    return low, high


def _lengths(scored: Scored) -> str:
    """Say that candidates were fine-tuned for different times, if so."""
    several = len({c.steps or 0 for c, _ in scored if c.outcome == "scored"}) > 1
    return "Scores after fine-tunings of different length do not compare; the longest decide. " if several else ""


def _noise(scored: Scored) -> str:
    """Say whether the order of the candidates means much."""
    longest = max(c.steps or 0 for c, _ in scored)
    complete = [(c, score) for c, score in scored if c.outcome == "scored" and (c.steps or 0) == longest]
    errors = [c.standard_error for c, _ in complete if c.standard_error is not None]
    if len(complete) < 2 or not errors:
        return ""
    spread = max(score for _, score in complete) - min(score for _, score in complete)
    margin = _Z * float(np.median(errors))
    if 2 * margin <= spread:
        return f" Bars: 95 % intervals over images (± {margin:.2f}); the scores spread over {spread:.2f}."
    return (
        f" Bars: 95 % intervals over images. At ± {margin:.2f} they are as wide as the differences or wider (the "
        f"scores spread over {spread:.2f}): candidates share images and noise, which helps to rank them, but the order may "
        "change in another run."
    )


def _best_so_far(search: Search, scored: Scored) -> list[Series]:
    series = []
    for place, budget in enumerate(search.budgets):
        mine = [(c, score) for c, score in scored if budget in c.within and c.outcome == "scored"]
        path: list[tuple[float, float]] = []
        steps, best = 0, -math.inf
        for c, score in mine:
            if (c.steps or 0) > steps:
                steps, best, x = c.steps or 0, score, float(c.number)  # scores after more steps are of another kind
            elif (c.steps or 0) == steps:
                best, x = max(best, score), float(c.number)
            else:
                continue
            path += [(x, path[-1][1]), (x, best)] if path else [(x, best)]
        if path:
            path.append((float(search.candidates[-1].number), best))
            xs, ys = tuple(x for x, _ in path), tuple(y for _, y in path)
            series.append(
                Series(f"best so far, {budget}", "line", xs, ys, (), path=tuple(path), colour=neutral(1 + place))
            )
    return series


def _winners(report: Report, search: Search, scored: Scored) -> list[Series]:
    """Mark the winners, in the colour of the model that was made of them."""
    found = [(winner, c, score) for winner in search.winners for c, score in scored if c.number == winner.number]
    own = [entry.colour for entry in report.entries if entry.search is search and entry.role == "result"]
    if not found:
        return []
    xs, ys = tuple(float(c.number) for _, c, _ in found), tuple(score for _, _, score in found)
    tips = tuple(f"the winner within {winner.budget}: {_tip(c, score)}" for winner, c, score in found)
    return [Series("winner" + "s" * (len(found) > 1), "points", xs, ys, tips, colour=own[0] if own else 0)]


def candidates_by_cost(report: Report, place: int) -> Chart | None:
    """Draw the candidates of a search within several budgets by their cost, uniform pairs beside the others."""
    search = report.searches[place]
    known = [
        (c, c.acr, c.bops / 1e9) for c in search.candidates
        if c.acr is not None and c.bops is not None and c.outcome == "scored"
    ]  # fmt: skip
    uniform = [each for each in known if each[0].is_uniform]
    if len(search.budgets) < 2 or not uniform:
        return None
    series = []
    for words, colour, chosen in (
        ("mixed widths", neutral(3), [each for each in known if not each[0].is_uniform]),
        ("uniform pairs", neutral(0), uniform),
    ):
        tips = tuple(f"{_tip(c, acr)}, {x:.3g} billion bit operations" for c, acr, x in chosen)
        xs, ys = tuple(x for _, _, x in chosen), tuple(acr for _, acr, _ in chosen)
        series.append(Series(words, "points", xs, ys, tips, colour=colour, faint=words != "uniform pairs"))
    costs = [x for _, _, x in known]
    rows = tuple((c.widths, str(c.number), f"{x:.3f}", number(acr), number(c.standard_error)) for c, acr, x in known)
    return Chart(
        f"candidates-{place + 1}", "What the search saw: estimates by cost",
        "Every candidate that was scored on all its votes. The uniform pairs (all searched layers alike) are what a mixed "
        "network must beat. These are estimates on the search images, after short fine-tunings; they do not compare with "
        "the certified ACRs above.",
        "billion bit operations per image", "estimated ACR", tuple(each for each in series if each.x),
        ("bits", "candidate", "billion bit operations", "estimated ACR", "standard error"), rows,
        log_x=max(costs) > 8 * min(costs) > 0,
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
    for place, width in enumerate(widths):
        shift = 0.6 * ((place + 0.5) / len(widths) - 0.5)
        known = [
            (at + shift, name, table.values[name][kind][width], table.margin(name, kind, width))
            for at, name in enumerate(names)
            if width in table.values[name].get(kind, {})
        ]
        tips = tuple(f"{name}, {width}-bit {what}: loses {loss:.3f} ± {margin:.3f}" for _, name, loss, margin in known)
        lows, highs = (tuple(loss + side * margin for _, _, loss, margin in known) for side in (-1, 1))
        xs, ys = tuple(x for x, *_ in known), tuple(loss for _, _, loss, _ in known)
        colour = neutral(place)
        series.append(Series(f"{width} bits", "points", xs, ys, tips, lows, highs, colour=colour, faint=place % 2 == 1))
    rows = tuple((name, *(number(table.values[name].get(kind, {}).get(width)) for width in widths)) for name in names)
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
        ("layer", *(f"{width} bits" for width in widths)), rows, ticks=names, lines=(Line(0.0, "", level=True),),
    )  # fmt: skip


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
