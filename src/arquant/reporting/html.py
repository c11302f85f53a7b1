"""The report as one self-contained page: no server, no network, no file beside it is needed."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from arquant.base.progress import duration
from arquant.certificates.resampling import shown
from arquant.certificates.table import down
from arquant.reporting.charts import Chart, charts
from arquant.reporting.claims_text import claims, not_claimed
from arquant.reporting.model import Entry, Report
from arquant.reporting.svg import NARROW, WIDE, legend, svg
from arquant.reporting.tables import Table, tables
from arquant.reporting.trust import trust, warnings


@dataclass(frozen=True)
class _Drawn:
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
    source = resources.files("arquant.reporting").joinpath("template.html.j2").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(source)
    drawn = [
        _Drawn(chart, legend(chart), svg(chart, WIDE, css="w"), svg(chart, NARROW, css="n")) for chart in charts(report)
    ]
    page: str = template.render(
        title=_title(report),
        headline=_headline(report),
        asked=_asked(report),
        cards=_cards(report),
        results=tables(report),
        claims=_claims(report),
        not_claimed=not_claimed(report),
        charts=drawn,
        report=report,
        warnings=[
            *report.notes,
            *(f"{e.name}, while certifying: {text}" for e in report.entries for text in warnings(e.provenance)),
        ],
        trust=[(entry.name, trust(entry)) for entry in report.entries],
        version=metadata.version("arquant"),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        show=_table,
        down=down,
    )
    return page


def _table(table: Table | Chart) -> Markup:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
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
    return ", ".join(models[:3]) or "certified robustness"


def _headline(report: Report) -> str:
    main = report.main
    if main is not None and main.refused:
        return f"The certificates of {main.name} are refused: {main.refused}."
    if main is None or main.certificates is None or main.acr is None or main.clean is None:
        return "There are no finished certificates yet."
    images = len(main.certificates)
    text = (
        f"{main.name}: average certified radius {shown(main.acr, images, '{:.3f}')}, "
        f"{shown(main.clean, images, '{:.1%}')} of {images:,} images right"
    )
    if main.costs.percent is not None and main.layers:
        text += f", at {main.costs.percent:.2f} % of the bit operations of float32"
    return text + "."


def _cards(report: Report) -> list[tuple[str, str]]:
    main = report.main
    if main is None:
        return []
    found, cards = main.certificates, []
    if found is not None:
        cards = [
            (f"{found.acr:.3f}", "average certified radius (ACR)"),
            (f"{found.clean_accuracy:.1%}", "right on clean images"),
            (f"{found.abstained:.1%}", "abstained"),
        ]
    if main.costs.bops is not None:
        cards.append((_si(main.costs.bops), "bit operations per image"))
    if main.costs.weight_bytes is not None:
        cards.append((f"{_si(main.costs.weight_bytes)}B", "weights"))
    return cards


def _si(value: float) -> str:
    """Return a number with three digits and a prefix: 674 M."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} "


def _asked(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    """State the question, from whichever file has it; list entries that differ. Several searches have a title each."""
    rows: dict[str, list[str]] = {}
    stated = [question for entry in report.entries for question in _questions(entry)]
    stated += [("budget", budget) for search in report.searches for budget in search.budgets]
    for name, value in stated:
        if value not in rows.setdefault(name, []):
            rows[name].append(value)
    common = [(name, "; ".join(values)) for name, values in rows.items()]
    searches = [(search.folder, search_settings(search.facts)) for search in report.searches]
    if len(searches) == 1:
        return [("", common + searches[0][1])]
    return [("", common), *((f"Search: {folder}", settings) for folder, settings in searches if settings)]


def search_settings(search: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a search's settings from its journal: presets and defaults differ, so a reader must be told."""
    identity = search.get("identity")
    options = identity.get("options") if isinstance(identity, Mapping) else None
    if not isinstance(options, Mapping):
        return []
    score = search["score"]
    looks, steps = options.get("shortlist_seeds"), options.get("shortlist_steps")
    chosen = f"best of {options.get('shortlist')} " + (
        f"and of the best uniform one after {looks} more fine-tuning{'s' * (looks != 1)} of each"
        f"{'' if steps is None else f', {steps:,} steps long'}"
        if looks
        else "scored again on fresh noise"
    )
    several = f"{search.get('models')} models of this search, one after the other, were certified on the same images"
    return [
        ("search", f"{search['trials']:,} trials, {duration(search['seconds'])}, rewarded by {score.get('estimate')}"),
        ("a candidate's score", f"{score.get('images')} images x {options.get('search_n')} votes, against "
         f"{options.get('reference_n')} of the float model; α = {options.get('alpha')}"),
        ("a candidate's fine-tuning", _recipe(options.get("recipe"))),
        ("winner", "best score" if options.get("shortlist") == 1 else chosen),
        ("full fine-tuning", _recipe(options.get("final_recipe"))),
        *([("attempts", several)] if (search.get("models") or 1) > 1 else []),
    ]  # fmt: skip


def _recipe(recipe: Any) -> str:
    if not isinstance(recipe, Mapping):
        return "unknown"
    length = f"{recipe['steps']} steps" if recipe.get("steps") else f"{recipe.get('epochs')} epochs"
    images = f" of {recipe['images']:,} images" if isinstance(recipe.get("images"), int) and recipe["images"] else ""
    names = ("batch", "lr", "schedule", "distill", "consistency", "precision")
    return f"{length}{images}; {', '.join(f'{name} {recipe.get(name)}' for name in names)}"


def _questions(entry: Entry) -> list[tuple[str, str]]:
    config, found = entry.config, entry.certificates
    data = entry.provenance.get("data")
    rows = [("model", entry.model_name)]
    if isinstance(data, Mapping):
        rows.append(("data", f"{data.get('name')}, {data.get('images')} images"))
    elif "data" in config:
        rows.append(("data", str(config["data"])))
    journaled = entry.search is not None and bool(entry.search.budgets)
    names = ("strategy",) if journaled else ("budget", "strategy")
    rows += [(name, _listed(config[name])) for name in names if config.get(name)]
    if found is not None and found.settings is not None:
        s = found.settings
        rows.append(("noise", f"{s.noise}, σ = {s.sigma:g} ({255 * s.sigma:.0f} of 255 grey levels)"))
        select = f"{s.n0:,} to select the class, {s.n:,} to bound its probability"
        rows.append(("votes", select if s.mode == "select" else f"{s.n:,} to bound the probability of the label"))
        rows.append(("α", f"{s.alpha:g}" + (f" for all {s.family_wise} images" if s.family_wise else " per image")))
        if s.certificate != "one-sided" or s.mode != "select":
            rows.append(
                ("certificate", f"{s.certificate}, {'label-directed' if s.mode == 'label' else 'class selected'}")
            )
    elif "sigma" in config:
        rows.append(
            ("noise", f"σ = {config['sigma']:g}" if isinstance(config["sigma"], float) else str(config["sigma"]))
        )
    return rows


def _listed(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
