"""`arquant search`: from a trained model and a budget to the quantized model with the largest certified radius."""

import errno
import hashlib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from arquant.base.errors import InputError, Interrupted
from arquant.base.progress import Report, silent
from arquant.base.provenance import command_line
from arquant.certification.run import settings_of
from arquant.images.imageset import ImageSet
from arquant.loading.models import as_classifier
from arquant.loading.roles import Roles, data_name, load_roles
from arquant.loading.run_images import check_unseen
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.quantization.budget import Budget
from arquant.quantization.costs import LatencyTable
from arquant.quantization.latency import read_table
from arquant.quantization.policy import parse_keep
from arquant.quantization.quantized import check_float
from arquant.searching.method import find_method
from arquant.searching.options import PRESET_IMAGES, SearchOptions, reward_of, search_options
from arquant.searching.run import Note, SearchRun
from arquant.searching.space import Space
from arquant.searching.study import Limits
from arquant.searching.workbench import EngineOptions
from arquant.training.batches import note_training_noise

DEFAULT_HOURS = 1.0


def search(
    model: str | Path | Classifier, data: str | ImageSet = "sample", *, sigma: float, budget: str | Sequence[str],
    out: str | Path, trials: int | None = None, hours: float | None = None, target_acr: float | None = None,
    preset: str | None = None, calibrate: str | ImageSet | None = None, certify: str | ImageSet | None = None,
    split: Sequence[float] | None = None, images: str | None = None, tables: Sequence[str | Path] = (),
    engine: str = "auto", device: str = "auto", batch: int | None = None, threads: int | None = None,
    compiled: bool | None = None, model_options: dict[str, Any] | None = None, report: Report = silent,
    note: Note = lambda text: None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Search the policy with the largest certified radius within each budget; fine-tune, freeze and certify it.

    Everything is written to the folder `out`. The same call on the same folder resumes, wherever it was stopped, and ends
    with the same result as one that was never stopped (same machine, engine, batch, threads; `hours` cut by the clock).
    With larger `trials` or `hours` a finished search goes on, by the schedule that it began with; if it then finds another
    winner, what it ended with before is kept in `out/earlier`.

    Args:
        model: a float model: any MODEL spelling, or a Classifier whose `arch` says how to build it again.
        data, calibrate, certify, split, images: see `arquant.loading.roles.load_roles`.
        budget: one budget such as `bops<=3bit`, or several, whose searches share their evaluations.
        trials, hours, target_acr: limits of the search loop alone; one hour if neither of the first two is given.
        preset: `paper-cifar` or `paper-imagenet`; other options override it.
        tables: files of latency or energy per layer and width, for budgets on these.
        compiled: compile the training step; by default where so many steps are planned that it pays.
        options: see `arquant.searching.options`.

    Returns:
        The summary, which is also in `out/summary.json`: policies, costs, estimates, certificates and paired differences
        to the controls.

    Raises:
        InputError: bad input: an unreachable budget, nothing to quantize, too few images, a full disk.
        MismatchError: the folder holds another search, or an image is in two roles.
        Interrupted: Ctrl-C; what was computed is kept, and `out/policy.json` has the best policy so far.
    """
    task = search_task(
        model, data, sigma=sigma, budget=budget, preset=preset, calibrate=calibrate, certify=certify, split=split,
        images=images, tables=tables, model_options=model_options, note=note, **options,
    )  # fmt: skip
    # refused now, not after the search
    settings_of(len(task.roles.certify), **task.options.certificate_options())
    check_unseen(task.classifier, task.roles.certify)
    limits = Limits(trials, DEFAULT_HOURS if trials is None and hours is None else hours, target_acr)
    if trials is not None and trials < len(task.spaces):
        raise InputError(f"{trials} trials for {len(task.spaces)} budgets: every budget needs at least one")
    engines = EngineOptions(engine, device, batch, threads)
    given = {"data": data, "calibrate": calibrate, "certify": certify}
    config = {
        "command": "search",
        "model": task.classifier.name if isinstance(model, Classifier) else str(model),
        "model_options": {name: value for name, value in (model_options or {}).items() if value is not None},
        **{name: data_name(value) for name, value in given.items() if value is not None},
        "split": None if split is None else list(split),
        "images": _certified(images, preset),
        "budget": [space.budget.text for space in task.spaces],
    }
    kept = {_kept_name(Path(table)): Path(table) for table in tables}
    if kept:
        config["tables"] = list(kept)
    run = SearchRun(
        Path(out), task.classifier, task.roles, task.spaces, task.options, limits, engines, config, report, note, compiled,
        kept,
    )  # fmt: skip
    with _clear_errors(run):
        return run.work()


@dataclass(frozen=True, eq=False)
class Task:
    """What a search is about, read and checked."""

    classifier: Classifier
    spaces: Sequence[Space]
    roles: Roles
    options: SearchOptions


def search_task(
    model: str | Path | Classifier,
    data: str | ImageSet,
    *,
    sigma: float,
    budget: str | Sequence[str],
    preset: str | None = None,
    calibrate: str | ImageSet | None = None,
    certify: str | ImageSet | None = None,
    split: Sequence[float] | None = None,
    images: str | None = None,
    tables: Sequence[str | Path] = (),
    model_options: dict[str, Any] | None = None,
    weights_required: bool = True,
    note: Note = lambda text: None,
    **options: Any,
) -> Task:
    """Read the model and the images of a search and check its options; the arguments are those of `search`."""
    settings = search_options(sigma, preset=preset, **options)
    reward_of(settings)
    note_training_noise(settings.noise, note)
    images = _certified(images, preset)
    model = as_classifier(model, weights_required=weights_required, **(model_options or {}))
    # engines and training change the memory layout of a model, and with it the last digits: ours begins as it was stored
    classifier: Classifier = model.snapshot().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    check_float(classifier)
    budgets = (budget,) if isinstance(budget, str) else tuple(budget)
    spaces = _spaces(classifier, budgets, settings, [read_table(Path(table)) for table in tables])
    for space in spaces:
        find_method(settings.strategy).strategy(
            space, settings.seed, dict(settings.strategy_options)
        )  # that it may refuse
    roles = load_roles(
        data, classifier, calibrate=calibrate, certify=certify, shares=split, search_images=settings.search_images,
        images=images, seed=settings.seed,
    )  # fmt: skip
    if preset is not None and options.get("train_images") is None:
        settings = _with_images_there(settings, roles.calibrate, note)
    settings = _fitted(settings, roles, note, chosen=options.get("train_batch") is not None)
    return Task(classifier, spaces, roles, settings)


def _certified(images: str | None, preset: str | None) -> str | None:
    """Which of the certify images: as asked for, else the preset's."""
    return PRESET_IMAGES if images is None and preset is not None else images


def _kept_name(table: Path) -> str:
    """Where a run keeps a table; another content has another name, so that it is another search."""
    return f"tables/{hashlib.sha256(table.read_bytes()).hexdigest()[:16]}{table.suffix}"


def _spaces(
    classifier: Classifier, budgets: Sequence[str], options: SearchOptions, tables: Sequence[LatencyTable]
) -> list[Space]:
    if not budgets:
        raise InputError("a search needs a budget, such as --budget 'bops<=3bit'")
    layers, keep = find_layers(classifier), parse_keep(options.keep)
    spaces = [
        Space(Budget.parse(text, layers, keep=keep, tables=tables, min_bits=options.min_bits), options.max_bits)
        for text in budgets
    ]
    if len({space.budget.slug for space in spaces}) < len(spaces):
        raise InputError(f"a budget was given twice: {', '.join(budgets)}")
    return spaces


def _with_images_there(options: SearchOptions, images: ImageSet, note: Note) -> SearchOptions:
    """Recipes of a preset that say how many images they train on, where it wants more than there are."""
    count, recipes = len(images), (options.recipe, options.final_recipe)
    wanted = max(recipe.images for recipe in recipes)
    if wanted <= count:
        return options
    note(f"{images.name} has {count:,} images: training on all of them, where the preset takes {wanted:,}")
    short, full = (replace(recipe, images=min(recipe.images, count)) for recipe in recipes)
    return replace(options, recipe=short, final_recipe=full)


def _fitted(options: SearchOptions, roles: Roles, note: Note, *, chosen: bool) -> SearchOptions:
    """Smaller training batches where there are fewer images, unless the user chose the batch; that must then do."""
    count = len(roles.calibrate)
    recipes = (options.recipe, options.final_recipe)
    if not chosen and 2 <= count < max(recipe.images_per_step for recipe in recipes):
        note(f"{roles.calibrate.name} has {count} images: training batches of {count}")
        short, full = (replace(recipe, batch=min(recipe.batch, count * recipe.copies)) for recipe in recipes)
        options = replace(options, recipe=short, final_recipe=full)
    for recipe in (options.recipe, options.final_recipe):
        recipe.check_images(count)
    steps, longer = (recipe.steps_on(count) for recipe in (options.recipe, options.second_look_recipe))
    if longer < steps:
        raise InputError(f"shortlist_steps={longer} must be more than the {steps} steps of a candidate")
    return options if longer > steps else replace(options, shortlist_steps=None)


@contextmanager
def _clear_errors(run: SearchRun) -> Iterator[None]:
    """Ctrl-C and a full disk, or a used-up quota of it, as errors that say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {run.save_best()}; to go on: {_resume_command()}") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(
            f"no space left on the disk of {run.out}; all that was finished is kept: free some space, then {_resume_command()}"
        ) from error


def _resume_command() -> str:
    command = command_line()
    return command if shlex.split(command)[:1] == ["arquant"] else "make the same call again"
