"""Give a strategy what it may look at and use before it proposes: the network, calibration images, a trainer, a folder.

Never the search or the certify images: a strategy that saw them would choose on what it is judged by.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from arquant.base.errors import InputError
from arquant.base.files import envelope, in_one_move
from arquant.base.progress import Report
from arquant.engines.choice import resolve_device
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.quantization.calibration import estimate_batchnorm_
from arquant.quantization.quantized import QuantizedClassifier
from arquant.searching.space import Space
from arquant.searching.workbench import Workbench
from arquant.training.batches import source_of
from arquant.training.loop import train
from arquant.training.recipe import Recipe

Arrays = dict[str, NDArray[Any]]
SCHEMA, VERSION = "arquant.prepared", "1"


@dataclass(frozen=True, eq=False)
class SearchContext:
    """What `Strategy.prepare` is given.

    Attributes:
        classifier: the float network, in eval mode; a copy that nothing else uses.
        calibrate: the images to calibrate and fine-tune on.
        space: the policies to choose from.
        sigma: standard deviation of the noise in units of the pixel range.
        noise: its kind.
        seed: of the search.
        recipe: the fine-tuning of a candidate.
        final_recipe: that of what ships.
        device: where to compute, as torch names it.
        threads: how many the search was given; None for as many as there are cores.
        compiled: True if `train` compiles its step.
        report: takes the progress.
        folder: the strategy's own, for what it wants to keep; it need not exist.
        quantizer: how networks are quantized: `clip`, `per_channel`, `learn`.
        make_quantized: what `quantized` calls.
    """

    classifier: Classifier
    calibrate: ImageSet
    space: Space
    sigma: float
    noise: str
    seed: int
    recipe: Recipe
    final_recipe: Recipe
    device: str
    threads: int | None
    compiled: bool
    report: Report
    folder: Path
    quantizer: Mapping[str, Any]
    make_quantized: Callable[[], QuantizedClassifier]

    def quantized(self) -> QuantizedClassifier:
        """Return a fresh quantizable copy of the float network, on the cheapest policy; change it at will."""
        return self.make_quantized()

    def train(self, model: Classifier, recipe: Recipe | None = None, **options: Any) -> dict[str, Any]:
        """Train `model` in place on the calibration images and return the record of the run.

        The float network is the teacher where the recipe distils.

        Args:
            recipe: by default that of a candidate.
            options: those of `arquant.training.loop.train`; a `checkpoint` in `folder` lets a killed run resume.
        """
        recipe = recipe or self.recipe
        if (checkpoint := options.get("checkpoint")) is not None:
            Path(checkpoint).parent.mkdir(parents=True, exist_ok=True)
        ours = {"compiled": self.compiled, "device": self.device, "stage": "prepare", "report": self.report}
        teacher = self.classifier if recipe.distill > 0 else None
        return train(model, *source_of(self.calibrate), recipe, **{**ours, "teacher": teacher, **options})

    def kept(self, name: str, compute: Callable[[], Arrays], *, options: Mapping[str, Any] | None = None) -> Arrays:
        """Return what `compute` gives, from a file in `folder` if an earlier call of this name has written it there.

        A file counts only if it was made for the same network, images, noise, seed, recipe, quantizer, searched layers and
        `options`; else it is computed anew and replaced. The budget is not among them, so that searches of several budgets
        can share a result; one that depends on the budget says so in `options`.

        Args:
            name: of the file, without its ending: letters, digits, "-" and "_".
            options: what else the result depends on, as plain data; usually the strategy's options.
        """
        if not re.fullmatch(r"[\w-]+", name, re.ASCII):
            raise InputError(f"a kept result needs a name of letters, digits, '-' and '_', got {name!r}")
        path = self.folder / f"{name}.safetensors"
        identity = self.identity(options)
        if (found := _read(path, identity)) is not None:
            return found
        arrays = {key: np.array(value, order="C") for key, value in compute().items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        with in_one_move(path) as scratch:
            save_file(arrays, scratch, envelope(SCHEMA, VERSION, {"identity": identity}))
        return arrays

    def identity(self, options: Mapping[str, Any] | None = None) -> str:
        """Return, as text, what a kept result of these options depends on."""
        return json.dumps({**self._identity, "options": dict(options or {})}, sort_keys=True)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        space = self.space
        return {
            "model": self.classifier.fingerprint(),
            "images": self.calibrate.identity(),
            "sigma": self.sigma,
            "noise": self.noise,
            "seed": self.seed,
            "recipe": self.recipe.facts(),
            "quantizer": dict(self.quantizer),
            "searched": list(space.searched),
            "fixed": {name: str(bits) for name, bits in space.fixed.items()},
            "widths": [space.min_bits, space.max_bits],
        }


def _read(path: Path, identity: str) -> Arrays | None:
    """Return the arrays of a file that was written for this identity; None if there is none, or none that can be read."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "np") as file:
            if file.metadata() != envelope(SCHEMA, VERSION, {"identity": identity}):
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None


def context_for(
    workbench: Workbench,
    space: Space,
    *,
    sigma: float,
    seed: int,
    recipe: Recipe,
    final_recipe: Recipe,
    folder: Path,
    report: Report,
) -> SearchContext:
    """Return the context of a search on this workbench, whose own network stays as it is.

    Args:
        recipe: the fine-tuning of a candidate.
        final_recipe: that of what ships.
        folder: the strategy's own; strategies of several budgets may share one.
    """
    pattern, classifier = workbench.quantized, workbench.classifier.snapshot().eval()
    quantizer: dict[str, Any] = {"clip": pattern.clip, "per_channel": pattern.per_channel, "learn": pattern.learn}

    def make_quantized() -> QuantizedClassifier:
        made = QuantizedClassifier(classifier, pattern.layers, statistics=pattern.statistics, **quantizer)
        # In the layout of the workbench, so that a copy equals its candidates to the last digit.
        made.to(memory_format=made.memory_format)  # type: ignore[call-overload]
        made.set_policy_(space.budget.cheapest())
        if workbench.statistics is not None:
            estimate_batchnorm_(made, workbench.statistics)
        return made.eval()

    return SearchContext(
        classifier=classifier,
        calibrate=workbench.calibrate,
        space=space,
        sigma=sigma,
        noise=workbench.noise,
        seed=seed,
        recipe=recipe,
        final_recipe=final_recipe,
        device=str(resolve_device(workbench.engines.device)),
        threads=workbench.engines.threads,
        compiled=workbench.compiled,
        report=report,
        folder=folder,
        quantizer=quantizer,
        make_quantized=make_quantized,
    )
