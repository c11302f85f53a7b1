"""Which uniform pair of widths is the strongest control of a budget, and is the policy of a search better?

    python experiments/uniform_pairs.py --data cifar10 --policy results/search/arq/policy.json --out results/uniform-pairs

Every policy is fine-tuned for two epochs (780 steps) from the float weights with every seed, and votes on the development
images. Intervals: two-level bootstrap over images and pairs of seeds: a seed gives every policy the same order of images and
training noise. What `final_start.py` has measured of a policy is taken up (`--known results/final-start/raw.jsonl`). A
restart keeps the finished rows of `raw.jsonl`; several processes may share the work (`--share 1/2`, `--share 2/2`, then once
without). Estimates, no certificates.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from common import (
    Bench,
    Jobs,
    add_full_finetuning,
    add_share,
    check_seeds,
    markdown,
    open_bench,
    parser_of,
    raw_file,
    shared,
    shown,
    write_summary,
)

from arquant.base.errors import MismatchError
from arquant.base.identity import differences
from arquant.base.journal import Record, read_journal
from arquant.certificates.bounds import FloatArray
from arquant.certificates.resampling import two_level_bootstrap
from arquant.images.imageset import ImageSet
from arquant.loading.roles import images_for
from arquant.quantization.policy import Policy

SEARCHED = "searched"


def policies_of(bench: Bench, arguments: argparse.Namespace) -> dict[str, Policy]:
    """Return the uniform pairs, by default all to which no bit can be added, and the policy of the search."""
    pairs = arguments.pairs or [str(pair) for pair in bench.space.uniform_pairs]
    found = {**{pair: bench.space.uniform(pair) for pair in pairs}, SEARCHED: Policy.load(arguments.policy)}
    for name, policy in found.items():
        if not bench.space.contains(policy):
            raise MismatchError(f"the policy {name} is of another network, or not within {arguments.budget}")
    return found


def job_of(name: str, seed: int) -> str:
    return f"{name}-seed-{seed}"


def take_up(known: Path, jobs: Jobs, policies: Mapping[str, Policy]) -> None:
    """Take up rows of `final_start.py` that are the same measurement: a policy of ours, from the float weights."""
    identity, records = read_journal(known)
    mine = {name: value for name, value in jobs.journal.identity.items() if name != "experiment"}
    if unlike := differences({name: identity.get(name) for name in mine}, mine):
        raise MismatchError(f"{known} holds another measurement ({unlike})")
    for name, policy in policies.items():
        for row in records if Policy(identity["policy"]) == policy else ():
            if row["start"] == "float":
                facts = {"policy": policy.widths(), "seed": row["seed"], "right": row["right"], "from": str(known)}
                jobs.finish(job_of(name, row["seed"]), facts)


def measure(
    bench: Bench, jobs: Jobs, policies: Mapping[str, Policy], images: ImageSet, arguments: argparse.Namespace
) -> dict[str, list[Record]]:
    """Write a row per policy and seed: votes for the label, image by image."""
    rows: dict[str, list[Record]] = {}
    for name, seed in shared(list(product(policies, arguments.seeds)), arguments):
        job = job_of(name, seed)
        row = jobs.row(job)
        if row is None:
            print(job, file=sys.stderr, flush=True)
            bench.prepare(policies[name], steps=arguments.final_steps, seed=seed)
            right = bench.right_votes(arguments.n, purpose="shortlist", images=images)
            row = jobs.finish(job, {"policy": policies[name].widths(), "seed": seed, "right": right})
        if Policy(row["policy"]) != policies[name]:
            raise MismatchError(f"{jobs.journal.path} holds another policy for {job}; choose another --out")
        rows.setdefault(name, []).append(row)
    return rows


def table(
    bench: Bench, policies: Mapping[str, Policy], radii: Mapping[str, FloatArray], seeds: Sequence[int]
) -> list[str]:
    """List the policies, best first, and how much more the searched one has than each."""
    order = sorted(radii, key=lambda name: -radii[name].mean())
    cells = [
        [
            name,
            f"{bench.space.budget.usage(policies[name]):.1%}",
            *(f"{acr:.4f}" for acr in radii[name].mean(axis=1)),
            shown(two_level_bootstrap(np.zeros_like(radii[name]), radii[name])),
            "" if name == SEARCHED
            else shown(two_level_bootstrap(radii[name], radii[SEARCHED], paired_seeds=True), sign=True),
        ]
        for name in order
    ]  # fmt: skip
    header = ["policy", "of the budget", *(f"seed {seed}" for seed in seeds), "ACR (an estimate)", f"{SEARCHED} - this"]
    return markdown(header, cells)


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, "uniform_pairs", images=500)
    parser.add_argument("--policy", type=Path, required=True, help="policy.json of a search")
    parser.add_argument("--budget", default="bops<=3bit")
    parser.add_argument("--pairs", nargs="+", help="w3a3 ...; default: all to which no bit can be added")
    parser.add_argument("--known", type=Path, help="raw.jsonl of final_start.py")
    add_full_finetuning(parser)
    add_share(parser, "fine-tunings")
    arguments = parser.parse_args(argv)
    check_seeds(parser, arguments)
    return arguments


def main(argv: Sequence[str]) -> None:
    arguments = arguments_of(argv)
    with open_bench(arguments, budget=arguments.budget) as bench:
        policies = policies_of(bench, arguments)
        images = images_for(arguments.data, "development", bench.classifier)
        settings = {"voting": images.fingerprint(), "final_steps": arguments.final_steps, "n": arguments.n}
        with raw_file(arguments, {"experiment": "uniform_pairs", **settings, **bench.identity()}) as journal:
            jobs = Jobs(journal, arguments.work)
            if arguments.known is not None:
                take_up(arguments.known, jobs, policies)
            rows = measure(bench, jobs, policies, images, arguments)
        if arguments.share is not None:
            return
        radii = {name: bench.radii([row["right"] for row in found], arguments.n) for name, found in rows.items()}
        facts = [
            f"{arguments.final_steps:,} steps from the float weights",
            f"{len(images)} images ({images.name}) x {arguments.n:,} votes",
            arguments.budget,
        ]
        lines = table(bench, policies, radii, arguments.seeds)
        write_summary(arguments, argv, "A search against the uniform pairs of its budget", bench.about, facts, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
