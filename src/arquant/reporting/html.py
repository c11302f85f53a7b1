"""The report, and other results, as one self-contained page: no server, no network, no file beside it is needed."""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from arquant.certificates.rounding import down
from arquant.reporting.asked import asked, time_taken
from arquant.reporting.charts import Chart
from arquant.reporting.claims_text import claims, not_claimed
from arquant.reporting.figures import charts
from arquant.reporting.model import NORMS, Report
from arquant.reporting.svg import HALF, NARROW, WIDE, legend, svg
from arquant.reporting.tables import Table, tables
from arquant.reporting.trust import trust, warnings
from arquant.reporting.verdict import verdict_of
from arquant.reporting.words import TERMS, WORDS


@dataclass(frozen=True)
class Drawn:
    """A chart, drawn for screens of two widths."""

    data: Chart
    legend: Any
    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class _Claims:
    """The sentences on one entry; `refused` if its certificates cannot be trusted, `folded` if a reader opens them."""

    name: str
    texts: list[str]
    refused: bool
    folded: bool


def to_html(report: Report) -> str:
    """Render the page."""
    first, rest = _split(charts(report))
    *models, last = tables(report) or (None,)
    gained = last if last is not None and report.differences else None
    return render(
        "report.html.j2",
        title=_title(report),
        verdict=verdict_of(report),
        gained=gained,
        taken=time_taken(report),
        asked=asked(report),
        results=[*models, *([last] if gained is None and last is not None else [])],
        first=first,
        charts=rest,
        claims=_claims(report),
        not_claimed=not_claimed(report),
        report=report,
        radius_words=_radius_words(report),
        warnings=[
            *report.notes,
            *(f"{e.name}, while certifying: {text}" for e in report.entries for text in warnings(e.provenance)),
        ],
        trust=[(entry.name, trust(entry)) for entry in report.entries],
        words=WORDS,
        linked=Linker(),
        version=metadata.version("arquant"),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        down=down,
    )


def tables_page(title: str, shown: Sequence[Table], figures: Sequence[Chart]) -> str:
    """Render figures and tables that are no report on certified runs."""
    return render("tables.html.j2", title=title, tables=shown, charts=[drawn(chart) for chart in figures])


def render(name: str, **content: Any) -> str:
    """Render a template of this package; text is escaped, and a name that is missing is an error."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=FunctionLoader(_own_text)
    )
    environment.globals["show"] = table_html
    ours = {part: Markup(_own_text(file)) for part, file in (("style", "style.css"), ("script", "script.js"))}
    return environment.get_template(name).render(**ours, **content)


def _own_text(name: str) -> str:
    return resources.files("arquant.reporting").joinpath(name).read_text(encoding="utf-8")


class Linker:
    """Links the first occurrence of each term to its explanation on the page; all text is escaped."""

    def __init__(self) -> None:
        self.places = {name: place for place, name in enumerate(WORDS, start=1) if name in TERMS}

    def __call__(self, text: str) -> Markup:
        """Return the text with links for terms that no earlier text had."""
        found = sorted(
            (match.start(), match.end(), place, name)
            for name, place in self.places.items()
            if (match := re.search(TERMS[name], text)) is not None
        )
        parts, at = [], 0
        for start, end, place, name in found:
            parts += [escape(text[at:start]), Markup('<a href="#word-{}">{}</a>').format(place, text[start:end])]
            at = end
            del self.places[name]
        return Markup("").join([*parts, escape(text[at:])])


def drawn(chart: Chart, *, beside: bool = False) -> Drawn:
    """Draw a chart for wide and for narrow screens; half as wide if it stands beside another."""
    wide = svg(chart, HALF if beside else WIDE, css="w")
    return Drawn(chart, legend(chart), wide, svg(chart, NARROW, css="n"))


def _split(found: Sequence[Chart]) -> tuple[list[Drawn], list[Drawn]]:
    """Return the figures that stand side by side at the top, and all others; one alone takes the whole width."""
    top = [chart for chart in found if chart.half]
    first = [drawn(chart, beside=len(top) > 1) for chart in top]
    return first, [drawn(chart) for chart in found if not chart.half]


def table_html(table: Table | Chart) -> Markup:
    """Return a table; on narrow screens each row becomes a list of names and values."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(
            f'<td data-c="{escape(name)}">{escape(cell)}</td>'
            for name, cell in zip(table.columns[1:], rest, strict=True)
        )
        + "</tr>"
        for first, *rest in table.rows
    )
    label = escape(table.title)
    return Markup(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _claims(report: Report) -> list[_Claims]:
    """Show the main entry's claims first and in full; fold the others, unless something is wrong with them."""
    ordered = sorted(report.judged, key=lambda entry: entry is not report.main)
    return [
        _Claims(entry.name, claims(entry), bool(entry.refused), entry is not report.main and not entry.refused)
        for entry in ordered
    ]


def _title(report: Report) -> str:
    models = list(dict.fromkeys(e.model_name for e in report.entries if e.model_name != "unknown"))
    what = "Certified robustness" if report.certified else "Bit-widths"
    return f"{what} of {', '.join(models[:3])}" if models else what


def _radius_words(report: Report) -> str:
    """Say what a radius means for one image, in grey levels."""
    main = report.main
    settings = None if main is None or main.certificates is None else main.certificates.settings
    if main is None or settings is None:
        return ""
    radius = report.split_radius
    text = f"With R = {radius:g}, no change of the image within {NORMS[settings.norm]} distance {radius:g} changes the answer"
    if main.shape is None:
        return f"{text}."
    channels, height, width = main.shape
    values = channels * height * width
    levels = 255 * radius / (math.sqrt(values) if settings.norm == "l2" else values)
    kind = {1: "grey", 3: "RGB"}.get(channels, f"{channels}-channel")
    return f"{text}; {radius:g} is about {levels:.2g} of 255 grey levels on every value of a {height} × {width} {kind} image."
