"""`arquant plan`: what a search can do on this machine in so many hours, from a few seconds of measuring."""

import shlex
from dataclasses import KW_ONLY, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from arquant.base.errors import InputError
from arquant.base.options import words_for
from arquant.commands.command import Watched, command
from arquant.commands.shared import EngineOptions
from arquant.searching.options import TaskOptions

if TYPE_CHECKING:
    from arquant.commands.console import Console


@dataclass(frozen=True)
class Plan(TaskOptions, EngineOptions, Watched):
    """Plan"""

    _: KW_ONLY
    hours: float = 1.0
    """for all stages together: the search loop gets what the others leave"""
    compiled: bool = False
    """measure compiled training, as a long search runs it; takes a minute more"""


@command(
    Plan,
    "what a search can do on this machine in so many hours, measured in seconds",
    common=(
        "hours",
        "compiled",
        "strategy",
        "preset",
        "calibrate",
        "certify",
        "split",
        "n",
        "final_epochs",
        "arch",
        "input",
    ),
    examples=('arquant plan resnet20:sigma=0.5 sample --sigma 0.5 --budget "bops<=3bit" --hours 2',),
)
def plan(options: Plan) -> dict[str, Any]:
    """Return what `arquant search` with these options would do within `hours`, all stages included; nothing is written.

    Votes of the float model and of a quantized one, and training steps, are measured; the rest follows by counting. A network
    without weights is accepted. Without `compiled`, candidates and fine-tuning are slower here than in a long search.

    Returns:
        `pace`, `stages`, `loop_hours`, `candidates`, what each n can prove (`certificates`), `memory` in bytes, and the
        `command` to type next, if there is time for a loop.
    """
    import torch

    from arquant.base.memory import available_bytes, peak_bytes
    from arquant.base.provenance import processor
    from arquant.base.threads import available_cores
    from arquant.engines.choice import EngineOptions as Engines
    from arquant.searching.planning import forecast_within, measured_pace
    from arquant.searching.task import prepare

    if not options.hours > 0:
        raise InputError(f"hours must be positive, got {options.hours:g}")
    task = prepare(options, options.note, weights_required=False)
    options.note("measuring votes and training steps")
    threads = options.threads or available_cores()
    torch.set_num_threads(threads)
    pace = measured_pace(task, Engines(**options.engine_options), compiled=options.compiled)
    found = forecast_within(pace, task.options, task.roles, options.hours, task.spaces)
    return {
        "model": task.classifier.name,
        "sigma": options.sigma,
        "alpha": options.alpha,
        "budget": task.config["budget"],
        "machine": {"processor": processor(), "threads": threads},
        "compiled": options.compiled,
        "pace": asdict(pace),
        **found,
        "memory": {"peak_bytes": peak_bytes(), "available_bytes": available_bytes()},
        **({"command": search_command(options, found["loop_hours"])} if found["loop_hours"] > 0 else {}),
    }


def search_command(options: Plan, loop_hours: float) -> str:
    """Return the search that was planned, with all its options; its loop gets what the other stages leave of the hours."""
    own = [item.name for item in fields(Plan) if item.name in Plan.__annotations__]
    words = [*words_for(options, without=own), "--hours", f"{max(loop_hours, 0.01):.2f}", "--out", "runs/search"]
    return shlex.join(["arquant", "search", *words])


@plan.shown
def _show(found: dict[str, Any], _options: Plan, console: "Console") -> None:
    console.result(found, plan_lines(found))


def plan_lines(found: dict[str, Any]) -> list[str]:
    """Return the plan for people, with the `command` to type next, where the plan has one."""
    from arquant.base.progress import duration
    from arquant.certificates.rounding import down

    pace, memory = found["pace"], found["memory"]
    how = "compiled" if found["compiled"] else "not compiled: a long search compiles them, see --compiled"
    lines = [
        f"this machine: {found['machine']['processor']}, {found['machine']['threads']} threads",
        f"  float model      {pace['float_votes']:,.0f} votes/s",
        f"  quantized model  {pace['votes']:,.0f} votes/s",
        f"  fine-tuning      {pace['steps']:.3g} steps/s ({how})",
        f"  memory           {_gigabytes(memory['peak_bytes'])} at the peak so far, "
        f"{_gigabytes(memory['available_bytes'])} free",
        "",
        f"within {found['hours']:g} h, for {', '.join(found['budget'])}:",
    ]
    lines += [f"  {s['name']:14} {duration(s['seconds']):>7}  {s['work']}" for s in found["stages"]]
    if not found["candidates"]:
        lines.append(
            "  there is no time for a candidate: give more --hours, or use a smaller --n, --final-epochs or --reference-n"
        )
    lines += ["", f"  {'n':>9}  {'largest radius':>14}  {'to certify':>10}  {'candidates in the rest':>22}"]
    lines += [
        f"  {row['n']:9,}  {down(row['largest_radius']):>14}  {duration(row['certify_seconds']):>10}  {row['candidates']:22,}"
        for row in found["certificates"]
    ]
    lines.append(
        f"  radii at alpha {found['alpha']:g}, sigma {found['sigma']:g}; estimates, and other work slows it down"
    )
    return [*lines, "", f"next: {found['command']}"] if "command" in found else lines


def _gigabytes(size: int | None) -> str:
    return "an unknown amount" if size is None else f"{size / 1e9:.2f} GB"
