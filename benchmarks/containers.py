"""Weights of up to 4 bits in 4-bit or in 8-bit containers: how large are the exported files, and how fast do they run?

    python benchmarks/containers.py           ResNet-20, mixed widths, sigma 0.5, sample images; 3 rounds of 10 s each
    python benchmarks/containers.py --quick   a smoke run: one short round, figures mean little

Every file is certified by every engine that runs it, each in a process of its own, in turn. Loading and compiling are not
counted. `int4_of_int8_bytes` is a ratio of sizes, the others are ratios of votes per second, int4 over int8.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from alternation import in_turn, quantized_parser
from engine import network, rate, votes_of

from arquant.engines.exporting import export_model
from arquant.engines.files import load_file_classifier
from arquant.engines.onnx_model import Container
from arquant.quantization.artifact import save_artifact
from arquant.quantization.quantized import QuantizedClassifier

CONTENDERS: dict[str, tuple[Container, str]] = {
    "int8 openvino": ("int8", "openvino"),
    "int4 openvino": ("int4", "openvino"),
    "int8 onnxruntime": ("int8", "onnxruntime"),
    "int4 onnxruntime": ("int4", "onnxruntime"),
}


def sizes(options: argparse.Namespace) -> dict[str, int]:
    """Return the bytes of every file that this network can be written to."""
    model = network(options)
    assert isinstance(model, QuantizedClassifier)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_artifact(folder / "model.safetensors", model, {})
        found = {"model.safetensors": (folder / "model.safetensors").stat().st_size}
        for container in ("int4", "int8"):
            exported = export_model(model, folder / "model.onnx", container=container)
            found[f"onnx, {container} containers"] = exported.size_bytes
        found["qonnx"] = export_model(model, folder / "model.onnx", format="qonnx").size_bytes
        found["openvino"] = export_model(model, folder / "model.xml", format="openvino").size_bytes
    return found


def votes(options: argparse.Namespace, folder: Path) -> Callable[[], int]:
    """Return the votes of the contender's file by its engine."""
    container, engine = CONTENDERS[options.contender]
    exported = export_model(network(options), folder / "model.onnx", container=container)
    return votes_of(load_file_classifier(exported.path), options, engine)


def main() -> None:
    options = quantized_parser(__doc__, CONTENDERS, n=1000).parse_args()
    if options.quick:
        options.seconds, options.rounds = 1.0, 1
    if options.contender:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(rate(votes(options, Path(folder)), options.seconds)))
        return
    found = sizes(options)
    print(f"{options.model}, {'mixed widths' if options.policy is None else options.policy}\n")
    print("\n".join(f"{name:24}{size:>9,} bytes" for name, size in found.items()))
    figures = in_turn(__file__, CONTENDERS, options)
    print(f"\nvotes per second, medians of {options.rounds} rounds")
    print("\n".join(f"{name:24}{figure['rate']:>9,.0f}" for name, figure in figures.items()))
    ratios = {"int4_of_int8_bytes": found["onnx, int4 containers"] / found["onnx, int8 containers"]}
    for engine in ("openvino", "onnxruntime"):
        ratios[f"int4_over_int8_{engine}"] = figures[f"int4 {engine}"]["rate"] / figures[f"int8 {engine}"]["rate"]
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
