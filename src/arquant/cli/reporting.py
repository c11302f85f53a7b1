"""`arquant report` and `arquant compare`."""

from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli import Command
from arquant.cli.arguments import add_output
from arquant.commands.console import Console


def _report_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run folders of certify, quantize, finetune or search; or certificate files",
    )
    parser.add_argument("--out", type=str, help="a file, or a folder for report.html; default: in the first RUN")
    parser.add_argument(
        "--format",
        choices=["html", "md", "latex", "csv"],
        default="html",
        help="one self-contained page, or tables in the field's layout",
    )
    parser.add_argument("--figures", type=str, help="also write every figure as SVG and PDF into this folder")
    add_output(parser)


def _report(args: Any, console: Console) -> None:
    from arquant.commands.report_writing import report

    written = report(*args.runs, out=args.out, format=args.format, figures=args.figures)
    for note in written.notes:
        console.warn(note)
    result = {
        "report": str(written.path),
        "data": None if written.data is None else str(written.data),
        "figures": [str(path) for path in written.figures],
        "models": list(written.models),
        "warnings": list(written.notes),
    }
    lines = [f"report on {', '.join(written.models) or 'a search'}: {written.path}"]
    lines += [f"data: {written.data}"] if written.data is not None else []
    lines += [f"figures: {len(written.figures)} files in {args.figures}"] if written.figures else []
    console.result(result, lines)


def _compare_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN_OR_TSV", help="run folders or certificate files; the first is the base"
    )
    parser.add_argument(
        "--format", choices=["text", "md", "latex", "csv"], default="text", help="how the tables are written"
    )
    add_output(parser)


def _compare(args: Any, console: Console) -> None:
    from arquant.commands.comparing import compare, comparison_json, comparison_text

    found = compare(*args.runs)
    for note in found.notes:
        console.warn(note)
    console.result(comparison_json(found), comparison_text(found, args.format).splitlines())


COMMANDS = [
    Command(
        "compare",
        "certified models side by side: ACR, accuracy, cost, paired differences",
        _compare_arguments,
        _compare,
    ),
    Command("report", "what runs found and what may be claimed, as one page or as tables", _report_arguments, _report),
]
