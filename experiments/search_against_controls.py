"""Does a search find better widths than the uniform policy, and than random search with as many candidates?

    python experiments/search_against_controls.py --data cifar10 --trials 150 --out results/search

Searches (`--runs`, each in a folder below `--work`; `arq=FOLDER` names one that `arquant search` made)
are run, taken up, or only read if they are finished. Each winner, and the uniform policy, is then fully fine-tuned with
every seed of `--seeds` and certified; what a search has made and certified itself is not made again. Intervals: two-level
bootstrap over images and fine-tuning seeds, in pairs: a seed gives every policy the same order of images and training noise.
A restart keeps the finished rows of `raw.jsonl`, and goes on inside the job that it was stopped in. Scores rank candidates
and prove nothing; all in the first table are certificates.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import Bench, Jobs, markdown, open_bench, parser_of, shown, write_summary
from learning_curves import Run, learning, read_run

from arquant.base.errors import InputError, MismatchError
from arquant.base.journal import Journal, Record, read_journal
from arquant.base.progress import Status, duration
from arquant.base.run_folder import MODEL, POLICY
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import TSV_NAME, read_certificates
from arquant.certificates.resampling import MINIMUM_SEEDS, Interval, two_level_bootstrap
from arquant.certification.run import certify
from arquant.commands.search import search
from arquant.images.imageset import ImageSet
from arquant.loading.roles import images_for
from arquant.quantization.artifact import architecture_of, load_artifact, read_provenance, save_artifact
from arquant.quantization.costs import Bops
from arquant.quantization.policy import Policy
from arquant.searching.forecast import expected_stages, measure, steps_of
from arquant.searching.history import trials_of
from arquant.searching.journal_lines import read_search_journal
from arquant.searching.options import search_options
from arquant.searching.study import EXHAUSTED, Limits
from arquant.searching.workbench import Network
from arquant.training.recipe import Recipe

BASE, RAW = "uniform", "raw.jsonl"
CONTROLS = (BASE, "random")
"""what every policy is compared with"""
SAME = ("sigma", "noise", "clip", "per_channel", "learn", "estimate_bn", "calibration_images", "final_start")
"""options that decide a model, beside its policy and recipe"""


@dataclass(frozen=True, eq=False)
class Job:
    """A policy to fine-tune with one seed and to certify; `start` is the network to begin with, if not the float one."""

    what: str
    policy: Policy
    seed: int
    start: Network | None = None

    @property
    def name(self) -> str:
        return f"{self.what.replace(' ', '-')}-seed-{self.seed}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that the searches and the final models share."""
    names = (
        "seed", "alpha", "search_n", "reference_n", "steps", "shortlist", "final_epochs", "final_steps", "n", "adaptive",
        "tolerance", "shortlist_seeds", "shortlist_steps", "shortlist_n",
    )  # fmt: skip
    return {**{name: getattr(arguments, name) for name in names}, "train_batch": arguments.batch}


def folders_of(arguments: argparse.Namespace) -> dict[str, Path]:
    pairs = (text.partition("=") for text in arguments.runs)
    return {name: Path(folder) if folder else arguments.work / name for name, _, folder in pairs}


def searched(name: str, folder: Path, images: ImageSet, bench: Bench, arguments: argparse.Namespace) -> Run:
    """Return the search in a folder; finish it first if need be. It certifies `images`."""
    if not (folder / "summary.json").exists():
        search(
            arguments.model, arguments.data, sigma=arguments.sigma, budget=arguments.budget, out=folder, strategy=name,
            trials=arguments.trials, split=arguments.split, search_images=arguments.images, controls=(),
            threads=arguments.threads, certify=images if arguments.development else None,
            compiled=None if arguments.compile else False, report=bench.report, note=say, **options_of(arguments),
        )  # fmt: skip
    run = read_run(name, folder)
    if run.summary["trials"] < arguments.trials and run.summary["ended"] != EXHAUSTED:
        raise MismatchError(f"{folder} is a search of {run.summary['trials']} candidates, not {arguments.trials}")
    here = (bench.classifier.fingerprint(), bench.roles.calibrate.fingerprint())
    if (run.identity["model"], run.identity["images"]["calibrate"]) != here:
        raise MismatchError(f"{folder} is a search of another model, or with other training images")
    return run


def jobs_of(runs: Sequence[Run], bench: Bench, arguments: argparse.Namespace) -> list[Job]:
    """List every policy with every seed; one seed of all policies comes before the next."""
    found: dict[str, tuple[Policy, Network | None]] = {BASE: (bench.space.uniform(bench.space.uniform_pairs[0]), None)}
    for run in runs:
        policy, name = run.policy(bench.space.budget.text), f"{BASE} search" if run.name == BASE else run.name
        found[name] = (policy, None)
        if arguments.kept and (network := run.kept(policy)) is not None:
            found[f"{name} from its candidate"] = (policy, network)
    return [Job(what, policy, seed, start) for seed in arguments.seeds for what, (policy, start) in found.items()]


def recipe_of(job: Job, bench: Bench) -> Recipe:
    return replace(bench.options.final_recipe, seed=job.seed)


def as_recorded(recipe: Recipe) -> Record:
    """Return a recipe as a file holds it."""
    record: Record = json.loads(json.dumps(recipe.facts()))
    return record


def published(job: Job, runs: Sequence[Run], images: ImageSet, bench: Bench) -> CertificateSet | None:
    """Return the certificates that a search has given to exactly this model."""
    recipe = as_recorded(recipe_of(job, bench))
    mine = bench.options
    settings = mine.smoothing().settings(len(images))
    for run in runs:
        theirs = run.summary["options"]
        if job.start or theirs["final_recipe"] != recipe or any(theirs[name] != getattr(mine, name) for name in SAME):
            continue
        for place in (run.folder, run.folder / "controls" / BASE):
            if (place / TSV_NAME).exists() and Policy.load(place / POLICY) == job.policy:
                found = read_certificates(place)
                if found.settings == settings and found.images_sha256 == images.fingerprint():
                    return found
    return None


def make(job: Job, images: ImageSet, bench: Bench, arguments: argparse.Namespace) -> CertificateSet:
    """Fine-tune, freeze and certify; what an earlier call began goes on."""
    folder, bed = arguments.work / job.name, bench.workbench
    recipe, checkpoint = recipe_of(job, bench), folder / "training.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MODEL).exists():
        bed.set_(job.policy)
        if job.start is not None:
            bed.put_(job.start)
        bed.finetune_(recipe, checkpoint=checkpoint, stage=f"fine-tune {job.name}", report=bench.report)
        save_artifact(folder / MODEL, bed.quantized.cpu(), {"from": bench.classifier.name, "recipe": recipe.facts()})
        checkpoint.unlink(missing_ok=True)

    def report(status: Status) -> None:
        bench.report(replace(status, stage=f"certify {job.name}"))

    frozen = load_artifact(folder / MODEL, arch=architecture_of(bed.quantized))
    trained_by = read_provenance(folder / MODEL).get("recipe")
    if frozen.policy != job.policy or trained_by != as_recorded(recipe):
        raise MismatchError(f"{folder} holds a model of another policy or of other fine-tuning; choose another --work")
    settings = bench.options.smoothing().settings(len(images))
    return certify(
        frozen, images, settings, out=folder, threads=arguments.threads, report=report, note=say
    ).certificates


def make_only(
    names: Sequence[str], jobs: Sequence[Job], images: ImageSet, bench: Bench, arguments: argparse.Namespace
) -> None:
    """Make some of the models, which a later call without `--only` takes up: several processes may share the work."""
    known = {job.name: job for job in jobs}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"there is no model {unknown[0]!r} to make; there are {', '.join(known)}")
    for name in names:
        print(f"{name}: ACR {make(known[name], images, bench, arguments).acr:.4f}")


def twin_of(job: Job, jobs: Sequence[Job], done: Jobs) -> Record | None:
    """Return the finished row of another job that makes the same model: two searches may have found one policy."""
    same = (other for other in jobs if (other.policy, other.seed) == (job.policy, job.seed))
    rows = (done.row(other.name) for other in same if other.start is None and job.start is None)
    return next((row for row in rows if row is not None), None)


def check_policies(jobs: Sequence[Job], done: Jobs, out: Path) -> None:
    """Refuse rows that were made of other policies, before any more are made."""
    for job in jobs:
        row = done.row(job.name)
        if row is not None and Policy(row["policy"]) != job.policy:
            raise MismatchError(f"{out / RAW} holds results of other searches ({job.name}); choose another --out")


def row_of(job: Job, found: CertificateSet, source: str, bench: Bench) -> Record:
    return {
        "what": job.what, "seed": job.seed, "policy": job.policy.widths(),
        "bops": Bops().cost(job.policy, bench.space.layers), "acr": found.acr, "clean": found.clean_accuracy,
        "radii": found.credited[np.argsort(found.idx)].tolist(), "made_by": source,
    }  # fmt: skip


def comparison(rows: Sequence[Record], seeds: Sequence[int]) -> list[str]:
    """Show every policy's ACR, and its difference from each control; a control's, from those before it."""
    radii = {r["what"]: np.array([o["radii"] for o in rows if o["what"] == r["what"]]) for r in rows}
    controls = [name for name in CONTROLS if name in radii]
    cells, apart = [], []
    for row in rows[: len(radii)]:
        what, mine = row["what"], radii[row["what"]]
        others = controls[: controls.index(what)] if what in controls else controls
        gaps = {name: verdict(two_level_bootstrap(radii[name], mine, paired_seeds=True)) for name in others}
        apart += [f"{what} - {name} {verdict(two_level_bootstrap(radii[name], mine))}" for name in others]
        cells.append([
            what, f"{row['bops'] / 1e9:.4f}", shown(two_level_bootstrap(np.zeros_like(mine), mine)),
            *(gaps.get(name, "") for name in controls), ", ".join(f"{m:.4f}" for m in mine.mean(axis=1)),
        ])  # fmt: skip
    against = [f"minus {name}" for name in controls]
    return [
        *markdown(["policy", "GBOPs", "certified ACR", *against, f"ACR of seeds {', '.join(map(str, seeds))}"], cells),
        "",
        "A seed gave all policies the same order of images and training noise: differences are drawn seed by seed. With the "
        f"seeds of each policy drawn on their own: {'; '.join(apart)}.",
    ]


def verdict(gap: Interval) -> str:
    """Show a difference and say what it means."""
    word = "tie" if gap.low <= 0 <= gap.high else "better" if gap.value > 0 else "worse"
    return f"{shown(gap, sign=True)} {word}"


def foresee(bench: Bench, arguments: argparse.Namespace) -> None:
    """Say how long what is missing will take."""
    raw = arguments.out / RAW
    finished = len(read_journal(raw)[1]) if raw.exists() else 0
    engine = bench.workbench.engines.make(bench.classifier, bench.options.noise)
    pace = measure(
        bench.workbench, engine.images_per_second, bench.space.uniform(bench.space.uniform_pairs[0]), bench.options
    )
    engine.close()
    total = 0.0
    for name, folder in folders_of(arguments).items():
        begun = read_search_journal(folder / "journal.jsonl")[1] if (folder / "journal.jsonl").exists() else []
        left = arguments.trials - len(trials_of(begun))
        if not (folder / "summary.json").exists():
            limits = Limits(trials=max(left, 1))
            stages = expected_stages(pace, replace(bench.options, controls=()), bench.roles, limits, [bench.space])
            total += sum(stage.seconds for stage in stages)
            print(f"search {name}: {left} candidates, about {duration(sum(stage.seconds for stage in stages))}")
    votes = len(bench.roles.certify) * (bench.options.n + bench.options.n0)
    each = steps_of(bench.options.final_recipe, bench.roles) / pace.steps + votes / pace.votes
    count = (1 + (1 + arguments.kept) * len(arguments.runs)) * len(arguments.seeds) - finished
    print(f"final models: up to {count} to fine-tune and certify, about {duration(each)} each")
    print(f"all: about {duration(total + count * each)}")


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, "search_against_controls", images=500)
    parser.add_argument(
        "--runs", nargs="+", default=["arq-paper", "arq", "random", "uniform"], help="STRATEGY or STRATEGY=FOLDER"
    )
    parser.add_argument("--budget", default="bops<=3bit")
    parser.add_argument("--trials", type=int, default=150, help="of every search")
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[10, 11, 12],
        help="of the final fine-tuning; at least 3, none of which a search chose by",
    )
    parser.add_argument("--n", type=int, default=10_000, help="votes per certificate")
    parser.add_argument("--adaptive", action="store_true", help="certificates stop early, as of arquant certify")
    parser.add_argument("--tolerance", type=float, help="radius that --adaptive may give up, in units of sigma")
    parser.add_argument(
        "--development", action="store_true", help="certify the development images, not the certify images"
    )
    parser.add_argument(
        "--kept", action="store_true", help="also start from the winner's candidate, not the float network"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="MODEL",
        help="make these (uniform-seed-10 ...) below --work and end, without a table",
    )
    parser.add_argument("--dry-run", action="store_true", help="say how long it will take, and end")
    for name, default in (
        ("search-n", 200),
        ("reference-n", 2000),
        ("steps", 60),
        ("shortlist", None),
        ("shortlist-seeds", None),
        ("shortlist-steps", None),
        ("shortlist-n", None),
        ("final-steps", None),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help="as of arquant search (default %(default)s)")
    parser.add_argument("--final-epochs", type=float, default=10.0)
    arguments = parser.parse_args(argv)
    if len(set(arguments.seeds)) < MINIMUM_SEEDS:
        parser.error(f"--seeds must be {MINIMUM_SEEDS} or more different ones, for an interval over them")
    return arguments


def main(argv: Sequence[str]) -> None:
    arguments = arguments_of(argv)
    with open_bench(arguments, budget=arguments.budget) as bench:
        bench.options = search_options(arguments.sigma, **options_of(arguments))
        images = bench.roles.certify
        if arguments.development:
            images = images_for(arguments.data, "development", bench.classifier)
        if arguments.dry_run:
            foresee(bench, arguments)
            return
        runs = [searched(name, folder, images, bench, arguments) for name, folder in folders_of(arguments).items()]
        jobs = jobs_of(runs, bench, arguments)
        if arguments.only:
            make_only(arguments.only, jobs, images, bench, arguments)
            return
        about = {"experiment": "search_against_controls", "budget": bench.space.budget.text}
        identity = {**about, "certified": images.fingerprint(), **bench.identity()}
        with Journal(arguments.out / RAW, identity) as journal:
            done = Jobs(journal, arguments.work)
            check_policies(jobs, done, arguments.out)
            for number, job in enumerate(jobs, start=1):
                if done.row(job.name) is not None:
                    continue
                say(f"{job.name}: {number} of {len(jobs)} models")
                if (found := published(job, runs, images, bench)) is not None:
                    result = row_of(job, found, "its search", bench)
                elif (twin := twin_of(job, jobs, done)) is not None:
                    result = {**twin, "what": job.what, "made_by": twin["job"], "job": job.name}
                else:
                    result = row_of(job, make(job, images, bench, arguments), "this program", bench)
                done.finish(job.name, result)
            rows = [row for job in jobs if (row := done.row(job.name)) is not None]
        lines = [*comparison(rows, arguments.seeds), "", "The searches:", "", *learning(runs, arguments.out)]
        stops = ", adaptive stops" if arguments.adaptive else ""
        facts = [f"certified on {len(images)} images ({images.name}) with n = {arguments.n:,}{stops}", arguments.budget]
        write_summary(arguments, argv, "A search against its controls", bench.about, facts, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
