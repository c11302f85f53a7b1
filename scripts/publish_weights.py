"""Turn a finished training checkpoint into a file that the package ships.

    python scripts/publish_weights.py RUN/training.safetensors src/arquant/models/shipped/ARCH-sigmaS.safetensors

The file has the float32 weights alone, no momentum, and the record of the run in its header: recipe and data from the
checkpoint; where it started, commit, versions and machine from the `training.json` that `arquant train` writes beside it.
The file is read back and compared.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.loading.models import load_model
from arquant.models.checkpoints import read_checkpoint
from arquant.models.weights import save_weights
from arquant.training.recipe import Recipe

ORIGIN = ("init", "history", "loss", "accuracy", "data_name", "commit", "versions", "machine", "written")


def training_record(metadata: Mapping[str, str], checkpoint: Path) -> dict[str, Any]:
    """Return recipe, data, steps and seconds of a finished run; refuse an unfinished one."""
    if metadata.get("schema") != "arquant.training":
        raise FileFormatError(f"{checkpoint} is not a training checkpoint of arquant")
    try:
        state: dict[str, Any] = json.loads(metadata["state"]) if "state" in metadata else dict(metadata)
        identity = state["identity"] if isinstance(state["identity"], dict) else json.loads(state["identity"])
        step, seconds, images = int(state["step"]), float(state["seconds"]), int(identity["images"])
        recipe = Recipe(**identity["recipe"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"the header of {checkpoint} is damaged ({type(error).__name__}: {error})") from error
    total = recipe.steps_on(images)
    if step != total:
        raise InputError(f"{checkpoint} is at step {step} of {total}; publish finished runs only")
    record = {**identity, "steps": step, "seconds": seconds, **state.get("summary", {})}
    beside = checkpoint.with_name("training.json")
    if beside.is_file():
        facts = json.loads(beside.read_text())
        record |= {key: facts[key] for key in ORIGIN if key in facts and key not in record}
    return record


def publish(checkpoint: Path, out: Path, *, arch: str = "resnet20") -> dict[str, Any]:
    """Write `out` from `checkpoint` and return the training record in its header."""
    training = training_record(read_checkpoint(checkpoint).metadata, checkpoint)
    trained = load_model(checkpoint, arch=arch)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_weights(out, trained, arch=arch, sigma=float(training["recipe"]["sigma"]), training=training)
    if load_model(out).fingerprint() != trained.fingerprint():
        raise FileFormatError(f"{out} does not read back as it was written")
    return training


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", default="resnet20", help="the network that was trained")
    given = parser.parse_args(arguments)
    try:
        training = publish(given.checkpoint, given.out, arch=given.arch)
    except ArquantError as error:
        parser.exit(error.exit_code, f"{error}\n")
    print(f"{given.out}: {given.out.stat().st_size} bytes, {json.dumps(training, sort_keys=True)}")


if __name__ == "__main__":
    main()
