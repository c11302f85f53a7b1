"""`arquant report`: what runs found and what may be claimed, as a page, tables or figures."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from arquant.commands.command import command
from arquant.commands.shared import PathLike, Paths
from arquant.reporting.options import Format

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.reporting.writing import Written


@dataclass(frozen=True)
class Report:
    """Report"""

    runs: Paths
    """run folders of certify, quantize, finetune or search; or certificate files; or the folder of one benchmark"""
    _: KW_ONLY
    out: PathLike | None = None
    """a file, or a folder for report.html; in the first run if not given"""
    format: Format = "html"
    """one self-contained page, tables in the field's layout, or a model card for a model hub"""
    figures: PathLike | None = None
    """also write every figure as SVG and PDF into this folder"""


@command(
    Report,
    "what runs found and what may be claimed, as one page, tables or a model card",
    common=("out", "format", "figures"),
    examples=(
        "arquant report runs/w4 runs/float",
        "arquant report runs/search --format latex --figures figures",
        "arquant report runs/w4 --format card --out README.md",
    ),
)
def report(options: Report) -> "Written":
    """Write a report on one or several runs: `report("runs/w4")`, `report(["runs/w4", "runs/float"])`.

    Nothing in the runs is changed and no code that they name is run. What cannot be read is noted in the report.

    Returns:
        The files that were written, the models in them, and what was warned of.
    """
    from arquant.reporting.writing import write_report

    return write_report(options.runs, out=options.out, format=options.format, figures=options.figures)


@report.shown
def _show(written: "Written", options: Report, console: "Console") -> None:
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
    lines += [f"figures: {len(written.figures)} files in {options.figures}"] if written.figures else []
    console.result(result, lines)
