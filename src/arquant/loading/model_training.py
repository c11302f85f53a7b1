"""Train a base classifier on noisy images, from an architecture or from weights."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from arquant.base.errors import InputError, MismatchError
from arquant.base.file_lock import in_use
from arquant.base.files import write_json
from arquant.base.progress import Report, silent
from arquant.base.provenance import provenance
from arquant.base.run_folder import CONFIG, MODEL
from arquant.base.threads import available_cores
from arquant.engines.choice import check_amounts, resolve_device
from arquant.images.imageset import ImageSet
from arquant.images.seen_images import seen_images
from arquant.loading.initial_weights import Start, find_start
from arquant.loading.roles import images_for, note_photos
from arquant.loading.run_images import record_seen
from arquant.models.weights import save_weights
from arquant.training.batches import source_of, visited
from arquant.training.loop import train
from arquant.training.recipe import Recipe

CHECKPOINT = "training.safetensors"


def train_model(
    model: str, data: str | ImageSet, recipe: Recipe, *, out: str | Path, init: str | None = None, images: str | None = None,
    device: str = "auto", threads: int | None = None, report: Report = silent, note: Callable[[str], None] = lambda _: None,
    **model_options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train `model` from random weights, its own or those of `init`, and write `out/model.safetensors`, a MODEL itself.

    The run checkpoints itself in `out/training.safetensors`; the same call resumes, and ends with the same weights as one
    that was never interrupted (same machine, threads and library versions). The images that the weights it starts from were
    trained on count as used by this run too. With `recipe.distill` these weights are the teacher as well: this is how a float
    network is fine-tuned as `finetune` does it with a quantized one, which a fair comparison needs.

    Args:
        model: an architecture (a name of ours, `timm:NAME`, `package.module:factory`, ...), or weights to train on.
        data: its images of the role `calibrate` are the training set; they tell the shape of a network that does not.
        init: a MODEL to start from; `find_start` says what is kept of it.
        images: which of the images, such as `first:500`.
        note: told what is kept of `init`, and what begins anew.
        model_options: keyword arguments of `load_model`.

    Returns:
        The training record, as stored beside the weights.
    """
    check_amounts(None, threads)
    torch.set_num_threads(threads or available_cores())
    folder = Path(out)
    if (folder / CONFIG).exists() or ((folder / MODEL).exists() and not (folder / CHECKPOINT).exists()):
        raise MismatchError(f"{folder} holds another run, which training would overwrite; choose another --out")
    start = find_start(model, data, init, model_options)
    _check_teacher(start, recipe, model)
    if remark := start.remark():
        note(remark)
    chosen = images_for(data, "calibrate", start.classifier, images)
    folder.mkdir(parents=True, exist_ok=True)
    with in_use(folder):
        return _trained(start, chosen, recipe, folder, {"model": model, "init": init}, device, report)


def _check_teacher(start: Start, recipe: Recipe, model: str) -> None:
    if recipe.distill > 0 and (start.origin is None or start.fresh):
        lacking = f"{model} has no weights" if start.origin is None else f"{start.fresh[0]} begins anew"
        raise InputError(
            f"--distill {recipe.distill:g} follows the network that training starts from, and {lacking}: name weights that fit "
            "by MODEL or --init, or use --distill 0"
        )


def _trained(
    start: Start, images: ImageSet, recipe: Recipe, folder: Path, named: dict[str, Any], device: str, report: Report
) -> dict[str, Any]:
    """Train, write the weights with their record, and return the record."""
    classifier, history, earlier = start.classifier, start.history, start.seen
    record = train(
        classifier,
        *source_of(images),
        recipe,
        teacher=deepcopy(classifier) if recipe.distill > 0 else None,
        checkpoint=folder / CHECKPOINT,
        origin=start.identity,
        head={f"module.{name}" for name in start.fresh},
        device=resolve_device(device),
        report=report,
        accepted=lambda: record_seen(folder, origin=start.origin, train=images),
    )
    record |= {**named, "data_name": images.name, "history": history, **provenance()}
    if start.fresh:
        record["begun_anew"] = list(start.fresh)
    used = visited(images, recipe)
    classifier.seen = earlier | seen_images(train=used)
    note_photos(classifier, images)
    record_seen(folder, train=used)  # photos on demand have been read only now
    save_weights(folder / MODEL, classifier.cpu(), arch=classifier.arch, sigma=recipe.sigma, training=record)
    write_json(folder / "training.json", record)
    return record
