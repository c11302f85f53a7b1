"""Rows of a table that take minutes each: what was measured is kept in `runs.jsonl` and not measured again."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RAW, TABLE = "runs.jsonl", "README.md"
Row = dict[str, Any]


def kept_rows(out: Path, networks: Iterable[str], measure: Callable[[str], Row]) -> list[Row]:
    """Return the rows in `out`, which is made, after measuring those of the networks that it lacks."""
    out.mkdir(parents=True, exist_ok=True)
    raw = out / RAW
    rows: list[Row] = [json.loads(line) for line in raw.read_text().splitlines()] if raw.exists() else []
    done = {row["network"] for row in rows}
    for network in networks:
        if network not in done:
            rows.append(measure(network))
            with raw.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return rows
