"""Does the model behind `arq`, fitted on a handful of candidates, rank policies that it was not chosen on?

    python experiments/grouped_model.py --out results/grouped-model

Its groups, its features and its ridge were chosen on the 30 policies of `results/score-ranking`. Here it is fitted on a few
scored candidates of published searches, chosen as `arq` chooses its design (no reward is looked at), and ranks all the others:
policies that had no part in choosing the model. Reads journals, trains nothing; scores rank candidates and prove nothing.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from common import markdown
from scipy.stats import spearmanr

from arquant.loading.models import load_model
from arquant.models.tracing.layers import find_layers
from arquant.quantization.budget import Budget
from arquant.quantization.policy import Policy
from arquant.searching.history import trials_of
from arquant.searching.journal_lines import SCORED, read_search_journal
from arquant.searching.space import Space
from arquant.searching.strategies.grouped_model import GroupedModel, Grouping, least_certain

RESULTS = Path(__file__).parents[1] / "results"
SEARCHES = ("arq", "arq-paper", "random")
SIZES = (6, 7, 8, 10, 15, 30)
SAMPLES = 20
"""designs of each size, each from another random half of the candidates"""


def scored(search: str) -> dict[Policy, float]:
    """Return the estimated ACR of every candidate of a search that was fine-tuned and scored fully."""
    _, lines = read_search_journal(RESULTS / "search" / search / "journal.jsonl")
    found = [trial for trial in trials_of(lines) if trial.outcome == SCORED and trial.acr is not None]
    return {trial.policy: trial.acr.value for trial in found if trial.acr is not None}


def careful() -> dict[Policy, float]:
    """Return the careful scores of `results/score-ranking`: two epochs, another seed, other images."""
    head = json.loads((RESULTS / "score-ranking" / "scores.jsonl").read_text().partition("\n")[0])
    lines = (RESULTS / "score-ranking" / "raw.jsonl").read_text().splitlines()[1:]
    policies = {line["policy"]: Policy(line["bits"]) for line in map(json.loads, lines) if "bits" in line}
    return {policies[name]: value for name, value in zip(head["policies"], head["careful"], strict=True)}


def designed(grouping: Grouping, pool: Sequence[Policy], size: int) -> list[Policy]:
    """Return a design from a pool, as `arq` makes it."""
    known: list[Policy] = []
    for _ in range(size):
        known.append(least_certain(grouping, [policy for policy in pool if policy not in known], known))
    return known


def agreement(model: GroupedModel, scores: dict[Policy, float]) -> float:
    """Return Spearman's rank correlation of the model with scores."""
    space = model.grouping.space
    return float(spearmanr([model.predict(space.bits(policy)) for policy in scores], list(scores.values()))[0])


def rows() -> list[list[str]]:
    """Return a row of the table per size of the design: the mean over designs, and the lowest."""
    layers = find_layers(load_model("resnet20:sigma=0.5"))
    grouping = Grouping(Space(Budget.parse("bops<=3bit", layers)), 6)
    searches, judged = {name: scored(name) for name in SEARCHES}, careful()
    every = {policy: value for scores in searches.values() for policy, value in scores.items()}
    found = []
    for size in SIZES:
        ranks = []
        for sample in range(SAMPLES):
            rng = np.random.default_rng([size, sample])
            policies = list(every)
            pool = [policies[place] for place in rng.permutation(len(policies))[: len(policies) // 2]]
            design = designed(grouping, pool, size)
            model = GroupedModel(grouping, [(grouping.space.bits(policy), every[policy]) for policy in design])
            others = [{p: v for p, v in scores.items() if p not in design} for scores in (every, *searches.values())]
            ranks.append([agreement(model, scores) for scores in (*others, judged)])
        cells = [f"{mean:.2f} ({low:.2f})" for mean, low in zip(np.mean(ranks, 0), np.min(ranks, 0), strict=True)]
        found.append([str(size), *cells])
    return found


def write_table(about: str | None, file: str, columns: Sequence[str], rows: Callable[[], list[list[str]]]) -> None:
    """Read `--out` from the command line; write a table into that folder, and print it."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    table = "\n".join(markdown(list(columns), rows()))
    out.mkdir(parents=True, exist_ok=True)
    (out / file).write_text(table + "\n")
    print(table)


def main() -> None:
    columns = ["candidates fitted on", "all others", *(f"of `{name}`" for name in SEARCHES), "the 31 careful scores"]
    write_table(__doc__, "summary.md", columns, rows)


if __name__ == "__main__":
    main()
