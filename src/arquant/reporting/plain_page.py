"""Tables and figures as one self-contained page without scripts: for results that are no report on certified runs."""

from collections.abc import Sequence

from markupsafe import Markup, escape

from arquant.reporting.charts import Chart
from arquant.reporting.svg import legend, svg
from arquant.reporting.tables import Table

_COLOURS = ("#1f5fbf", "#c2410c", "#15803d", "#9333ea", "#0e7490", "#be123c", "#854d0e", "#475569")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:right;max-width:32rem}"
    "td:first-child,th:first-child{text-align:left}thead th{border-bottom:1px solid}p{max-width:60rem}"
    "svg text{font-size:12.5px;fill:#444}svg .grid{stroke:#ddd}svg .axis{stroke:#444}svg .m{fill:currentColor}"
    "svg .line{fill:none;stroke:currentColor;stroke-width:2}svg .hid{fill-opacity:0}"
    "svg .hollow{fill:#fff;stroke:currentColor;stroke-width:1.5}"
)


def page(title: str, tables: Sequence[Table], charts: Sequence[Chart] = ()) -> str:
    """Return an HTML page with figures and tables, with their captions."""
    colours = "".join(f".c{place}{{color:{colour}}}" for place, colour in enumerate(_COLOURS))
    body = [_figure(chart) for chart in charts]
    body += [_section(table) for table in tables]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}{colours}</style>'
        f"<h1>{escape(title)}</h1>{Markup().join(body)}</html>\n"
    )


def _figure(chart: Chart) -> Markup:
    names = Markup(" ").join(
        Markup('<span class="c{}">{} {}</span>').format(colour, "○" if chart.series[number].faint else "●", name)
        for number, colour, name in legend(chart)
    )
    return Markup("<figure>{}<figcaption>{}<br>{}</figcaption></figure>").format(svg(chart), chart.title, names)


def _section(table: Table) -> Markup:
    head = _row("th", table.columns)
    rows = Markup().join(_row("td", row) for row in table.rows)
    return Markup(
        '<h2>{}</h2><div class="scroll"><table><thead>{}</thead><tbody>{}</tbody></table></div><p>{}</p>'
    ).format(table.title, head, rows, table.caption)


def _row(tag: str, cells: Sequence[str]) -> Markup:
    return Markup("<tr>{}</tr>").format(Markup().join(Markup(f"<{tag}>{{}}</{tag}>").format(cell) for cell in cells))
