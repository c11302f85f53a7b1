"""What `arq` needs to reach the certified radius of the paper's agent: training steps and time, beside those of `arq-paper`.

    python benchmarks/search.py --work DIR     ResNet-20, CIFAR-10, 3 bits, sigma 0.5; three searches, an hour of two cores

For each seed `arq` searches for as many candidates as its model needs and one more, the model's optimum, and the winner is
fine-tuned and certified as the published models of `arq-paper`, of uniform widths and of `arq-ddpg` were; they have the
same seeds and are not made again. The searches are kept in DIR and resumed. Steps and votes are those of the journals, the
reference of float votes included. Their times are of one machine: seconds per step, per vote and of a fine-tuning besides
are measured here in turn, round after round, and multiplied; so the clocks of searches that ran on other days, beside other
work, do not enter. Curves of the best estimated ACR so far against these seconds, for `arq`, for the published searches and
for runs that `--also` names, are in `DIR/curves.tsv`; estimates after short fine-tunings, which prove nothing.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from alternation import alternate, medians

from arquant.base.provenance import provenance
from arquant.certificates.bounds import FloatArray
from arquant.certificates.files import read_certificates
from arquant.certificates.resampling import shown, two_level_bootstrap, verdict
from arquant.searching.forecast import Pace
from arquant.searching.history import trials_of
from arquant.searching.journal_lines import read_search_journal
from arquant.searching.racing import Racing

RESULTS = Path(__file__).parents[1] / "results"
MODELS = RESULTS / "search-models"
FAMILIES = {"arq-paper": "arq-paper", "uniform w3a3": "uniform", "uniform w2a4": "w2a4", "arq-ddpg": "arq"}
"""certified models with the seeds of the finals, by what chose their widths, and how their folders begin"""
PUBLISHED = {name: RESULTS / "search" / name for name in ("arq-paper", "random")}
SUBJECT = ["resnet20:sigma=0.5", "cifar10", "--sigma", "0.5", "--budget", "bops<=3bit"]
CHEAP = ["--steps", "45", "--search-n", "50", "--reference-n", "500", "--trials", "8"]
"""eight candidates: two for each of the three stages of ResNet-20 and one for the level, then the optimum of their model"""
FINAL = ["--final-epochs", "4", "--n", "10000", "--adaptive", "--tolerance", "0.1", "--controls", "none"]
"""how the published models were made"""
COLUMNS = ("search", "candidate", "steps", "seconds", "best_estimated_acr")


@dataclass(frozen=True)
class Point:
    """What a search had spent after a candidate, and its best estimate by then; nan before the first."""

    candidate: int
    steps: int
    seconds: float
    best: float


def searched(options: argparse.Namespace, seed: int) -> Path:
    """Search with a seed, or go on with it, or leave a finished one alone; return its folder."""
    out: Path = options.work / f"arq-seed-{seed}"
    stated = ["--seed", str(seed), "--threads", str(options.threads), "--progress", "lines", "--out", str(out)]
    command = [sys.executable, "-m", "arquant", "search", *SUBJECT, *CHEAP, *FINAL, *stated]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return out


def curve(folder: Path, pace: Pace) -> Iterator[Point]:
    """Yield what a search had spent after each candidate; repeated policies cost nothing, abandoned ones what they had."""
    identity, lines = read_search_journal(folder / "journal.jsonl")
    settings = identity["options"]
    trials = trials_of(lines)
    images: int = settings["search_images"] or next(
        trial.acr.images for trial in trials if trial.acr and trial.acr.images
    )
    steps, best = 0, float("nan")
    seconds = images * settings["reference_n"] / pace.float_votes
    for trial in trials:
        if trial.repeat_of is None:
            race, full = trial.abandoned, trial.steps or settings["recipe"]["steps"]
            tuned = round(Racing().steps * full) if race is not None and race.fine_tuned is False else full
            votes = images * (settings["search_n"] if race is None else race.votes)
            steps += tuned
            seconds += pace.compiling + tuned / pace.steps + votes / pace.votes
        if trial.complete and trial.acr is not None:
            best = float(np.fmax(best, trial.acr.value))
        yield Point(trial.number, steps, seconds, best)


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Return this machine's pace, of one process."""
    from arquant import plan

    found = plan(*SUBJECT[:2], sigma=0.5, budget=SUBJECT[-1], compiled=True, threads=options.threads)["pace"]
    return {name: float(value) for name, value in found.items()}


def radii(folder: Path) -> FloatArray:
    """Return the credited radius of every certify image, 0 where the answer is wrong or none."""
    return read_certificates(folder / "certificates.tsv").credited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the searches")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12], help="of searches and final fine-tunings")
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME=RUN", help="further searches to draw")
    parser.add_argument("--rounds", type=int, default=3, help="of measuring the pace")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(measured(options)))
        return
    controls = {
        name: np.stack([radii(MODELS / f"{family}-seed-{seed}") for seed in options.seeds])
        for name, family in FAMILIES.items()
    }
    ours = [searched(options, seed) for seed in options.seeds]
    arguments = ["--work", str(options.work), "--threads", str(options.threads)]
    rates = medians(alternate(__file__, ["pace"], rounds=options.rounds, arguments=arguments)["pace"])
    pace = Pace(**rates)
    others = {**PUBLISHED, **{name: Path(run) for name, run in (each.split("=", 1) for each in options.also)}}
    runs = {**{f"arq, seed {seed}": folder for seed, folder in zip(options.seeds, ours, strict=True)}, **others}
    curves = {name: list(curve(folder, pace)) for name, folder in runs.items()}
    with (options.work / "curves.tsv").open("w", encoding="utf-8") as file:
        print(*COLUMNS, sep="\t", file=file)
        for name, points in curves.items():
            for point in points:
                print(
                    name, point.candidate, point.steps, f"{point.seconds:.1f}", f"{point.best:.4f}", sep="\t", file=file
                )

    found = np.stack([radii(each) for each in ours])
    print(f"command: {provenance()['command']}; commit {provenance()['commit']}")
    print(
        f"per thread: {pace.steps:.2f} steps/s, {pace.votes:,.0f} votes/s, float {pace.float_votes:,.0f} votes/s, "
        f"{pace.compiling:.0f} s a fine-tuning besides; medians of {options.rounds}"
    )
    print(f"{'search':22} {'candidates':>10} {'steps':>8} {'seconds':>9}  best estimated ACR")
    for name, points in curves.items():
        last = points[-1]
        print(f"{name:22} {len(points):>10} {last.steps:>8,} {last.seconds:>9,.0f}  {last.best:.4f}")
    print(
        f"certified ACR, seeds {', '.join(map(str, options.seeds))}; arq less the others, over images and pairs of seeds"
    )
    for name, table in {"arq": found, **controls}.items():
        by_seed = "  ".join(f"{acr:.4f}" for acr in table.mean(axis=1))
        gap = two_level_bootstrap(table, found, paired_seeds=True)
        less = "" if name == "arq" else f"  {shown(gap, table.shape[1])}, {verdict(gap, table.shape[1])}"
        print(f"{name:22} {by_seed}  mean {table.mean():.4f}{less}")
    paper, mine = curves["arq-paper"][-1], [curves[f"arq, seed {seed}"][-1] for seed in options.seeds]
    figures = {
        "steps_of_arq_paper": statistics.median(point.steps for point in mine) / paper.steps,
        "seconds_of_arq_paper": statistics.median(point.seconds for point in mine) / paper.seconds,
        "acr_minus_arq_paper": statistics.median((found - controls["arq-paper"]).mean(axis=1)),
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
