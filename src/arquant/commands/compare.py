"""`arquant compare`: certified models side by side, each against the first."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from arquant.commands.command import command
from arquant.commands.shared import Paths
from arquant.reporting.options import TableFormat

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.reporting.model import Report


@dataclass(frozen=True)
class Compare:
    """Compare"""

    runs: Paths
    """run folders or certificate files; the first is the base"""
    _: KW_ONLY
    format: TableFormat = "text"
    """how the tables are printed"""


@command(
    Compare,
    "certified models side by side: ACR, accuracy, cost, paired differences",
    common=("format",),
    examples=("arquant compare runs/float runs/w4 runs/w3",),
)
def compare(options: Compare) -> "Report":
    """Compare run folders or certificate files with the first of them, paired by image: `compare(["runs/float", "runs/w4"])`.

    Nothing in the runs is changed and no code that they name is run.

    Raises:
        MismatchError: images, labels, sigma, n, alpha, certificate type or norm differ from the first's.
    """
    from arquant.reporting.gathering import gather_comparison

    return gather_comparison(options.runs)


@compare.shown
def _show(found: "Report", options: Compare, console: "Console") -> None:
    from arquant.reporting.comparison import comparison_json, comparison_text

    for note in found.notes:
        console.warn(note)
    console.result(comparison_json(found), comparison_text(found, options.format).splitlines())
