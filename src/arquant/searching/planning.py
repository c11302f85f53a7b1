"""What a search can do in so many hours, by what this machine was measured to do per second."""

from dataclasses import asdict, replace
from typing import Any

from arquant.base.errors import InputError
from arquant.engines.choice import EngineOptions
from arquant.loading.roles import Roles
from arquant.searching.forecast import Pace, Stage, candidate_seconds, expected_stages, measure
from arquant.searching.method import find_method
from arquant.searching.options import SearchOptions
from arquant.searching.study import Limits
from arquant.searching.task import Task
from arquant.searching.workbench_setup import workbench_for

SAMPLE_SIZES = (1_000, 10_000, 100_000, 1_000_000)
LOOP = "search"


def measured_pace(task: Task, engines: EngineOptions, *, compiled: bool) -> Pace:
    """Measure votes of the float model and of a quantized one, and training steps.

    Raises:
        InputError: the strategy refuses its options or a budget, as it would in the search.
    """
    for space in task.spaces:
        find_method(task.options.strategy).strategy(space, task.options.seed, task.options.strategy_options)
    space = task.spaces[0]
    bench = workbench_for(
        task.classifier, space.budget.cheapest(), task.roles.calibrate, task.options, engines, layers=space.layers,
        compiled=compiled,
    )  # fmt: skip
    try:
        reference = engines.make(task.classifier, task.options.noise)
        try:
            return measure(bench, reference.images_per_second, space.uniform(space.uniform_pairs[0]), task.options)
        finally:
            reference.close()
    finally:
        bench.close()


def forecast_within(pace: Pace, options: SearchOptions, roles: Roles, hours: float, budgets: int) -> dict[str, Any]:
    """Return what this pace makes of so many hours: the loop gets what the other stages leave."""
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
    """Return all stages within the hours, and the seconds that are left for the loop; 0 if the others need it all."""
    others = [
        stage for stage in expected_stages(pace, options, roles, Limits(hours=hours), budgets) if stage.name != LOOP
    ]
    loop = max(3600 * hours - sum(stage.seconds for stage in others), 0.0)
    if loop == 0:
        return others, 0.0
    return expected_stages(pace, options, roles, Limits(hours=loop / 3600), budgets), loop


def largest_radius(options: SearchOptions, images: int) -> float:
    """Return the radius of a unanimous vote, which no certificate of this search can exceed; 0 if n votes prove nothing."""
    try:
        return options.smoothing().settings(images).largest_radius
    except InputError:
        return 0.0
