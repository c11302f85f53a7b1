"""Small tables for notebooks: plain HTML, no scripts, no styles of their own. Every text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 40
"""rows that a snippet shows; the last one says how many more there are"""


def facts_html(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values under a title."""
    return table_html(title, (), rows)


def table_html(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table under a title; its first column names the rows."""
    every = [list(row) for row in rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f'<tr><th style="text-align:left">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in every[:MOST_ROWS]
    )
    more = f"<p>and {len(every) - MOST_ROWS:,} more</p>" if len(every) > MOST_ROWS else ""
    header = f"<thead><tr>{head}</tr></thead>" if columns else ""
    return f"<div><strong>{escape(title)}</strong><table>{header}<tbody>{body}</tbody></table>{more}</div>"
