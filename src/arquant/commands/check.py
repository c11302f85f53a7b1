"""`arquant check`: a gate that verifies what a run folder claims."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from arquant.base.errors import RequirementError
from arquant.base.options import Repeated, Size
from arquant.commands.command import command
from arquant.commands.shared import DataLike, ModelLike, PathLike

if TYPE_CHECKING:
    from arquant.certification.checking import Finding
    from arquant.commands.console import Console


@dataclass(frozen=True)
class Check:
    """Check"""

    run: PathLike
    """a run folder"""
    _: KW_ONLY
    min_acr: float | None = None
    """smallest ACR that is enough"""
    max_bytes: Size | None = None
    """largest size of model.safetensors: 100k, 1e6"""
    min_certified: Repeated = ()
    """SHARE@RADIUS, like 0.4@0.5; may be repeated"""
    arch: str | None = None
    """the run's package.module:factory, to allow its code to run"""
    model: ModelLike | None = None
    """the certified MODEL, where the folder does not hold it"""
    data: DataLike | None = None
    """the certified DATA, where the folder does not name it"""
    replay: int = 0
    """draw all votes of so many random rows again; a few of some rows if not given"""
    fresh: int = 0
    """certify so many random images under a key that nobody knew"""


@command(
    Check,
    "verify a run folder and its requirements; exit 3 if one fails",
    common=("min_acr", "max_bytes", "min_certified", "arch", "model", "data", "replay", "fresh"),
    examples=("arquant check runs/w4 --min-acr 0.4 --max-bytes 1e6 --min-certified 0.4@0.5",),
)
def check(options: Check) -> "list[Finding]":
    """Verify a run folder, and the folder of each budget of a search; return what was found.

    File hashes, policy, budget, certificates, some votes and exported files are verified, as far as model and images are at
    hand. It shows that the files agree with each other and with what the model answers, not who made them. What cannot be
    verified is named, and a requirement that rests on it fails.
    """
    from arquant.certification.checking import check_run

    return check_run(**vars(options))


@check.shown
def _show(findings: "list[Finding]", _options: Check, console: "Console") -> None:
    from arquant.certification.checking import SHOWS, findings_json

    lines = [f"{'ok' if found.passed else 'FAILED':7} {found.check}: {found.detail}" for found in findings]
    lines += [f"unverified, {found.check}: {text}" for found in findings for text in found.unverified]
    lines.append(f"this shows {SHOWS}")
    try:
        console.result(findings_json(findings), lines)
        console.out.flush()
    except BrokenPipeError:  # the exit code is a result too
        console.give_up_output()
    failed = [found.check for found in findings if not found.passed]
    if failed:
        raise RequirementError(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}")
