"""Which quantizer and fine-tuning settings give the highest ACR at 4, 3 and 2 bits for the same number of steps?

    python experiments/finetune_defaults.py --data cifar10 --out results/finetune-defaults

Every variant differs from the base in what its name says. A run quantizes ResNet-20 uniformly, fine-tunes it for `--steps`
steps and counts `--n` votes on `--images` search images, with the same training batches and the same noise for all; the
score is the ACR those votes would certify (an estimate, not a certificate). Finished runs are kept in `votes.jsonl` and not
repeated. Intervals: paired bootstrap over the images; they do not cover the noise of fine-tuning, which the base's other
seeds show.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from arquant.bounds import FloatArray, clopper_pearson_lower, radius_of
from arquant.calibration import NoisyImages
from arquant.classifier import Classifier
from arquant.datasets import load_data
from arquant.imageset import ImageSet
from arquant.layers import find_layers
from arquant.models.zoo import load_model
from arquant.noise import Noise, NoiseSource, noise_key
from arquant.policy import Policy
from arquant.provenance import provenance
from arquant.quantization import quantize
from arquant.recipe import Recipe
from arquant.resampling import paired_bootstrap
from arquant.vote_cache import sample_votes
from arquant.workbench import EngineOptions, Workbench

ALPHA = 0.001
RAW, TABLE = "votes.jsonl", "README.md"
BASE: dict[str, Any] = {"lr": 0.01, "schedule": "onecycle", "batch": 256, "precision": "bfloat16"}


@dataclass(frozen=True)
class Variant:
    """What differs from the base: arguments of `quantize`, fields of the recipe."""

    name: str
    quantizer: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)


VARIANTS = (
    Variant("base"),
    Variant("base, seed 1", recipe={"seed": 1}),
    Variant("base, seed 2", recipe={"seed": 2}),
    Variant("lr 0.02", recipe={"lr": 0.02}),
    Variant("lr 0.05", recipe={"lr": 0.05}),
    Variant("constant lr 0.01", recipe={"schedule": "constant"}),
    Variant("BatchNorm frozen", recipe={"freeze_batchnorm": True}),
    Variant("BatchNorm estimated before", {"estimate_bn": True}),
    Variant("BatchNorm settled after", recipe={"settle_batchnorm": 20}),
    Variant("clips 10x slower", recipe={"clip_lr": 0.1}),
    Variant("clips 10x faster", recipe={"clip_lr": 10.0}),
    Variant("clip kl", {"clip": "kl"}),
    Variant("clip max", {"clip": "max"}),
    Variant("distill 0.5", recipe={"distill": 0.5}),
    Variant("distill 1.0", recipe={"distill": 1.0}),
    Variant("per channel", {"per_channel": True}),
    Variant("lsq", {"learn": "lsq"}),
    Variant("float32", recipe={"precision": "float32"}),
)


def main() -> None:
    """Run what is missing, then write the table."""
    args = _arguments()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    lab = Laboratory(args)
    wanted = [_variant(name) for name in args.variants] if args.variants else list(VARIANTS)
    rows = _read(out / RAW)
    done = {(row["variant"], row["bits"]) for row in rows}
    if ("float", 32) not in done:
        rows.append(_append(out / RAW, lab.float_row()))
    for group in _grouped(wanted):
        missing = [(v, bits) for v in group for bits in args.bits if (v.name, bits) not in done]
        for row in lab.rows(group[0].quantizer, missing):
            rows.append(_append(out / RAW, row))
            print(f"{row['variant']}, {row['bits']} bits: {row['seconds']:.0f} s", flush=True)
    table = _table(rows, args)
    (out / TABLE).write_text(table, encoding="utf-8")
    print(table)


def _grouped(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Variants of equal quantizers together: they share a compiled model."""
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        groups.setdefault(json.dumps(variant.quantizer, sort_keys=True), []).append(variant)
    return list(groups.values())


def _variant(text: str) -> Variant:
    """A variant by its name, or several joined by " + "."""
    known = {variant.name: variant for variant in VARIANTS}
    parts = [known[name] for name in text.split(" + ")]
    quantizer = {key: value for part in parts for key, value in part.quantizer.items()}
    recipe = {key: value for part in parts for key, value in part.recipe.items()}
    return Variant(text, quantizer, recipe)


class Laboratory:
    """The float model, the images, and how a network's votes are counted."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.classifier: Classifier = load_model(args.model)
        self.layers = find_layers(self.classifier)
        self.train: ImageSet = load_data(args.data, "calibrate")
        self.images: ImageSet = load_data(args.data, "search").select(f"first:{args.images}")
        self.base = Recipe(sigma=args.sigma, steps=args.steps, **{**BASE, "batch": args.batch})

    def float_row(self) -> dict[str, Any]:
        """The float model's votes."""
        engine = EngineOptions().make(self.classifier, "grid")
        try:
            return {"variant": "float", "bits": 32, "seconds": 0.0, "right": self._right(engine)}
        finally:
            engine.close()

    def rows(self, quantizer: dict[str, Any], runs: Sequence[tuple[Variant, int]]) -> Iterator[dict[str, Any]]:
        """Fine-tune and count, one run after the other, on one quantized model."""
        if not runs:
            return
        sigma = self.args.sigma
        statistics = NoisyImages(self.train, self.classifier, sigma=sigma) if quantizer.get("estimate_bn") else None
        options = {key: value for key, value in quantizer.items() if key != "estimate_bn"}
        quantized = quantize(self.classifier, 8, self.train, sigma=sigma, layers=self.layers, **options)
        bench = Workbench(self.classifier, quantized, self.train, statistics=statistics, compiled=self.args.steps >= 20)
        for variant, bits in runs:
            bench.set_(Policy.uniform(self.layers, bits))
            record = bench.finetune_(replace(self.base, **variant.recipe))
            with bench.engine() as engine:
                right = self._right(engine)
            yield {
                "variant": variant.name,
                "bits": bits,
                "seconds": record["seconds"],
                "loss": record["loss"],
                "right": right,
            }
        bench.close()

    def _right(self, engine: Any) -> list[int]:
        source = NoiseSource(Noise("grid", self.args.sigma), noise_key(0, "search"), self.images.shape)
        votes = sample_votes(
            engine,
            self.images,
            source,
            0,
            self.args.n,
            num_classes=self.classifier.num_classes,
            on_votes=lambda _: None,
        )
        return [int(count) for count in (votes == self.images.labels[:, None]).sum(axis=1)]


def _table(rows: Sequence[dict[str, Any]], args: argparse.Namespace) -> str:
    radii = {(row["variant"], row["bits"]): _radii(row["right"], args) for row in rows}
    names = list(dict.fromkeys(row["variant"] for row in rows if row["variant"] != "float"))
    float_acr = radii["float", 32].mean()
    origin = provenance()
    header = "".join(f" {bits}-bit ACR | − base [95 %] |" for bits in args.bits)
    lines = [
        "# Fine-tuning defaults",
        "",
        f"ResNet-20 ({args.model}), σ = {args.sigma}, uniform widths (first and last layer 8), {args.steps} steps of batch "
        f"{args.batch}; score on {args.images} search images × {args.n} votes, α = {ALPHA}, seed 0, common noise. "
        f"Scores, not certificates. Float network: {float_acr:.4f}.",
        "",
        f"Base: {', '.join(f'{key} {value}' for key, value in BASE.items())}, MSE clips per tensor, PACT.",
        "",
        f"Command: `{origin['command']}`; commit {origin['commit']}; raw: `{RAW}`.",
        "",
        f"| variant |{header}",
        f"|---|{'---|---|' * len(args.bits)}",
    ]
    for name in names:
        cells = [_cells(radii, name, bits) for bits in args.bits]
        lines.append(f"| {name} |{''.join(cells)}")
    return "\n".join(lines) + "\n"


def _cells(radii: dict[tuple[str, int], FloatArray], name: str, bits: int) -> str:
    if (name, bits) not in radii:
        return " | |"
    own = radii[name, bits]
    if name == "base":
        return f" {own.mean():.4f} | |"
    (gap,) = paired_bootstrap(radii["base", bits], own)
    return f" {own.mean():.4f} | {gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}] |"


def _radii(right: Sequence[int], args: argparse.Namespace) -> FloatArray:
    lower = clopper_pearson_lower(np.asarray(right), args.n, ALPHA)
    radii: FloatArray = radius_of("grid", lower, args.sigma)
    return radii


def _read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _append(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="resnet20:sigma=0.5")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--sigma", type=float, default=0.5)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 3, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--variants", nargs="*", help='names, or several joined by " + "; default: all single ones')
    parser.add_argument("--out", type=Path, default=Path("results/finetune-defaults"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
