"""`arquant data`: public data sets, put into a cache folder and verified."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from arquant.commands.command import Watched, command
from arquant.commands.shared import PathLike

if TYPE_CHECKING:
    from arquant.commands.console import Console


@dataclass(frozen=True)
class Data(Watched):
    """Data"""

    name: Literal["cifar10"] = "cifar10"
    """which data set"""
    _: KW_ONLY
    dir: PathLike | None = None
    """where to put it; $ARQUANT_CACHE or ~/.cache/arquant if not given"""


@command(
    Data, "fetch the full CIFAR-10 into the cache folder, verified", common=("dir",), examples=("arquant data cifar10",)
)
def data(options: Data) -> Path:
    """Fetch the whole data set unless it is there already, check every file, and return its folder."""
    from arquant.images.cifar10_fetch import fetch_cifar10

    return fetch_cifar10(options.dir, log=options.note)


@data.shown
def _show(folder: Path, _options: Data, console: "Console") -> None:
    console.result({"directory": str(folder)}, [f"CIFAR-10 is complete and verified in {folder}"])
