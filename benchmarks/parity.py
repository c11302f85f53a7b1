"""Do the engines cast the same votes? Every pair of them on the same noisy images, and what it does to the ACR.

    python benchmarks/parity.py --out results/parity.md
    python benchmarks/parity.py --model vit_tiny --bits 4 --images 8 --n 256     seeded random weights

Prints and writes a table: the share of votes that differ, how much the logits differ (in units of their standard
deviation), and the average certified radius that each engine's votes give. All engines run one after the other.
"""

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from subjects import add_subject, float_network, images, quantized_network

from arquant.base.processor import Precision
from arquant.base.provenance import provenance
from arquant.certificates.bounds import certified_radius, clopper_pearson_lower
from arquant.engines.choice import make_engine
from arquant.engines.onnxruntime import OnnxRuntimeEngine
from arquant.engines.openvino import OpenVinoEngine
from arquant.engines.torch import LabelsFromPixels
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.noise.source import CHUNK, Noise, NoiseSource, noise_key

ENGINES = ("torch eager", "torch", "openvino", "onnxruntime")
ALPHA = 0.001
Answer = Callable[[np.ndarray], np.ndarray]


class Logits:
    """PyTorch's logits, of the module as it is or compiled as the engine compiles it."""

    def __init__(self, classifier: Classifier, *, compiled: bool) -> None:
        network = LabelsFromPixels(classifier, "levels").eval()
        self._run = torch.compile(network.logits, options={"freezing": True}) if compiled else network.logits

    @torch.no_grad()
    def logits_of(self, batch: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(batch).contiguous(memory_format=torch.channels_last)
        logits: np.ndarray = self._run(pixels).numpy()
        return logits

    def labels_of(self, batch: np.ndarray) -> np.ndarray:
        labels: np.ndarray = self.logits_of(batch).argmax(1)
        return labels


def answers(classifier: Classifier, name: str) -> tuple[Answer, Answer]:
    """Return functions by which an engine gets from noisy images to labels, and to logits."""
    if name == "torch eager":
        eager = Logits(classifier, compiled=False)
        return eager.labels_of, eager.logits_of
    kind, _, coarse = name.partition(" ")
    precision: Precision = "bfloat16" if coarse else "float32"
    engine = make_engine(classifier, kind=kind, batch=CHUNK, input_kind="levels", precision=precision)
    if isinstance(engine, OpenVinoEngine | OnnxRuntimeEngine):
        return engine.labels_of, engine.logits_of
    return engine.labels_of, Logits(classifier, compiled=True).logits_of


class Votes:
    """The labels (images, n) that an engine gives, and logits of the first chunk of each image."""

    def __init__(self, classifier: Classifier, name: str, images: ImageSet, sigma: float, n: int) -> None:
        source = NoiseSource(Noise("grid", sigma), noise_key(0, "check"), classifier.input_shape)
        labels_of, logits_of = answers(classifier, name)
        batch = np.empty((CHUNK, *classifier.input_shape), np.int16)
        self.labels = np.empty((len(images), n), np.int64)
        self.logits = np.empty((len(images), CHUNK, classifier.num_classes), np.float32)
        for row, first in itertools.product(range(len(images)), range(0, n, CHUNK)):
            source.add(images.images[row], int(images.indices[row]), first, CHUNK, batch)
            self.labels[row, first : first + CHUNK] = labels_of(batch)
            if first == 0:
                self.logits[row] = logits_of(batch)

    def acr(self, truth: np.ndarray, sigma: float) -> float:
        """Return the ACR: the first chunk of votes selects the class, the others certify it."""
        rest = self.labels[:, CHUNK:]
        radii = []
        for select, votes, label in zip(self.labels[:, :CHUNK], rest, truth, strict=True):
            best = int(np.bincount(select).argmax())
            lower = clopper_pearson_lower(int((votes == best).sum()), votes.size, ALPHA)
            radii.append(certified_radius(lower, sigma) if best == label else 0.0)
        return float(np.mean(radii))


def rows_of(votes: dict[str, Votes]) -> list[dict[str, Any]]:
    """Return one row for each pair of engines."""
    rows = []
    for (first, a), (second, b) in itertools.combinations(votes.items(), 2):
        error = np.abs(a.logits - b.logits).max(2) / a.logits.std()
        rows.append(
            {
                "pair": f"{first} / {second}",
                "differing_votes": float((a.labels != b.labels).mean()),
                "median_logit_error": float(np.median(error)),
                "largest_logit_error": float(error.max()),
                "images_with_error": float((error > 1e-4).mean()),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_subject(parser)
    parser.add_argument("--float", action="store_true", help="compare the engines on the float network")
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--n", type=int, default=1024, help="votes per image, a multiple of 64")
    parser.add_argument(
        "--engines", default=",".join(ENGINES), help='comma between them; "openvino bfloat16" for that precision'
    )
    parser.add_argument("--out", type=Path, help="write the table there, and JSON beside it")
    options = parser.parse_args()
    classifier = float_network(options) if options.float else quantized_network(options)
    shown = images(options, classifier, "search").select(f"first:{options.images}")
    engines = options.engines.split(",")
    votes = {name: Votes(classifier, name, shown, options.sigma, options.n) for name in engines}
    rows, acr = rows_of(votes), {name: each.acr(shown.labels, options.sigma) for name, each in votes.items()}
    origin = provenance()
    lines = [
        f"{options.model}, {'float' if options.float else 'quantized'}, sigma {options.sigma}, "
        f"{len(shown)} search images x {options.n} votes, the same noise for all engines; alpha {ALPHA}, seed 0",
        "",
        f"`{origin['command']}`, commit {origin['commit']}",
        "",
        "| engines | differing votes | noisy images whose logits differ | median | largest (std of logits) |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['pair']} | {row['differing_votes']:.5%} | {row['images_with_error']:.3%} "
        f"| {row['median_logit_error']:.1e} | {row['largest_logit_error']:.1e} |"
        for row in rows
    ]
    lines += ["", "| engine | ACR |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in acr.items())]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
        options.out.with_suffix(".json").write_text(json.dumps({"pairs": rows, "acr": acr}, indent=1) + "\n")
    print(json.dumps({"largest_differing_share": max((row["differing_votes"] for row in rows), default=0.0)}))


if __name__ == "__main__":
    main()
