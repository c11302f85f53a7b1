"""`arquant plan`: what a search can do on this machine in so many hours, from a few seconds of measuring."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from arquant.base.errors import InputError
from arquant.base.memory import available_bytes, peak_bytes
from arquant.base.progress import duration
from arquant.base.provenance import processor
from arquant.base.threads import available_cores
from arquant.certification.run import settings_of
from arquant.commands.searching import search_task
from arquant.images.imageset import ImageSet
from arquant.loading.roles import Roles
from arquant.models.classifier import Classifier
from arquant.searching.forecast import Pace, Stage, candidate_seconds, expected_stages, measure
from arquant.searching.options import SearchOptions
from arquant.searching.run import Note
from arquant.searching.study import Limits
from arquant.searching.workbench import EngineOptions
from arquant.searching.workbench_setup import workbench_for

SAMPLE_SIZES = (1_000, 10_000, 100_000, 1_000_000)
LOOP = "search"


def plan(
    model: str | Classifier,
    data: str | ImageSet = "sample",
    *,
    sigma: float,
    budget: str | Sequence[str],
    hours: float = 1.0,
    compiled: bool = False,
    engine: str = "auto",
    device: str = "auto",
    batch: int | None = None,
    threads: int | None = None,
    note: Note = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """What `arquant search` with these options would do within `hours`, all stages included; nothing is written.

    Votes of the float model and of a quantized one, and training steps, are measured; the rest follows by counting.

    Args:
        model, data, budget: as for `search`; a network without weights is accepted.
        hours: for everything: the search loop gets what the other stages leave.
        compiled: measure compiled training steps, as a long search takes them; compiling takes a minute or so. Without
            it, candidates and fine-tuning are slower here than in the search.
        options: as for `search`.

    Returns:
        `pace`, `stages`, `loop_hours`, `candidates`, what each n can prove (`certificates`), and `memory` in bytes.
    """
    if not hours > 0:
        raise InputError(f"hours must be positive, got {hours:g}")
    task = search_task(model, data, sigma=sigma, budget=budget, note=note, weights_required=False, **options)
    engines = EngineOptions(engine, device, batch, threads)
    torch.set_num_threads(threads or available_cores())
    space = task.spaces[0]
    bench = workbench_for(
        task.classifier, space.budget.cheapest(), task.roles.calibrate, task.options, engines, layers=space.layers,
        compiled=compiled,
    )  # fmt: skip
    try:
        reference = engines.make(task.classifier, task.options.noise)
        try:
            pace = measure(bench, reference, space.uniform(space.uniform_pairs[0]), task.options)
        finally:
            reference.close()
    finally:
        bench.close()
    found = forecast_within(pace, task.options, task.roles, hours, len(task.spaces))
    return {
        "model": task.classifier.name,
        "sigma": sigma,
        "alpha": task.options.alpha,
        "budget": [space.budget.text for space in task.spaces],
        "machine": {"processor": processor(), "threads": threads or available_cores()},
        "compiled": compiled,
        "pace": asdict(pace),
        **found,
        "memory": {"peak_bytes": peak_bytes(), "available_bytes": available_bytes()},
    }


def forecast_within(pace: Pace, options: SearchOptions, roles: Roles, hours: float, budgets: int) -> dict[str, Any]:
    """What this pace makes of so many hours: the loop gets what the other stages leave."""
    stages, loop = _stages(pace, options, roles, hours, budgets)
    each = candidate_seconds(pace, options, roles)
    rows = []
    for n in sorted({*SAMPLE_SIZES, options.n}):
        other = replace(options, n=n)
        parts, left = _stages(pace, other, roles, hours, budgets)
        rows.append(
            {
                "n": n,
                "largest_radius": largest_radius(other, len(roles.certify)),
                "certify_seconds": sum(stage.seconds for stage in parts if stage.name.startswith("certify")),
                "candidates": int(left / each),
            }
        )
    return {
        "hours": hours,
        "loop_hours": loop / 3600,
        "candidates": int(loop / each),
        "candidate_seconds": each,
        "stages": [asdict(stage) for stage in stages],
        "certificates": rows,
    }


def _stages(pace: Pace, options: SearchOptions, roles: Roles, hours: float, budgets: int) -> tuple[list[Stage], float]:
    """All stages within the hours, and the seconds that are left for the loop; 0 if the others need it all."""
    others = [
        stage for stage in expected_stages(pace, options, roles, Limits(hours=hours), budgets) if stage.name != LOOP
    ]
    loop = max(3600 * hours - sum(stage.seconds for stage in others), 0.0)
    if loop == 0:
        return others, 0.0
    return expected_stages(pace, options, roles, Limits(hours=loop / 3600), budgets), loop


def largest_radius(options: SearchOptions, images: int) -> float:
    """The radius of a unanimous vote, which no certificate of this search can exceed; 0 if n votes prove nothing."""
    try:
        settings = settings_of(images, **options.certificate_options())
    except InputError:
        return 0.0
    return settings.largest_radius


def plan_lines(found: dict[str, Any]) -> list[str]:
    """The plan for people; with the `command` to type next, where the plan has one."""
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
        f"  {row['n']:9,}  {row['largest_radius']:14.3f}  {duration(row['certify_seconds']):>10}  {row['candidates']:22,}"
        for row in found["certificates"]
    ]
    lines.append(
        f"  radii at alpha {found['alpha']:g}, sigma {found['sigma']:g}; estimates, and other work slows it down"
    )
    return [*lines, "", f"next: {found['command']}"] if "command" in found else lines


def _gigabytes(size: int | None) -> str:
    return "an unknown amount" if size is None else f"{size / 1e9:.2f} GB"
