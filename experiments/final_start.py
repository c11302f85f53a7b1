"""Should the full fine-tuning of a winner start from the float network, or from what its candidate's fine-tuning left?

    python experiments/final_start.py --data cifar10 --policy results/search/arq/policy.json --out results/final-start

With every seed the policy is fine-tuned for two epochs (780 steps) twice: from the float weights, and from the network that
60 steps of fine-tuning with another seed ended with, which is what a search keeps. Then each votes on the development images.
Interval: two-level bootstrap over images and pairs of seeds. A restart keeps the finished rows of `raw.jsonl`; several
processes may share the work (`--share 1/2`, `--share 2/2`, then once without).
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

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

from arquant.base.journal import Record
from arquant.certificates.bounds import FloatArray
from arquant.certificates.resampling import two_level_bootstrap
from arquant.images.imageset import ImageSet
from arquant.loading.roles import images_for
from arquant.quantization.policy import Policy
from arquant.searching.options import STARTS
from arquant.searching.workbench import Network


def kept_network(bench: Bench, policy: Policy, steps: int) -> Network:
    """Return the network that a search would keep of a candidate with this policy."""
    bench.prepare(policy, steps=steps, seed=bench.options.seed)
    return bench.workbench.take()


def measure(bench: Bench, jobs: Jobs, policy: Policy, images: ImageSet, arguments: argparse.Namespace) -> list[Record]:
    """Write a row per seed and start: votes for the label, image by image."""
    rows, kept = [], None
    for seed, start in shared(list(product(arguments.seeds, STARTS)), arguments):
        name = f"{start}-seed-{seed}"
        row = jobs.row(name)
        if row is None:
            bench.workbench.set_(policy)
            if start == "kept":
                kept = kept or kept_network(bench, policy, arguments.steps)
                bench.workbench.put_(kept)
            recipe = replace(bench.options.recipe, steps=arguments.final_steps, seed=seed)
            record = bench.workbench.finetune_(recipe, stage=name, report=bench.report)
            right = bench.right_votes(arguments.n, purpose="shortlist", images=images)
            facts: dict[str, Any] = {"seed": seed, "start": start, "loss": record["loss"], "right": right}
            row = jobs.finish(name, facts)
        rows.append(row)
    return rows


def radii_of(rows: Sequence[Record], start: str, bench: Bench, n: int) -> FloatArray:
    """Return the radius that n votes prove for the label: (seeds, images)."""
    return bench.radii([row["right"] for row in rows if row["start"] == start], n)


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, "final_start", images=500)
    parser.add_argument("--policy", type=Path, required=True, help="policy.json of a search")
    parser.add_argument("--steps", type=int, default=60, help="of the candidate (default %(default)s)")
    add_full_finetuning(parser)
    add_share(parser, "fine-tunings")
    arguments = parser.parse_args(argv)
    check_seeds(parser, arguments)
    return arguments


def main(argv: Sequence[str]) -> None:
    arguments = arguments_of(argv)
    policy = Policy.load(arguments.policy)
    with open_bench(arguments) as bench:
        images = images_for(arguments.data, "development", bench.classifier)
        settings = {name: getattr(arguments, name) for name in ("steps", "final_steps", "n")}
        about = {"experiment": "final_start", "policy": policy.widths(), "voting": images.fingerprint(), **settings}
        with raw_file(arguments, {**about, **bench.identity()}) as journal:
            rows = measure(bench, Jobs(journal, arguments.work), policy, images, arguments)
        if arguments.share is not None:
            return
        first, second = (radii_of(rows, start, bench, arguments.n) for start in STARTS)
        cells = [
            [
                start,
                *(f"{acr:.4f}" for acr in radii.mean(axis=1)),
                shown(two_level_bootstrap(np.zeros_like(radii), radii)),
            ]
            for start, radii in zip(STARTS, (first, second), strict=True)
        ]
        lines = markdown(["start", *(f"seed {seed}" for seed in arguments.seeds), "ACR (an estimate)"], cells)
        lines += ["", f"kept - float: {shown(two_level_bootstrap(first, second, paired_seeds=True), sign=True)}"]
        facts = [
            f"{arguments.final_steps:,} steps from the float weights, or after {arguments.steps:,} of a candidate",
            f"{len(images)} images ({images.name}) x {arguments.n:,} votes",
        ]
        write_summary(arguments, argv, "Where the full fine-tuning should start", bench.about, facts, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
