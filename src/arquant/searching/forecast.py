"""Forecast how long the stages of a search will take, from a second of measuring."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from arquant.base.progress import duration
from arquant.loading.roles import Roles
from arquant.quantization.policy import Policy
from arquant.searching.method import find_method
from arquant.searching.options import SearchOptions
from arquant.searching.space import Space
from arquant.searching.strategy import Strategy
from arquant.searching.study import Limits
from arquant.searching.workbench import Workbench
from arquant.training.loop import Diverged
from arquant.training.recipe import Recipe

_STEPS, _LONG = 8, 30.0
_MOST_CANDIDATES = 10**8
"""of a loop without limits"""


@dataclass(frozen=True)
class Pace:
    """The pace of this machine, per second.

    Attributes:
        float_votes: votes of the float model.
        votes: votes of a quantized model.
        steps: training steps.
        compiling: seconds, not per second: what every fine-tuning takes besides its steps, mostly to compile the network.
    """

    float_votes: float
    votes: float
    steps: float
    compiling: float = 0.0


def measure(workbench: Workbench, reference: Callable[[], float], policy: Policy, options: SearchOptions) -> Pace:
    """Measure with a policy of the search; the very first fine-tuning, which compiles most, is not counted.

    Args:
        reference: measures the votes per second of the float model.
    """
    workbench.set_(policy)
    _seconds(workbench, options.recipe, 1)
    once = _seconds(workbench, options.recipe, 1)
    more = _STEPS if once < _LONG else 1
    longer = _seconds(workbench, options.recipe, 1 + more)
    step = (longer - once) / more if longer > once else longer / (1 + more)  # the second where other work disturbed
    workbench.set_(policy)
    with workbench.engine() as engine:
        votes = engine.images_per_second()
    return Pace(reference(), votes, 1 / step, max(0.0, once - step))


def _seconds(workbench: Workbench, recipe: Recipe, steps: int) -> float:
    began = time.monotonic()
    with suppress(Diverged):  # the candidates will say so
        workbench.finetune_(replace(recipe, steps=steps))
    return time.monotonic() - began


@dataclass(frozen=True)
class Stage:
    """A stage, the work in it, and the seconds it should take."""

    name: str
    work: str
    seconds: float


@dataclass(frozen=True)
class Loop:
    """The candidates that the loop of a search should examine: how many by their fine-tuning steps, and in how many seconds."""

    counts: Mapping[int, int]
    seconds: float

    @property
    def candidates(self) -> int:
        """Return how many there are."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        (steps, count), *longer = self.counts.items() or [(0, 0)]
        first = f"{count:,} candidates" + (f" of {steps:,} steps" if count else "")
        return ", ".join([first, *(f"{count:,} of {steps:,}" for steps, count in longer)])


def expected_loop(pace: Pace, options: SearchOptions, roles: Roles, limits: Limits, spaces: Sequence[Space]) -> Loop:
    """Return what the loop should do within its limits, if no candidate is abandoned."""
    short, full = (steps_of(recipe, roles) for recipe in (options.recipe, options.final_recipe))
    method = find_method(options.strategy)
    given = {**method.strategy_options, **options.strategy_options}
    opening, cycle = method.strategy.foreseen(spaces, given, short, full)
    seconds_of = partial(candidate_seconds, pace, options, roles)
    most, left = limits.trials or math.inf, 3600 * limits.hours if limits.hours else math.inf
    counts: Counter[int] = Counter()
    spent = 0.0
    for steps in opening:
        if counts.total() < most and spent < left:
            counts[steps] += 1
            spent += seconds_of(steps)
    mean = sum(map(seconds_of, cycle)) / len(cycle)
    more = max(0, int(min(most - counts.total(), (left - spent) / mean, _MOST_CANDIDATES)))
    by_the_clock = counts.total() + more < most and math.isfinite(left)
    for steps, share in Counter(cycle).items():
        counts[steps] += round(more * share / len(cycle))
    seconds = left if by_the_clock else min(spent + more * mean, left)
    return Loop({steps: count for steps, count in sorted(counts.items()) if count}, seconds)


def expected_stages(
    pace: Pace, options: SearchOptions, roles: Roles, limits: Limits, spaces: Sequence[Space]
) -> list[Stage]:
    """Return every stage of a search in order; the loop's is a limit where hours were given, else an estimate."""
    searched, certified, budgets = len(roles.search), len(roles.certify), len(spaces)
    final = steps_of(options.final_recipe, roles)
    # the best uniform policy may join the shortlist
    looks = budgets * (options.shortlist + 1) * options.shortlist_seeds if options.shortlist > 1 else 0
    longer, again = steps_of(options.second_look_recipe, roles), options.second_look_votes
    loop = expected_loop(pace, options, roles, limits, spaces)
    models = budgets * (1 + ("uniform" in options.controls))
    claims = certified * (options.n + (0 if options.label_directed else options.n0))
    ends_itself = find_method(options.strategy).strategy.finished is not Strategy.finished
    most = "up to " if limits.target_acr or ends_itself else ""
    stages = [
        Stage(
            "reference",
            f"{searched:,} images x {options.reference_n:,} votes of the float model",
            searched * options.reference_n / pace.float_votes,
        ),
        Stage(
            "search",
            f"{most}{loop}, {searched:,} x {options.search_n:,} votes",
            loop.seconds,
        ),
        Stage(
            "shortlist",
            f"up to {looks} fine-tunings of {longer:,} steps, {searched:,} x {again:,} votes",
            looks * (pace.compiling + longer / pace.steps + searched * again / pace.votes),
        ),
        Stage("fine-tune", f"{models} x {final:,} steps", models * (pace.compiling + final / pace.steps)),
        Stage("certify", f"{models} x {claims:,} votes", models * claims / pace.votes),
    ]
    if "float" in options.controls:
        stages.append(Stage("certify float", f"{claims:,} votes", claims / pace.float_votes))
    return [stage for stage in stages if stage.seconds > 0]


def announce(stages: Sequence[Stage], note: Callable[[str], None]) -> None:
    """Say how long every stage, and all of them, will take."""
    for stage in stages:
        note(f"{stage.name:14}{stage.work}: about {duration(stage.seconds)}")
    note(f"{'all':14}about {duration(sum(stage.seconds for stage in stages))}")


def candidate_seconds(pace: Pace, options: SearchOptions, roles: Roles, steps: int) -> float:
    """Return the seconds of a candidate of so many steps that gets all its votes."""
    return pace.compiling + steps / pace.steps + len(roles.search) * options.search_n / pace.votes


def steps_of(recipe: Recipe, roles: Roles) -> int:
    """Return the optimizer steps of a recipe on these images."""
    return recipe.steps_on(len(roles.calibrate))
