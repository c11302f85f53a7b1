"""How often does a quantized network vote otherwise than the float one on the same noise, before and after fine-tuning?

    python experiments/disagreement.py --data cifar10 --out results/disagreement

For uniform 8, 4, 3 and 2 bits, and for the float network itself fine-tuned in the same way: the share zeta of noisy
copies whose labels differ, over all images and image by image; how many votes the true label loses and gains; and the
ACR that n votes certify. 60 steps of fine-tuning, 500 search images x 1,000 votes. A restart keeps the finished rows of
`raw.jsonl`.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Bench, Jobs, markdown, open_bench, parser_of, shown, write_summary

from arquant.base.journal import Journal, Record
from arquant.certificates.resampling import bootstrap_mean, paired_bootstrap
from arquant.certification.incremental import replay_of
from arquant.certification.vote_cache import VoteCache, Votes

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
PAYS = 0.02
"""IRS can only pay where networks disagree on fewer samples than this (about, at n = 500)"""


def counts_of(cache: VoteCache, votes: Votes) -> dict[str, Any]:
    """Count per image: samples with different labels, votes that the true label lost and gained, votes for it."""
    replay = replay_of(cache, votes, cache.labels)
    names = ("disagreements", "lost", "gained", "votes")
    return {"n": votes.shape[1], **{name: np.asarray(getattr(replay, name)).tolist() for name in names}}


def measure(
    bench: Bench, jobs: Jobs, cache: VoteCache, bits: Sequence[str], steps: Sequence[int], n: int
) -> list[Record]:
    rows = []
    for name in bits:
        for count in sorted(set(steps)):
            job = f"{name}-bits-{count}-steps"
            row = jobs.row(job)
            if row is None:
                seconds = bench.prepare(bench.policy(name), steps=count, seed=bench.options.seed)
                votes, voting = bench.vote(n)
                facts = {"bits": name, "steps": count, "finetune_seconds": seconds, "votes_seconds": voting}
                row = jobs.finish(job, {**facts, **counts_of(cache, votes)})
            rows.append(row)
    return rows


def tables(rows: Sequence[Record], cache: VoteCache, bench: Bench, n: int) -> list[str]:
    first = cache.votes[:, :n] == cache.labels[:, None]
    float_radii = bench.radii(first.sum(axis=1), n)
    main, spread = [], []
    for row in rows:
        shares = {name: np.asarray(row[name]) / n for name in ("disagreements", "lost", "gained")}
        zeta, lost, gained = (bootstrap_mean(each)[0] for each in shares.values())
        gap = paired_bootstrap(float_radii, bench.radii(row["votes"], n))[0]
        label = [row["bits"], str(row["steps"])]
        main.append([*label, *(shown(each, 2, percent=True) for each in (zeta, lost, gained)), shown(gap, sign=True)])
        quantiles = np.quantile(shares["disagreements"], QUANTILES)
        below = np.mean(shares["disagreements"] < PAYS)
        spread.append([*label, *(f"{100 * each:.1f} %" for each in quantiles), f"{100 * below:.1f} %"])
    names = ["bits", "steps"]
    return [
        f"ACR of the float network at n = {n:,}: {shown(bootstrap_mean(float_radii)[0])}.",
        "",
        *markdown([*names, "disagreement zeta", "label loses", "label gains", "ACR against float"], main),
        "",
        "Disagreement image by image:",
        "",
        *markdown([*names, *(f"{round(100 * q)} % quantile" for q in QUANTILES), f"images below {PAYS:.0%}"], spread),
    ]


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, "disagreement", images=500)
    parser.add_argument("--bits", nargs="+", default=["float", "8", "4", "3", "2"])
    parser.add_argument("--steps", nargs="+", type=int, default=[0, 60], help="of fine-tuning; 0 is before it")
    parser.add_argument("--n", type=int, default=1000, help="votes per image")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    arguments = arguments_of(argv)
    with open_bench(arguments) as bench:
        identity = {"experiment": "disagreement", "n": arguments.n, **bench.identity()}
        cache = bench.reference(arguments.work / "reference", arguments.n)
        with Journal(arguments.out / "raw.jsonl", identity) as journal:
            jobs = Jobs(journal, arguments.work)
            rows = measure(bench, jobs, cache, arguments.bits, arguments.steps, arguments.n)
        facts = [
            f"n = {arguments.n:,} votes per image on common noise",
            f"batch {arguments.batch}, lr {bench.options.recipe.lr}",
        ]
        title = "Disagreement between the float and the quantized network"
        write_summary(arguments, argv, title, bench.about, facts, tables(rows, cache, bench, arguments.n))


if __name__ == "__main__":
    main(sys.argv[1:])
