"""Which quantizer and fine-tuning settings give the highest ACR at 4, 3 and 2 bits for the same number of steps?

    python experiments/finetune_defaults.py --data cifar10 --images 300

Every variant differs from the base in what its name says. A run quantizes ResNet-20 uniformly, fine-tunes it for `--steps`
steps and counts `--n` votes on the first `--images` search images, with the same training batches and the same noise for
all; the score is the ACR those votes would certify (an estimate, not a certificate). Finished runs are kept in `raw.jsonl`
and not repeated; the table has all of them (`--variants` without names only prints it). Intervals: paired bootstrap over
the images; they do not cover the noise of fine-tuning, which the base's other seeds show.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradients  # noqa: F401  (registers its quantizers)
import numpy as np
from common import FLOAT, Bench, Jobs, markdown, open_bench, parser_of, shown, write_summary

from arquant.base.journal import Journal, Record
from arquant.certificates.bounds import FloatArray, clopper_pearson_lower, radius_of
from arquant.certificates.resampling import paired_bootstrap

FLOAT_BITS = 32
BASE: dict[str, Any] = {"lr": 0.01, "schedule": "onecycle", "precision": "bfloat16", "distill": 0.0}


@dataclass(frozen=True)
class Variant:
    """Differences from the base: options of the quantizer, fields of the recipe."""

    name: str
    quantizer: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)


VARIANTS = (
    Variant("base"),
    Variant("base, seed 1", recipe={"seed": 1}),
    Variant("base, seed 2", recipe={"seed": 2}),
    Variant("lr 0.02", recipe={"lr": 0.02}),
    Variant("lr 0.05", recipe={"lr": 0.05}),
    Variant("lr 0.1", recipe={"lr": 0.1}),
    Variant("constant lr 0.01", recipe={"schedule": "constant"}),
    Variant("BatchNorm frozen", recipe={"freeze_batchnorm": True}),
    Variant("BatchNorm estimated before", {"estimate_bn": True}),
    Variant("BatchNorm settled after", recipe={"settle_batchnorm": 20}),
    Variant("clips 10x slower", recipe={"clip_lr": 0.1}),
    Variant("clips 10x faster", recipe={"clip_lr": 10.0}),
    Variant("clip kl", {"clip": "kl"}),
    Variant("clip auto", {"clip": "auto"}),
    Variant("clip max", {"clip": "max"}),
    Variant("distill 0.5", recipe={"distill": 0.5}),
    Variant("distill 1.0", recipe={"distill": 1.0}),
    Variant("consistency 1", recipe={"consistency": 1.0}),
    Variant("consistency 4", recipe={"consistency": 4.0}),
    Variant("per channel", {"per_channel": True}),
    Variant("lsq", {"learn": "lsq"}),
    Variant("ewgs 0.2", {"learn": "ewgs-0.2"}),
    Variant("ewgs 1", {"learn": "ewgs-1"}),
    Variant("damped 0.001", {"learn": "damped-0.001"}),
    Variant("damped 0.01", {"learn": "damped-0.01"}),
    Variant("float32", recipe={"precision": "float32"}),
)


def variant_of(text: str) -> Variant:
    """Return a variant by its name, or several joined by " + "."""
    known = {variant.name: variant for variant in VARIANTS}
    parts = [known[name] for name in text.split(" + ")]
    quantizer = {key: value for part in parts for key, value in part.quantizer.items()}
    recipe = {key: value for part in parts for key, value in part.recipe.items()}
    return Variant(text, quantizer, recipe)


def grouped(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Group variants of equal quantizers: they share a bench."""
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        groups.setdefault(json.dumps(variant.quantizer, sort_keys=True), []).append(variant)
    return list(groups.values())


def measure(arguments: argparse.Namespace, jobs: Jobs, variants: Sequence[Variant]) -> None:
    """Do the jobs that are missing, of variants that share a quantizer."""
    wanted = [(variant, bits) for variant in variants for bits in arguments.bits]
    missing = [(variant, bits) for variant, bits in wanted if jobs.row(job_of(variant.name, bits)) is None]
    if not missing:
        return
    with open_bench(arguments, first=True, **{"clip": "mse", **variants[0].quantizer}) as bench:
        if jobs.row(FLOAT) is None:
            finish(bench, arguments, jobs, FLOAT, {"variant": FLOAT, "bits": FLOAT_BITS})
        for variant, bits in missing:
            facts = {"variant": variant.name, "bits": bits}
            finish(bench, arguments, jobs, job_of(variant.name, bits), facts, recipe=variant.recipe)


def finish(
    bench: Bench,
    arguments: argparse.Namespace,
    jobs: Jobs,
    job: str,
    facts: Mapping[str, Any],
    recipe: Mapping[str, Any] | None = None,
) -> None:
    """Fine-tune, vote, and keep how many votes of each image were right; without a recipe, the float network's."""
    changes = {"consistency": 0.0, **BASE, "seed": arguments.seed, **(recipe or {})}
    policy = bench.policy(FLOAT if facts["bits"] == FLOAT_BITS else str(facts["bits"]))
    seconds = bench.prepare(policy, steps=0 if recipe is None else arguments.steps, **changes)
    right = bench.right_votes(arguments.n)
    jobs.finish(job, {**facts, "seconds": round(seconds, 1), "right": right})


def widths(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def job_of(name: str, bits: int | str) -> str:
    return f"{name}, {bits} bits"


def tables(rows: Sequence[Record], arguments: argparse.Namespace) -> list[str]:
    """Compare all rows with the base."""
    radii = {(row["variant"], row["bits"]): _radii(row["right"], arguments) for row in rows}
    names = dict.fromkeys(row["variant"] for row in rows if row["variant"] != FLOAT)
    header = ["variant", *(text for bits in arguments.bits for text in (f"{bits}-bit ACR", "− base [95 %]"))]
    return [
        f"Float network: {radii[FLOAT, FLOAT_BITS].mean():.4f}. Scores, not certificates.",
        "",
        *markdown(header, [[name, *_cells(radii, name, arguments.bits)] for name in names]),
    ]


def _cells(radii: Mapping[tuple[str, int | str], FloatArray], name: str, widths: Sequence[int | str]) -> Iterator[str]:
    for bits in widths:
        own, base = radii.get((name, bits)), radii.get(("base", bits))
        yield "" if own is None else f"{own.mean():.4f}"
        yield "" if own is None or base is None or name == "base" else shown(paired_bootstrap(base, own)[0], sign=True)


def _radii(right: Sequence[int], arguments: argparse.Namespace) -> FloatArray:
    lower = clopper_pearson_lower(np.asarray(right), arguments.n, arguments.alpha)
    radii: FloatArray = radius_of("grid", lower, arguments.sigma)
    return radii


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, "finetune_defaults", images=500)
    parser.add_argument(
        "--bits",
        type=widths,
        nargs="+",
        default=[4, 3, 2],
        help="w2a4, say; 32: the float network, fine-tuned likewise",
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--n", type=int, default=200, help="votes per image")
    parser.add_argument("--variants", nargs="*", help='names, or several joined by " + "; default: all single ones')
    parser.set_defaults(out=Path("results/finetune-defaults"))
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    arguments = arguments_of(argv)
    same = ("model", "data", "split", "sigma", "images", "seed", "alpha", "batch", "steps", "n")
    identity = {name: getattr(arguments, name) for name in same}
    arguments.out.mkdir(parents=True, exist_ok=True)
    with Journal(arguments.out / "raw.jsonl", {"experiment": "finetune_defaults", **identity, "base": BASE}) as journal:
        jobs = Jobs(journal, arguments.work)
        wanted = VARIANTS if arguments.variants is None else [variant_of(name) for name in arguments.variants]
        for group in grouped(wanted):
            measure(arguments, jobs, group)
        lines = tables(journal.records, arguments)
    about = ", ".join(f"{name} {value}" for name, value in identity.items() if value is not None)
    facts = [f"base: {', '.join(f'{name} {value}' for name, value in BASE.items())}, MSE clips per tensor, PACT"]
    write_summary(arguments, argv, "Fine-tuning defaults", about, facts, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
