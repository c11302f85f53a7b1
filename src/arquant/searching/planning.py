"""What a search can do in so many hours, by what this machine was measured to do per second."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from arquant.base.errors import InputError
from arquant.engines.choice import EngineOptions
from arquant.loading.roles import Roles
from arquant.searching.forecast import (
    Loop,
    Pace,
    Stage,
    candidate_seconds,
    expected_loop,
    expected_stages,
    measure,
    steps_of,
)
from arquant.searching.method import find_method
from arquant.searching.options import SearchOptions
from arquant.searching.space import Space
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


def forecast_within(
    pace: Pace, options: SearchOptions, roles: Roles, hours: float, spaces: Sequence[Space]
) -> dict[str, Any]:
    """Return what this pace makes of so many hours: the loop gets what the other stages leave."""
    stages, loop = _stages(pace, options, roles, hours, spaces)
    rows = []
    for n in sorted({*SAMPLE_SIZES, options.n}):
        other = replace(options, n=n)
        parts, left = _stages(pace, other, roles, hours, spaces)
        rows.append(
            {
                "n": n,
                "largest_radius": largest_radius(other, len(roles.certify)),
                "certify_seconds": sum(stage.seconds for stage in parts if stage.name.startswith("certify")),
                "candidates": left.candidates,
            }
        )
    return {
        "hours": hours,
        "loop_hours": loop.seconds / 3600,
        "candidates": loop.candidates,
        "candidate_seconds": candidate_seconds(pace, options, roles, steps_of(options.recipe, roles)),
        "stages": [asdict(stage) for stage in stages],
        "certificates": rows,
    }


def _stages(
    pace: Pace, options: SearchOptions, roles: Roles, hours: float, spaces: Sequence[Space]
) -> tuple[list[Stage], Loop]:
    """Return all stages within the hours, and the loop, which gets what the others leave; nothing if they need it all."""
    others = [
        stage for stage in expected_stages(pace, options, roles, Limits(hours=hours), spaces) if stage.name != LOOP
    ]
    left = 3600 * hours - sum(stage.seconds for stage in others)
    if left <= 0:
        return others, Loop({}, 0.0)
    limits = Limits(hours=left / 3600)
    stages = expected_stages(pace, options, roles, limits, spaces)
    return stages, expected_loop(pace, options, roles, limits, spaces)


def largest_radius(options: SearchOptions, images: int) -> float:
    """Return the radius of a unanimous vote, which no certificate of this search can exceed; 0 if n votes prove nothing."""
    try:
        return options.smoothing().settings(images).largest_radius
    except InputError:
        return 0.0
