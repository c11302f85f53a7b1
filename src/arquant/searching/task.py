"""What a search is about: the model, the images of every role and the budgets, read and checked before anything runs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from arquant.base.errors import InputError
from arquant.images.imageset import ImageSet
from arquant.loading.models import load_with_data
from arquant.loading.roles import Roles, data_name, load_roles, note_photos
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.quantization.budget import Budget, spelled_out
from arquant.quantization.costs import LatencyTable
from arquant.quantization.latency import read_table
from arquant.quantization.policy import left_in_float, parse_keep
from arquant.quantization.quantized import check_float
from arquant.quantization.quantizers import QUANTIZERS, check_quantizer
from arquant.searching.options import SearchOptions, TaskOptions, reward_of
from arquant.searching.run import Note
from arquant.searching.space import Space
from arquant.training.batches import note_training_noise


@dataclass(frozen=True, eq=False)
class Task:
    """A search that can begin.

    Attributes:
        options: what decides its result, fitted to the images that there are.
        config: what its run folder says of model, data and budgets.
        tables: the files of latency or energy, by the name that the run folder gives them.
    """

    classifier: Classifier
    spaces: Sequence[Space]
    roles: Roles
    options: SearchOptions
    config: dict[str, Any]
    tables: Mapping[str, Path]


def prepare(options: TaskOptions, note: Note, *, weights_required: bool = True) -> Task:
    """Read the model and the images of a search, and refuse what cannot work."""
    reward_of(options)
    note_training_noise(options.noise, note)
    classifier, model_options = float_model(
        options.model, options.data, options.model_options, weights_required=weights_required
    )
    tables = {_kept_name(path): path for path in map(Path, options.table)}
    spaces = spaces_of(classifier, options, [read_table(path) for path in tables.values()])
    roles = load_roles(
        options.data, classifier, calibrate=options.calibrate, certify=options.certify, shares=options.split,
        search_images=options.search_images, images=options.images, seed=options.seed,
    )  # fmt: skip
    note_photos(classifier, roles.calibrate)
    fitted = _fitted(_with_images_there(options, roles.calibrate, note), roles.calibrate, note)
    config = {**_config(options, classifier, model_options), "budget": [space.budget.text for space in spaces]}
    if tables:
        config["tables"] = list(tables)
    return Task(classifier, spaces, roles, fitted, config, tables)


def float_model(
    model: str | Path | Classifier, data: str | ImageSet, options: dict[str, Any], *, weights_required: bool = True
) -> tuple[Classifier, dict[str, Any]]:
    """Return a float model for a search, as it was stored, and the options that load it again without DATA."""
    found, recorded = load_with_data(model, data, "search", **options, weights_required=weights_required)
    # engines and training change the memory layout of a model, and with it the last digits: ours begins as it was stored
    classifier: Classifier = found.snapshot().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    check_float(classifier)
    return classifier, recorded


def _config(options: TaskOptions, classifier: Classifier, model_options: dict[str, Any]) -> dict[str, Any]:
    given = {"data": options.data, "calibrate": options.calibrate, "certify": options.certify}
    return {
        "command": "search",
        "model": classifier.name if isinstance(options.model, Classifier) else str(options.model),
        "model_options": model_options,
        **{name: data_name(value) for name, value in given.items() if value is not None},
        "split": None if options.split is None else list(options.split),
        "images": options.images,
    }


def _kept_name(table: Path) -> str:
    """Return where a run keeps a table; another content has another name, so that it is another search."""
    return f"tables/{hashlib.sha256(table.read_bytes()).hexdigest()[:16]}{table.suffix}"


def spaces_of(classifier: Classifier, options: TaskOptions, tables: Sequence[LatencyTable]) -> list[Space]:
    """Return what a search may choose from within each of its budgets."""
    given = (options.budget,) if isinstance(options.budget, str) else options.budget
    budgets = [text for each in given for text in spelled_out(each)]
    if not budgets:
        raise InputError("a search needs a budget, such as bops<=3bit")
    found, keep = find_layers(classifier), parse_keep(options.keep)
    layers = found.leaving(left_in_float(found, options.keep))
    check_quantizer(options.learn)
    limited: dict[str, Any] = {
        "min_bits": options.min_bits, "per_channel": options.per_channel, "books": QUANTIZERS[options.learn].shares_weights,
    }  # fmt: skip
    spaces = [
        Space(Budget.parse(text, layers, keep=keep, tables=tables, **limited), options.max_bits) for text in budgets
    ]
    if len({space.budget.slug for space in spaces}) < len(spaces):
        raise InputError(f"a budget was given twice: {', '.join(budgets)}")
    return spaces


def _with_images_there(options: SearchOptions, images: ImageSet, note: Note) -> SearchOptions:
    """Train on all images where a preset takes more than there are."""
    count, wanted = len(images), max(options.recipe.images, options.final_recipe.images)
    if options.train_images or wanted <= count:
        return options
    note(f"{images.name} has {count:,} images: training on all of them, where the preset takes {wanted:,}")
    return replace(options, images_there=count)


def _fitted(options: SearchOptions, images: ImageSet, note: Note) -> SearchOptions:
    """Make training batches smaller where there are fewer images, unless the user chose the batch; that must then do."""
    count, recipe = len(images), options.recipe
    usual = options.preset_values({"preset": options.preset}).get("train_batch", SearchOptions.train_batch)
    if options.train_batch == usual and 2 <= count < recipe.images_per_step:
        note(f"{images.name} has {count} images: training batches of {count}")
        options = replace(options, train_batch=min(recipe.batch, count * recipe.copies))
    for each in (options.recipe, options.final_recipe):
        each.check_images(count)
    steps, longer = (each.steps_on(count) for each in (options.recipe, options.second_look_recipe))
    if longer < steps:
        raise InputError(f"shortlist_steps={longer} must be more than the {steps} steps of a candidate")
    return options if longer > steps else replace(options, shortlist_steps=None)
