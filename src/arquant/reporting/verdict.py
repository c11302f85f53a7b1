"""The first words of a report: the question, what to ship, what it costs, which controls are missing, what limits it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arquant.certificates.resampling import MINIMUM_IMAGES, Interval
from arquant.reporting.limits import limits
from arquant.reporting.model import Difference, Entry, Report
from arquant.reporting.result_charts import outcome_counts

NOTICED = 0.02
"""a loss of clean accuracy that is said even where its interval holds 0"""


@dataclass(frozen=True)
class Verdict:
    """Sentences by question; an empty list has nothing to say.

    Attributes:
        ship: what to ship, and what to beware of.
        cost: of one guaranteed prediction.
        controls: fair controls that are here or missing.
        limits: what limits the result, and what to do next; the first one limits most.
    """

    question: str
    ship: tuple[str, ...]
    cost: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


def verdict_of(report: Report) -> Verdict:
    """Return the verdict on the main entry of a report."""
    main = report.main
    if main is not None and main.refused:
        return Verdict(_question(report), (f"The certificates of {main.name} are refused: {main.refused}.",))
    if main is None or main.certificates is None:
        return Verdict(_question(report), ("There are no finished certificates yet: nothing can be shipped.",))
    ship = (*_ship(report, main), *_beware(report, main))
    return Verdict(_question(report), ship, _cost(report, main), _controls(report, main), limits(report, main))


def _question(report: Report) -> str:
    main = report.main
    if main is None:
        return "What does each layer lose at each width?"
    settings = None if main.certificates is None else main.certificates.settings
    noise = "" if settings is None else f" under noise of σ = {settings.sigma:g}"
    budgets = list(dict.fromkeys(budget for search in report.searches for budget in search.budgets))
    if budgets:
        within = (
            budget_words(budgets[0]) if len(budgets) == 1 else f"each of {len(budgets)} budgets ({', '.join(budgets)})"
        )
        return f"Which bit-widths of {main.model_name} keep most of its certified robustness{noise}, within {within}?"
    if len(report.certified) > 1:
        return f"Which of these {len(report.certified)} models has the most certified robustness{noise}?"
    return f"How robust is {main.model_name}, smoothed{noise}?"


def budget_words(budget: str) -> str:
    """Return a budget in words: `bops<=3bit` is as many bit operations as with 3 bits everywhere."""
    found = re.fullmatch(r"bops(?:@paper)?<=([\d.]+)bit", budget)
    return f"the bit operations of {found[1]} bits everywhere" if found else f"the budget {budget}"


def _ship(report: Report, main: Entry) -> list[str]:
    known = [d for d in report.differences if d.acr is not None]
    own = [d for d in known if d.second == main.name]
    points = [d for d in known if report.entry(d.first).role == "uniform"]
    if len(points) > 1:
        return [_by_budget(report, points)]
    others = [d for d in known if d.first == main.name and d.images >= MINIMUM_IMAGES]
    if not own and others:
        return [_best_of(report, main, others)]
    if not own:
        return [f"{main.name} stands alone here: nothing comparable was certified beside it. {_figures(report, main)}"]
    if own[0].images < MINIMUM_IMAGES:
        return [f"{own[0].images} images are too few to choose by. {_figures(report, main)}"]
    uniform = next((d for d in own if report.entry(d.first).role == "uniform"), None)
    first = uniform or own[0]
    other, gap, acr = _called(first.first), _gap(report, first.acr), "ACR (average certified radius)"
    share = "" if uniform or main.costs.percent is None else f" with {main.costs.percent:.2g} % of the bit operations"
    if first.verdict == "larger":
        text = f"Ship {main.name}:{share} its {acr} is larger than that of {other} ({gap})."
    elif first.verdict == "smaller" and uniform:
        text = f"Ship {other}: the {acr} of {main.name} is smaller ({gap})."
    elif first.verdict == "smaller":
        text = f"Ship {main.name} only if its cost matters:{share} its {acr} is smaller than that of {other} ({gap})."
    elif uniform:
        text = f"Ship either: {main.name} and {other} tie in {acr}, {gap}; the uniform one is simpler."
    else:
        text = f"Ship {main.name}:{share} it ties with {other} in {acr}, {gap}."
    return [text, *_cheaper(report, main, first)]


def _called(name: str) -> str:
    return f"the {name}" if name.startswith("float network") else name


def _best_of(report: Report, main: Entry, others: list[Difference]) -> str:
    """Choose among results that no control was certified beside."""
    better = [d for d in others if d.verdict == "larger" and d.acr is not None]
    if not better:
        return f"Ship {main.name}: none of the others has a larger ACR (average certified radius)."
    best = max(better, key=lambda d: d.acr.value if d.acr is not None else 0.0)
    return (
        f"Ship {best.second}: its ACR (average certified radius) is larger than that of {_called(main.name)} "
        f"({_gap(report, best.acr)})."
    )


def _by_budget(report: Report, points: list[Difference]) -> str:
    better, worse = (sum(d.verdict == word for d in points) for word in ("larger", "smaller"))
    return (
        f"Choose by cost: of {len(points)} budgets, the network that the search found has a larger ACR (average certified "
        f"radius) than the uniform one of the same budget in {better}, a smaller one in {worse}, and ties in "
        f"{len(points) - better - worse}. See “ACR against cost”."
    )


def _figures(report: Report, main: Entry) -> str:
    found = main.certificates
    if found is None or main.acr is None:
        return ""
    return (
        f"Its ACR (average certified radius) is {report.acr_text(main.acr, len(found))}; {found.clean_accuracy:.1%} of "
        f"{len(found):,} images are right and certified at some radius."
    )


def _gap(report: Report, gap: Interval | None) -> str:
    return "" if gap is None else report.acr_text(gap, MINIMUM_IMAGES, signed=True)


def _cheaper(report: Report, main: Entry, said: Difference) -> list[str]:
    """Say how the main entry stands to float networks, at which share of their bit operations."""
    own = [d for d in report.differences if d.second == main.name and d is not said]
    found = [d for d in own if report.entry(d.first).role in ("float", "tuned")]
    if not found or main.costs.percent is None or not main.layers:
        return []
    words = {"larger": "a larger ACR than", "smaller": "a smaller ACR than", "a tie": "about the ACR of"}
    each = [f"{words[d.verdict]} {_called(d.first)} ({_gap(report, d.acr)})" for d in found if d.verdict in words]
    return [f"With {main.costs.percent:.2g} % of the bit operations it has {' and '.join(each)}."] if each else []


def _beware(report: Report, main: Entry) -> list[str]:
    """Say what one figure hides: losses on clean images, certificates for a wrong class."""
    texts = []
    for d in report.differences:
        gap = d.clean
        if d.second != main.name or gap is None or d.images < MINIMUM_IMAGES:
            continue
        if gap.high < 0 or gap.value <= -NOTICED:
            texts.append(
                f"Beware: on clean images it is {-100 * gap.value:.0f} points below {_called(d.first)} "
                f"({_points(gap)}{', which may be chance' if gap.high >= 0 else ''}; ACR alone hides this)."
            )
    if main.certificates is not None:
        *_, wrong, abstained = outcome_counts(main.certificates, 0.0)
        claimed = len(main.certificates) - abstained
        if wrong:
            texts.append(
                f"{wrong:,} of its {claimed:,} certificates are for a wrong class: a certificate proves that an answer is "
                "stable, not that it is right."
            )
    return texts


def _points(gap: Interval) -> str:
    return f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def _cost(report: Report, main: Entry) -> tuple[str, ...]:
    """Say what one guaranteed prediction costs, and why bit operations suggest more."""
    found, ms = main.certificates, main.costs.ms_per_vote
    if found is None or ms is None:
        return ()
    votes = sum(c.n + c.n0 for c in found.certificates) / len(found)
    seconds = votes * ms / 1000
    engine = _mapping(main.provenance.get("engine"))
    named = f"{engine.get('engine') or ''} {engine.get('precision') or ''}".strip()
    how = ", ".join(filter(None, [named, _counted(engine.get("threads"))]))
    texts = [
        f"One guaranteed prediction is {votes:,.0f} votes × {ms:.2g} ms = {seconds:.2g} s, as measured while certifying"
        f"{f' ({how}, noise included)' if how else ''}. One vote alone guarantees nothing."
    ]
    base = next((e for e in report.certified if e.role in ("float", "tuned") and _same_machine(e, main)), None)
    if base is not None and base is not main and base.costs.ms_per_vote is not None:
        texts.append(_faster(main, base, base.costs.ms_per_vote / ms, engine))
    return tuple(texts)


def _counted(threads: Any) -> str:
    return f"{threads} thread{'s' * (threads != 1)}" if isinstance(threads, int) else ""


def _faster(main: Entry, base: Entry, ratio: float, engine: Mapping[str, Any]) -> str:
    text = f"A vote of {_called(base.name)} took {ratio:.1f} times as long."
    if main.costs.percent is None:
        return text
    kernels = (
        "8-bit kernels, whatever the widths" if engine.get("precision") == "int8" else "the kernels of this engine"
    )
    return (
        f"{text} The {main.costs.percent:.2g} % of the bit operations would suggest {100 / main.costs.percent:.0f} times: that "
        f"needs hardware with arithmetic of such widths. Here the votes ran on {kernels}."
    )


def _same_machine(first: Entry, second: Entry) -> bool:
    """Tell whether times of both can be compared: the same processor and as many threads."""
    found = [
        (_mapping(e.provenance.get("machine")).get("processor"), _mapping(e.provenance.get("engine")).get("threads"))
        for e in (first, second)
    ]
    return found[0] == found[1]


def _controls(report: Report, main: Entry) -> tuple[str, ...]:
    """Say which fair controls are missing."""
    if not main.layers:
        return ()
    texts = []
    if main.search is not None and main.role == "result":
        texts += [f"Missing control: {why}." for why in main.search.facts.get("missing_controls", ())]
        texts.append(_uniform_control(report, main))
    if not any(entry.role == "tuned" for entry in report.certified):
        texts.append(
            "Missing control: the float network fine-tuned for as long. Part of what is gained over the float network may "
            "come from the fine-tuning, not from the widths."
        )
    return tuple(text for text in texts if text)


def _uniform_control(report: Report, main: Entry) -> str:
    search = main.search
    best = None if search is None else search.best_uniform
    if search is None or best is None:
        return "Missing control: the search scored no uniform pair (the same two widths in all layers)."
    margin = "" if best.standard_error is None else f" ± {1.96 * best.standard_error:.2f}"
    if best.widths == main.widths:
        return f"The winner is itself the best uniform pair of the search ({best.widths})."
    if any(entry.widths == best.widths for entry in report.certified if entry.search is search):
        return f"The best uniform pair of the search, {best.widths}, is certified here too."
    numbers = {winner.number for winner in search.winners}
    won = next((c for c in search.candidates if c.number in numbers and c.score is not None), None)
    beside = "" if won is None else f", the winner {won.score:.2f}"
    return (
        f"Missing control: the best uniform pair of the search, {best.widths}, was not certified. It scored {best.score:.2f}"
        f"{margin} in the search{beside} (estimates): whether mixed widths beat it is not shown here "
        f"(arquant quantize MODEL DATA --bits {best.widths} --sigma X --out NEW, then finetune and certify NEW)."
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
