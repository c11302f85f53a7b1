"""A training run on disk: its tensors and where it stands, in one file that only the same run is continued from."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from arquant.base.errors import FileFormatError
from arquant.base.files import envelope, in_one_move, opened
from arquant.base.identity import check_same
from arquant.base.own_files import own_file
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import QuantizedClassifier
from arquant.training.batches import Source, data_digest
from arquant.training.recipe import Recipe

SCHEMA, VERSION = "arquant.training", "1"


def identity_of(model: Classifier, recipe: Recipe, images: Source, labels: Tensor) -> dict[str, Any]:
    """Return what must be equal for a checkpoint to be continued: the recipe, the data, and the widths of a quantized model."""
    found = {"recipe": recipe.facts(), "images": len(images), "data": data_digest(images, labels)}
    if isinstance(model, QuantizedClassifier):
        found["policy"] = model.policy.widths()
    return found


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Replace the file in one move, so that a kill never leaves half of one. `state` holds the run's `identity`."""
    metadata = envelope(SCHEMA, VERSION, {"state": json.dumps(state)})
    with in_one_move(path) as scratch:
        save_file({name: _own(tensor) for name, tensor in tensors.items()}, scratch, metadata)


def _own(tensor: Tensor) -> Tensor:
    """In memory of its own, which safetensors insists on: a module may have two names, a weight two modules."""
    return tensor.contiguous().clone()


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the state that `save_checkpoint` wrote.

    Raises:
        FileFormatError: the file is damaged, or something else.
    """
    try:
        own_file(path.parent, path.name)
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        return load_file(path), json.loads(opened(metadata, SCHEMA, VERSION, path)["state"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise FileFormatError(
            f"{path} is not a readable training checkpoint ({error}); delete it to start over"
        ) from error


def by_part(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a checkpoint by what stands before the first dot of their names, none where nothing does."""
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        part, _, own = name.partition(".")
        parts[part][own] = tensor
    return parts


def check_same_run(path: Path, there: Any, here: Mapping[str, Any]) -> None:
    """Raise MismatchError, saying what differs, unless the identity in a checkpoint is that of the present run."""
    there = there if isinstance(there, Mapping) else {}  # a damaged one
    here = json.loads(json.dumps(here))
    check_same(there, here, f"{path} belongs to another run", advice="delete it, or choose another folder")
