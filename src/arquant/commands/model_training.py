"""`arquant train`: a noise-augmented base classifier from an architecture and images."""

from pathlib import Path
from typing import Any

import torch

from arquant.models.weights import save_weights
from arquant.models.zoo import load_model
from arquant.progress import Report, silent
from arquant.provenance import provenance, write_json
from arquant.recipe import Recipe
from arquant.roles import images_for
from arquant.training import train as run_training

CHECKPOINT = "training.safetensors"
MODEL = "model.safetensors"


def train(
    model: str,
    data: str = "cifar10",
    *,
    recipe: Recipe,
    out: str | Path,
    init: str | None = None,
    device: str = "auto",
    compiled: bool | None = None,
    report: Report = silent,
    **model_options: Any,
) -> dict[str, Any]:
    """Train `model` from random weights (or from those of `init`) and write `out/model.safetensors`, a MODEL itself.

    The run checkpoints itself in `out/training.safetensors`; the same call resumes, and ends with the same weights as one
    that was never interrupted (same machine, threads and library versions).

    Args:
        model: an architecture: a name of ours, `timm:NAME`, `package.module:factory`, ...
        data: its images of the role `calibrate` are the training set.
        init: a MODEL of the same architecture to start from.

    Returns:
        the training record, as stored beside the weights.
    """
    classifier = load_model(model, weights_required=False, **model_options)
    if init is not None:
        classifier.module.load_state_dict(load_model(init, **model_options).module.state_dict())
    images = images_for(data, "calibrate", classifier)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    record = run_training(
        classifier,
        torch.from_numpy(images.images),
        torch.from_numpy(images.labels),
        recipe,
        checkpoint=folder / CHECKPOINT,
        compiled=compiled,
        device=chosen,
        report=report,
    )
    record = {**record, "model": model, "data_name": images.name, "init": init, **provenance()}
    save_weights(folder / MODEL, classifier.cpu(), arch=classifier.arch, sigma=recipe.sigma, training=record)
    write_json(folder / "training.json", record)
    return record
