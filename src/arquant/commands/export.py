"""`arquant export`: write a model for other software, and compare its answers."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

from arquant.commands.command import Watched, command
from arquant.commands.shared import ModelLike, ModelOptions, PathLike

if TYPE_CHECKING:
    from arquant.commands.console import Console


@dataclass(frozen=True)
class Export(ModelOptions, Watched):
    """Export"""

    model: ModelLike
    """a run folder, or any other MODEL with weights"""
    _: KW_ONLY
    format: Literal["onnx", "qonnx", "openvino"] = "onnx"
    """onnx runs in ONNX Runtime and OpenVINO, openvino in the latter; qonnx is for FPGA tools"""
    container: Literal["int8", "int4"] = "int8"
    """int4 halves weights of up to 4 bits"""
    sigma: float | None = None
    """noise that the model is for; what its file or run says if not given"""
    out: PathLike | None = None
    """file to write; model.onnx or model.xml in the run folder if not given"""


@command(
    Export,
    "write a model as ONNX, QONNX or OpenVINO IR, and compare its answers",
    common=("format", "container", "sigma", "out", "arch", "input"),
    examples=(
        "arquant export runs/w4 --format onnx",
        "arquant export runs/w4 --format openvino --out ship/model.xml",
    ),
)
def export(options: Export) -> dict[str, Any]:
    """Write the model of a run folder, or any MODEL, as ONNX, QONNX or OpenVINO IR, and compare its answers.

    Returns:
        The file, its size, `different_votes`: the share of noisy images that the file and the model classify differently
        (None for QONNX, which needs its own tools to run), `parity`: what `check` says of the file too, by the engine that
        ran it, and `openvino_config`: what OpenVINO must be given to compile the function that was compared.
    """
    from arquant.certification.shipping import export_compared

    return export_compared(
        options.model, format=options.format, container=options.container, sigma=options.sigma, out=options.out,
        report=options.report, note=options.note, **options.model_options,
    )  # fmt: skip


@export.shown
def _show(result: dict[str, Any], options: Export, console: "Console") -> None:
    from arquant.certification.parity import engine_name

    compared = [f"compared in {engine_name(name)}: {found['text']}" for name, found in result["parity"].items()]
    lines = [f"{result['file']}: {result['size_bytes']:,} bytes", *compared]
    if not compared:
        lines.append("its answers need QONNX tools to check")
    if result["openvino_config"]:
        settings = ", ".join(f"{name}={value}" for name, value in result["openvino_config"].items())
        lines.append(f"in OpenVINO, compile it with {settings}: its default may be bfloat16, which answers otherwise")
    if options.container == "int4":
        lines.append(
            "for ONNX Runtime: OpenVINO 2026.4 computes linear layers with int4 weights wrongly unless arquant reads them"
        )
    console.result(result, lines)
