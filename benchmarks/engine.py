"""Votes per second of one quantized network through every engine, against eager fake quantization and against ART.

    python benchmarks/engine.py               ResNet-20, mixed widths, sigma 0.5, sample images; 3 rounds of 10 s each
    python benchmarks/engine.py --only float art products
    python benchmarks/engine.py --model mobilenetv2 --bits 4 --n 128 --only eager openvino ceiling
                                              seeded random weights, the sample enlarged to 224x224; or --data folder:DIR
    python benchmarks/engine.py --quick       a smoke run: one short round, figures mean little

Every contender runs in a process of its own with the default environment, in turn. Loading, tracing and compiling are
not counted: they happen once. `ceiling` and `ceiling8` are engines fed with constant data, without noise or counting.
`products` is how many votes per second of the float network large float32 matrix products of as many operations would be:
about what the processor's float32 arithmetic allows.
"""

import argparse
import json
import math
import resource
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from alternation import in_turn, quantized_parser
from subjects import float_network, images, quantized_network

from arquant.base.processor import Precision
from arquant.base.threads import available_cores
from arquant.certification.smoothing import Smoothed
from arquant.engines.choice import make_engine
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers

CONTENDERS = {
    "eager": "(a) fake quantization, PyTorch eager, per image, batch 1000 at 32x32",
    "torch": "(b) ours, PyTorch compiled",
    "openvino": "(c) ours, OpenVINO",
    "onnxruntime": "(d) ours, ONNX Runtime",
    "ceiling": "(e) OpenVINO, mixed widths, constant data",
    "ceiling8": "(f) OpenVINO, uniform 8 bits, constant data",
    "float": "(g) ours, float network",
    "art": "(h) ART, float network, batch 1000 at 32x32",
    "bfloat16": "(i) ours, float network in bfloat16",
    "products": "(j) float32 matrix products, as votes of the float network",
}
RATIOS = {
    "openvino_over_eager": ("openvino", "eager"),
    "torch_over_eager": ("torch", "eager"),
    "int8_over_art": ("openvino", "art"),
    "float_over_art": ("float", "art"),
    "bfloat16_over_art": ("bfloat16", "art"),
    "of_ceiling": ("openvino", "ceiling"),
    "lowering_of_int8": ("ceiling", "ceiling8"),
    "float_of_products": ("float", "products"),
}
BATCH, PIXELS = 1000, 3 * 32 * 32
"""of the loops that certify image by image, as their authors run them on CIFAR-10, and the numbers in such an image"""
SIDE = 1024
"""rows and columns of the matrices of `products`"""
IMAGES = 4
"""that we count votes of together; a real run has hundreds, so that even this understates us a little"""


def network(options: argparse.Namespace) -> Classifier:
    """Return the classifier that the contender runs."""
    if options.contender in ("float", "art", "bfloat16", "products"):
        return float_network(options)
    return quantized_network(options, bits=8 if options.contender == "ceiling8" else None)


def rate(step: Callable[[], int], seconds: float) -> dict[str, float]:
    """Return votes per second and per second of CPU time, of steps that return how many votes they were."""
    step()
    wall, cpu, votes = time.perf_counter(), time.process_time(), 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while time.perf_counter() - wall < seconds:
        votes += step()
    figures = {"rate": votes / (time.perf_counter() - wall), "cpu_rate": votes / (time.process_time() - cpu)}
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**figures, "peak_mb": after / 1024, "growth_mb": (after - before) / 1024}


def images_in_turn(found: ImageSet, block: int = 1) -> Iterator[ImageSet]:
    while True:
        for first in range(0, len(found) - block + 1, block):
            yield found.select(f"{first}-{first + block - 1}")


def ours(options: argparse.Namespace, kind: str, precision: Precision = "float32") -> Callable[[], int]:
    """Return the votes of the contender's network."""
    return votes_of(network(options), options, kind, precision)


def votes_of(
    classifier: Classifier, options: argparse.Namespace, kind: str, precision: Precision = "float32"
) -> Callable[[], int]:
    """Measure votes of many images, noise and counting included."""
    smoothed = Smoothed(classifier, options.sigma, engine=kind, threads=options.threads, precision=precision)
    turns = images_in_turn(images(options, classifier, "certify"), IMAGES)

    def step() -> int:
        return int(smoothed.count(next(turns), options.n, "predict", seed=0).sum())

    return step


def constant(options: argparse.Namespace) -> Callable[[], int]:
    """Measure the engine alone."""
    engine = make_engine(network(options), kind="openvino", input_kind="levels", threads=options.threads)
    noisy = np.random.default_rng(0).normal(127, 255 * options.sigma, (engine.batch, *engine.input_shape))
    buffers = [engine.buffer() for _ in range(engine.depth)]
    for buffer in buffers:
        buffer[:] = np.rint(noisy)
        engine.release(buffer)

    def step() -> int:
        done = 0
        while done < options.n:
            while engine.in_flight < engine.depth:
                engine.submit(engine.buffer())
            engine.collect()
            done += engine.batch
        return done

    return step


def eager(options: argparse.Namespace) -> Callable[[], int]:
    """Run Cohen's loop over the quantized PyTorch module: one image at a time, float noise, batch 1000."""
    classifier = network(options).eval()
    turns = images_in_turn(images(options, classifier, "certify"))
    batch_size = max(1, BATCH * PIXELS // math.prod(classifier.input_shape))

    @torch.no_grad()
    def step() -> int:
        image = torch.from_numpy(next(turns).images[0]).float() / 255
        counts = np.zeros(classifier.num_classes, int)
        left = options.n
        while left > 0:
            size = min(batch_size, left)
            left -= size
            batch = image.repeat((size, 1, 1, 1))
            labels = classifier(batch + torch.randn_like(batch) * options.sigma).argmax(1)
            counts += np.bincount(labels.numpy(), minlength=len(counts))
        return int(counts.sum())

    return step


def art(options: argparse.Namespace) -> Callable[[], int]:
    """Run ART's randomized smoothing of the float network."""
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    classifier = network(options).eval()
    smoothing = PyTorchRandomizedSmoothing(
        model=classifier,
        loss=torch.nn.CrossEntropyLoss(),
        input_shape=classifier.input_shape,
        nb_classes=classifier.num_classes,
        device_type="cpu",
        sample_size=100,
        scale=options.sigma,
    )
    turns = images_in_turn(images(options, classifier, "certify"))
    batch_size = max(1, BATCH * PIXELS // math.prod(classifier.input_shape))

    def step() -> int:
        smoothing.certify(np.asarray(next(turns).images, np.float32) / 255, n=options.n, batch_size=batch_size)
        return int(options.n) + 100

    return step


def products(options: argparse.Namespace) -> Callable[[], int]:
    """Multiply matrices with at least as many multiplications as `options.n` forward passes need."""
    per_vote = sum(layer.macs for layer in find_layers(network(options)))
    torch.set_num_threads(options.threads or available_cores())
    left, right = torch.randn(2, SIDE, SIDE)
    repeats: int = math.ceil(options.n * per_vote / SIDE**3)

    def step() -> int:
        for _ in range(repeats):
            torch.mm(left, right)
        return round(repeats * SIDE**3 / per_vote)

    return step


def run(options: argparse.Namespace) -> dict[str, float]:
    """Return one contender's figures."""
    special: dict[str, Callable[[argparse.Namespace], Callable[[], int]]] = {
        "eager": eager,
        "art": art,
        "products": products,
        "ceiling": constant,
        "ceiling8": constant,
        "float": lambda options: ours(options, "auto"),
        "bfloat16": lambda options: ours(options, "auto", "bfloat16"),
    }
    name = options.contender
    step = special[name](options) if name in special else ours(options, name)
    return rate(step, options.seconds)


def main() -> None:
    parser = quantized_parser(__doc__, CONTENDERS, n=2000)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), metavar="CONTENDER")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds, options.n = 1.0, 1, 1000
    if options.contender:
        print(json.dumps(run(options)))
        return
    figures = in_turn(__file__, options.only, options)
    print(f"{options.model}, sigma {options.sigma}, {options.n} votes per image, medians of {options.rounds} rounds")
    print(f"{'':62} {'votes/s':>8} {'per CPU s':>10} {'peak MB':>8} {'growth':>7}")
    for name, row in figures.items():
        print(
            f"{CONTENDERS[name]:62} {row['rate']:8.0f} {row['cpu_rate']:10.0f} {row['peak_mb']:8.0f} {row['growth_mb']:7.0f}"
        )
    rates = {name: row["rate"] for name, row in figures.items()}
    ratios = {key: pair for key, pair in RATIOS.items() if set(pair) <= set(rates)}
    print(json.dumps({key: round(rates[first] / rates[second], 3) for key, (first, second) in ratios.items()}))


if __name__ == "__main__":
    main()
