"""Train a base classifier on noisy images, from an architecture or from weights."""

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
from arquant.base.seen import Seen
from arquant.base.threads import available_cores
from arquant.engines.choice import check_amounts, resolve_device
from arquant.images.imageset import ImageSet
from arquant.images.seen_images import seen_images
from arquant.loading.models import has_weights, load_model, load_with_data, model_path
from arquant.loading.roles import images_for
from arquant.loading.run_images import record_seen, seen_by
from arquant.models.classifier import Classifier
from arquant.models.weights import save_weights
from arquant.quantization.quantized import check_float
from arquant.training.loop import train
from arquant.training.recipe import Recipe

CHECKPOINT = "training.safetensors"


def train_model(
    model: str, data: str | ImageSet, recipe: Recipe, *, out: str | Path, init: str | None = None, images: str | None = None,
    device: str = "auto", threads: int | None = None, report: Report = silent, **model_options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train `model` from random weights, its own or those of `init`, and write `out/model.safetensors`, a MODEL itself.

    The run checkpoints itself in `out/training.safetensors`; the same call resumes, and ends with the same weights as one
    that was never interrupted (same machine, threads and library versions). The images that the weights it starts from were
    trained on count as used by this run too. With `recipe.distill` these weights are the teacher as well: this is how a float
    network is fine-tuned as `finetune` does it with a quantized one, which a fair comparison needs.

    Args:
        model: an architecture (a name of ours, `timm:NAME`, `package.module:factory`, ...), or weights to train on.
        data: its images of the role `calibrate` are the training set; they tell the shape of a network that does not.
        init: a MODEL of the same architecture to start from.
        images: which of the images, such as `first:500`.
        model_options: keyword arguments of `load_model`.

    Returns:
        The training record, as stored beside the weights.
    """
    check_amounts(None, threads)
    torch.set_num_threads(threads or available_cores())
    folder = Path(out)
    if (folder / CONFIG).exists() or ((folder / MODEL).exists() and not (folder / CHECKPOINT).exists()):
        raise MismatchError(f"{folder} holds another run, which training would overwrite; choose another --out")
    classifier, model_options = load_with_data(model, data, "calibrate", weights_required=False, **model_options)
    check_float(classifier)
    before, start = (classifier, model) if has_weights(model) else (None, None)
    if init is not None:
        of_a_file = {"arch": model_options.get("arch") or model} if model_path(init) is not None else {}
        before, start = load_model(init, **{**model_options, **of_a_file}), init
        try:
            classifier.module.load_state_dict(before.module.state_dict())
        except RuntimeError as error:
            raise MismatchError(f"--init {init} does not have the weights of {model}: {error}") from error
    if recipe.distill > 0 and before is None:
        raise InputError(
            f"--distill {recipe.distill:g} follows the network that training starts from, and {model} has no weights: name "
            "some by MODEL or --init, or use --distill 0"
        )
    origin = classifier.structure() if before is None else classifier.fingerprint()
    history = [] if before is None else history_of(before)
    chosen = images_for(data, "calibrate", classifier, images)
    folder.mkdir(parents=True, exist_ok=True)
    with in_use(folder):
        record = train(
            classifier,
            torch.from_numpy(chosen.images),
            torch.from_numpy(chosen.labels),
            recipe,
            teacher=deepcopy(before) if recipe.distill > 0 else None,
            checkpoint=folder / CHECKPOINT,
            origin=origin,
            device=resolve_device(device),
            report=report,
            accepted=lambda: record_seen(folder, origin=start, train=chosen),
        )
        record = {**record, "model": model, "data_name": chosen.name, "init": init, "history": history, **provenance()}
        earlier = Seen() if before is None or start is None else seen_by(start, before)
        classifier.seen = earlier | seen_images(train=chosen)
        save_weights(folder / MODEL, classifier.cpu(), arch=classifier.arch, sigma=recipe.sigma, training=record)
        write_json(folder / "training.json", record)
    return record


def history_of(start: Classifier) -> list[dict[str, Any]]:
    """Return the records of the trainings that led to a network, first to last, each with its final fingerprint."""
    if not start.made_by:
        return []
    last = {name: value for name, value in start.made_by.items() if name != "history"}
    return [*start.made_by.get("history", []), {**last, "fingerprint": start.fingerprint()}]
