"""The learning curves of finished searches: score per episode, best so far, episodes that really learned, hours.

    python experiments/learning_curves.py runs/arq-paper runs/arq --out results/curves

Writes `curves.tsv`, a line per episode, and the figure `learning.svg` (`.pdf`), and prints what became of each search.
Scores and estimates rank candidates and prove nothing.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown

from arquant.base.journal import Record
from arquant.reporting.charts import Chart, Series
from arquant.reporting.paper_figures import save_figures
from arquant.searching.history import trials_of
from arquant.searching.journal_lines import SCORED, Candidate, read_search_journal

COLUMNS = ("run", "episode", "outcome", "score", "estimated_acr", "best_so_far", "hours")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished search."""

    name: str
    folder: Path
    identity: Record
    candidates: tuple[Candidate, ...]
    summary: dict[str, Any]


def read_run(name: str, folder: Path) -> Run:
    identity, lines = read_search_journal(folder / "journal.jsonl")
    return Run(name, folder, identity, trials_of(lines), json.loads((folder / "summary.json").read_text()))


def curve(run: Run) -> list[tuple[Any, ...]]:
    """Return a line of `curves.tsv` per episode."""
    lines: list[tuple[Any, ...]] = []
    best, hours = float("nan"), 0.0
    for trial in run.candidates:
        acr = float("nan") if trial.acr is None else trial.acr.value
        hours += sum(trial.seconds.values()) / 3600
        best = float(np.fmax(best, acr)) if trial.outcome == SCORED else best
        lines.append((run.name, trial.number, trial.outcome, trial.value, acr, best, round(hours, 4)))
    return lines


def learning(runs: Sequence[Run], out: Path) -> list[str]:
    """Write the curves, as a table and as a figure; returns what became of each search, as a table."""
    curves = [curve(run) for run in runs]
    with (out / "curves.tsv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, "excel-tab", lineterminator="\n").writerows(
            [COLUMNS, *(line for each in curves for line in each)]
        )
    series, cells = [], []
    for place, (run, lines) in enumerate(zip(runs, curves, strict=True)):
        scored = [line for line in lines if line[2] == SCORED]
        xs, ys, tops = (tuple(line[column] for line in scored) for column in (1, 4, 5))
        series.append(Series("", "points", xs, ys, (), colour=place, faint=True))
        series.append(Series(run.name, "line", xs, tops, (), colour=place))
        counts = [run.summary[name] for name in ("trials", "candidates_examined", "abandoned", "failed")]
        learned = run.summary["strategies"][0].get("episodes_learned", "–")
        cells.append([run.name, *map(str, counts), str(learned), f"{lines[-1][5]:.4f}", f"{lines[-1][6]:.2f}"])
    save_figures(
        (Chart("learning", "", "", "candidate", "estimated ACR (line: best so far)", tuple(series), (), ()),), out
    )
    head = [
        "search",
        "trials",
        "examined",
        "abandoned",
        "failed",
        "episodes that learned",
        "best estimated ACR",
        "hours",
    ]
    return markdown(head, cells)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of arquant search")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    print("\n".join(learning([read_run(folder.name, folder) for folder in arguments.runs], arguments.out)))


if __name__ == "__main__":
    main(sys.argv[1:])
