"""Argument types and the groups of options that several commands share."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from jsonargparse import ArgumentParser

from arquant.base.units import PREFIXES
from arquant.commands.console import PROGRESS

CLIP_RULES = ["auto", "mse", "kl", "max"]
"""those of `arquant.quantization.clipping`, which is slow to import"""
NOISES = ["grid", "gaussian", "uniform", "laplace"]
"""those of `arquant.noise.source`, which is slow to import, too"""


def integer(text: str | float) -> int:
    """A whole number; 1e6 is one."""
    try:
        number = int(text) if str(text).lstrip("+-").isdecimal() else float(text)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError, TypeError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 1000 or 1e6")


def size(text: str | float) -> int:
    """A number of bytes, such as 100k or 1e6."""
    number = str(text).rstrip("kKMGTi")
    try:
        return int(float(number) * PREFIXES[str(text)[len(number) :]])
    except (ValueError, OverflowError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes, such as 100k or 1e6") from None


def listed(convert: Callable[[str], Any], count: int | None = None) -> Callable[[str], tuple[Any, ...]]:
    """A comma-separated list, of `count` entries if stated."""

    def parse(text: str | Sequence[Any]) -> tuple[Any, ...]:
        parts = str(text).split(",") if isinstance(text, str) else list(text)  # a default or a YAML list is a sequence
        try:
            values = tuple(convert(str(part).strip()) for part in parts)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a comma-separated list of numbers") from None
        if count is not None and len(values) != count:
            raise argparse.ArgumentTypeError(f"{text!r} has {len(values)} values, expected {count}")
        return values

    return parse


def add_model(parser: ArgumentParser) -> None:
    """MODEL and what describes one that is not ours."""
    parser.add_argument(
        "model",
        help="resnet20:sigma=0.5 (shipped weights), resnet20 | vit_tiny | mobilenetv2 | resnet50, a run folder, "
        "model.safetensors, .onnx, OpenVINO .xml, weights.pt with --arch, timm:NAME, torchvision:NAME, package.module:factory",
    )
    group = parser.add_argument_group("a model of your own")
    group.add_argument(
        "--arch",
        type=str,
        help="network of a state-dict file, or the factory that a run folder may call",
    )
    group.add_argument("--mean", type=listed(float), help="normalisation, per channel: 0.49,0.48,0.45")
    group.add_argument("--std", type=listed(float), help="normalisation, per channel")
    group.add_argument(
        "--bounds", type=listed(float, 2), default=(0.0, 1.0), help="smallest and largest pixel value; default 0,1"
    )
    group.add_argument("--input", type=listed(integer, 3), help="channels,height,width: 3,32,32")
    group.add_argument("--classes", type=integer, help="number of classes")


def model_options(args: Any) -> dict[str, Any]:
    """The options of `add_model` as keyword arguments of the commands."""
    return {
        "arch": args.arch,
        "mean": args.mean,
        "std": args.std,
        "bounds": tuple(args.bounds),
        "input_shape": args.input,
        "num_classes": args.classes,
    }


def add_data(parser: ArgumentParser, *, default: str | None = "sample") -> None:
    """DATA and which of its images; without a default, the run's come first."""
    parser.add_argument(
        "data",
        nargs="?",
        default=default,
        help="sample (embedded CIFAR-10 images), cifar10[:DIR], folder:DIR (one folder per class), npz:FILE (images, "
        f"labels), package.module:factory; default: {'sample' if default else 'what the run folder kept, else sample'}",
    )
    parser.add_argument(
        "--images", type=str, help="which images of the role: every:20 | first:500 | most:500 | 0-499; default all"
    )


def add_smoothing(
    parser: ArgumentParser,
    *,
    n: int = 10_000,
    risk: str = "probability that a certificate may be wrong, per image",
    seed: str = "of the noise",
) -> None:
    """Noise, sample sizes and confidence; `risk` and `seed` say what alpha and the seed are of."""
    group = parser.add_argument_group("smoothing")
    group.add_argument(
        "--sigma",
        type=float,
        help="standard deviation of the noise; 1.0 is black to white; default: that of the model, if known",
    )
    group.add_argument(
        "--noise",
        choices=NOISES,
        help="grid (Gaussian on the pixel grid) and gaussian prove l2 radii, uniform and laplace l1; default: that of the "
        "run, else grid",
    )
    group.add_argument("--n", type=integer, default=n, help="noisy samples per image")
    group.add_argument("--alpha", type=float, default=0.001, help=risk)
    group.add_argument("--seed", type=integer, default=0, help=seed)


def smoothing_options(args: Any) -> dict[str, Any]:
    """The options of `add_smoothing` and `add_engine`, with --images and --out, as keyword arguments of the commands."""
    names = ("sigma", "noise", "n", "alpha", "seed", "images", "out", "engine", "device", "batch", "threads")
    return {name: args[name] for name in names}


def add_engine(parser: ArgumentParser) -> None:
    """How votes are computed."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--engine",
        choices=["auto", "torch", "openvino", "onnxruntime"],
        default="auto",
        help="what computes the votes; auto: openvino on a CPU, if it can run the model",
    )
    group.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda, ...")
    group.add_argument("--batch", type=integer, help="noisy images per batch")
    group.add_argument("--threads", type=integer, help="CPU threads; default: as many as there are cores")


def add_tensorboard(parser: ArgumentParser) -> None:
    """Where to log for TensorBoard."""
    parser.add_argument("--tensorboard", type=str, help="also log to this folder, for TensorBoard (an extra)")


def add_training_threads(group: Any) -> None:
    """How many threads train."""
    group.add_argument(
        "--threads", type=integer, help="of PyTorch; default: as many as there are cores for this process"
    )


def add_output(parser: ArgumentParser) -> None:
    """How results and progress are shown, and a configuration file."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the result as one JSON object")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, notes or warnings; errors only")
    group.add_argument(
        "--progress", choices=PROGRESS, default="auto",
        help="bars where stderr is a terminal, else lines; json: one object per line on stderr, for programs",
    )  # fmt: skip
    group.add_argument("-v", "--verbose", action="store_true", help="show where an internal error happened")
    group.add_argument("--config", type=str, help="a YAML file of these options; flags override it")
