"""`arquant export` and `arquant check`."""

from typing import Any

from jsonargparse import ArgumentParser

from arquant.base.errors import RequirementError
from arquant.cli import Command
from arquant.cli.arguments import add_model, add_output, integer, model_options, size
from arquant.commands.console import Console


def _export_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--format",
        choices=["onnx", "qonnx", "openvino"],
        default="onnx",
        help="onnx runs in ONNX Runtime and OpenVINO, openvino in the latter; qonnx is for FPGA tools",
    )
    parser.add_argument(
        "--container", choices=["int8", "int4"], default="int8", help="int4 halves weights of up to 4 bits"
    )
    parser.add_argument("--sigma", type=float, help="noise the model is for; default: what its file or run says")
    parser.add_argument("--out", type=str, help="file to write; default: model.onnx or model.xml in the run folder")
    add_output(parser)


def _export(args: Any, console: Console) -> None:
    from arquant.commands.shipping import export

    result = export(
        args.model, format=args.format, container=args.container, out=args.out, sigma=args.sigma, **model_options(args)
    )
    same = result["different_votes"]
    parity = (
        "its answers need QONNX tools to check" if same is None else f"{same:.2%} of noisy images answered differently"
    )
    lines = [f"{result['file']}: {result['size_bytes']:,} bytes; {parity}"]
    if result["openvino_config"]:
        settings = ", ".join(f"{name}={value}" for name, value in result["openvino_config"].items())
        lines.append(f"in OpenVINO, compile it with {settings}: its default may be bfloat16, which answers otherwise")
    if args.container == "int4":
        lines.append(
            "for ONNX Runtime: OpenVINO 2026.4 computes linear layers with int4 weights wrongly unless arquant reads them"
        )
    console.result(result, lines)


def _check_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder")
    parser.add_argument("--min-acr", type=float, help="smallest ACR that is enough")
    parser.add_argument("--max-bytes", type=size, help="largest size of model.safetensors: 100k, 1e6")
    parser.add_argument(
        "--min-certified", action="append", type=str, default=[], help="SHARE@RADIUS, like 0.4@0.5; repeatable"
    )
    parser.add_argument("--arch", type=str, help="the run's package.module:factory, to allow its code to run")
    parser.add_argument("--model", type=str, help="the certified MODEL, where the folder does not hold it")
    parser.add_argument("--data", type=str, help="the certified DATA, where the folder does not name it")
    parser.add_argument(
        "--replay", type=integer, default=0, metavar="K", help="draw all votes of K random rows again (default: a few)"
    )
    parser.add_argument(
        "--fresh", type=integer, default=0, metavar="K", help="certify K random images under a key that nobody knew"
    )
    add_output(parser)


def _check(args: Any, console: Console) -> None:
    from arquant.commands.checking import SHOWS, check, findings_json

    findings = check(
        args.run, min_acr=args.min_acr, max_bytes=args.max_bytes, min_certified=args.min_certified, arch=args.arch,
        model=args.model, data=args.data, replay=args.replay, fresh=args.fresh,
    )  # fmt: skip
    lines = [f"{'ok' if f.passed else 'FAILED':7} {f.check}: {f.detail}" for f in findings]
    lines += [f"unverified, {f.check}: {text}" for f in findings for text in f.unverified]
    lines.append(f"this shows {SHOWS}")
    failed = [f.check for f in findings if not f.passed]
    try:
        console.result(findings_json(findings), lines)
        console.out.flush()
    except BrokenPipeError:  # the exit code is a result too
        console.give_up_output()
    if failed:
        raise RequirementError(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}")


COMMANDS = [
    Command(
        "export", "write a model as ONNX, QONNX or OpenVINO IR, and compare its answers", _export_arguments, _export
    ),
    Command("check", "verify a run folder and its requirements; exit 3 if one fails", _check_arguments, _check),
]
