"""Noise-augmented training and fine-tuning: one loop for both, resumable to the same result.

Noise is fresh for every batch and added in pixel space, before normalisation and without clipping.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arquant.base.allocator import keep_freed_memory
from arquant.base.errors import InputError
from arquant.base.processor import Precision, compiler_available, has_bfloat16
from arquant.base.progress import Report, silent
from arquant.models.classifier import Classifier
from arquant.quantization.calibration import estimate_batchnorm_
from arquant.training.batches import Source, noisy_batch, some_images
from arquant.training.checkpoint import identity_of
from arquant.training.recipe import Recipe
from arquant.training.run import Diverged as Diverged
from arquant.training.run import Run
from arquant.training.step import Step, Teaching, step_function

Batches = Callable[[int], tuple[Tensor, Tensor]]
"""from a step to its noisy images and labels"""
REPORT_SECONDS = 2.0
COMPILE_FROM = 200
"""optimizer steps"""
COMPILE_UP_TO = 128 * 128
"""pixels of an image on a CPU: compiled, MobileNetV2 at 224 x 224 trains 17 images per second of a core instead of 22"""


def default_precision() -> Precision:
    """Return what to train in on this machine: bfloat16 where it has arithmetic for it, else float32."""
    return "bfloat16" if has_bfloat16("cuda" if torch.cuda.is_available() else "cpu") else "float32"


def train(
    model: Classifier,
    images: Source,
    labels: Tensor,
    recipe: Recipe,
    *,
    teacher: Classifier | None = None,
    answers: dict[int, Tensor] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 120.0,
    origin: str | None = None,
    head: Collection[str] = (),
    compiled: bool | None = None,
    device: torch.device | str = "cpu",
    stage: str = "train",
    report: Report = silent,
    look: "Look | None" = None,
    accepted: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train `model` in place by `recipe`, leave it in eval mode, and return the record of the run.

    Args:
        model: its parameters that require a gradient are trained.
        images, labels: uint8 (N, C, H, W), floats in units of the pixel range, or photos in files; and int64 (N,).
        teacher: for `recipe.distill`: a model of the same classes, in eval mode, that sees the same noisy images.
        answers: the teacher's probabilities by step, used where they are there and added where not. Calls that share it
            must agree in recipe, images and teacher; the batches are then the same, and the teacher sees each once.
        checkpoint: a safetensors file, written every `checkpoint_seconds`, that the same call resumes from; refused if it
            belongs to another recipe, policy, data set or origin.
        origin: what the model was before its first step, in a word that the checkpoint records.
        head: names of the parameters that `recipe.backbone_lr` spares; by default those of the last layer.
        compiled: compile the step; by default for runs of COMPILE_FROM steps or more, which repay the minute it takes, but not
            on a CPU for images of more than COMPILE_UP_TO pixels.
        look: may end the run on the way; if it does not, the result is that of a run without it.
        accepted: called once before the first step, if the checkpoint is not refused.

    Raises:
        Diverged: the loss became NaN or infinite; the checkpoint keeps the last finite state.
    """
    keep_freed_memory()
    recipe.check_images(len(images))
    images, labels = training_images(images, labels, recipe)
    if (recipe.distill > 0) != (teacher is not None):
        raise InputError(f"distillation needs a teacher and a weight above 0, got weight {recipe.distill}")
    device = torch.device(device)
    identity = identity_of(model, recipe, images, labels) | ({} if origin is None else {"origin": origin})
    run = Run(model, recipe, identity, len(images) // recipe.images_per_step, device, head)
    run.resume(checkpoint)
    accepted()
    compiled = (_repays_compiling(run) if compiled is None else compiled) and compiler_available(device)
    taught = None if teacher is None else Teaching(teacher, recipe, device, answers, compiled=compiled)
    batch_of = partial(noisy_batch, images, labels, recipe)
    watch = _Watch(checkpoint, checkpoint_seconds, stage, report, look)
    watch.work(run, batch_of, step_function(model, recipe, compiled=compiled), taught)
    run.exchange_average_()
    if recipe.settle_batchnorm and run.step == run.total:
        settled = (batch_of(run.total + i)[0] for i in range(recipe.settle_batchnorm))
        estimate_batchnorm_(model, (model.from_unit(pixels).to(device) for pixels in settled))
    model.eval()
    return {**run.identity, "steps": run.step, **run.summary, "seconds": round(watch.seconds(run), 1)}


@dataclass
class _Watch:
    """Who follows a run: its checkpoint, reports, and the look that may end it."""

    checkpoint: Path | None
    checkpoint_seconds: float
    stage: str
    report: Report
    look: "Look | None"
    began: float = field(default_factory=time.monotonic)

    def seconds(self, run: Run) -> float:
        """Return how long the run has taken so far, in all sittings."""
        return run.seconds_before + time.monotonic() - self.began

    def work(self, run: Run, batch_of: Batches, loss_of: Step, taught: Teaching | None) -> None:
        """Make the steps of a run that are left, or those before a look that ends it."""
        saved = reported = time.monotonic()
        while run.step < run.total:
            pixels, target = batch_of(run.step)
            pixels = pixels.to(run.device).contiguous(memory_format=run.model.memory_format)
            wanted = None if taught is None else taught.answer(run.step, pixels)
            run.update(loss_of, pixels, target.to(run.device), wanted)
            now, final = time.monotonic(), run.step == run.total
            if final or now - reported >= REPORT_SECONDS:
                self.report(run.status(self.stage))
                reported = now
            if final or now - saved >= self.checkpoint_seconds:
                run.summarise()
                if self.checkpoint is not None:
                    run.save(self.checkpoint, self.seconds(run))
                saved = now
            if self.look is not None and not final and self.look.is_due(run) and not self.look.allows(run):
                return


def _repays_compiling(run: Run) -> bool:
    _, height, width = run.model.input_shape
    return run.total >= COMPILE_FROM and (run.device.type != "cpu" or height * width <= COMPILE_UP_TO)


@dataclass(frozen=True)
class Look:
    """A look at the model, in eval mode, after a share of the steps; training goes on if `goes_on` returns True."""

    after: float
    goes_on: Callable[[], bool]

    def is_due(self, run: Run) -> bool:
        """Tell whether the run has made just so many steps."""
        return run.step == round(self.after * run.total)

    def allows(self, run: Run) -> bool:
        """Tell whether training goes on after the look."""
        with run.shown():
            return self.goes_on()


def training_images(images: Source, labels: Tensor, recipe: Recipe) -> tuple[Source, Tensor]:
    """Return the images to train on: all, or as many as the recipe says."""
    if 0 < recipe.images < len(images):
        chosen = torch.from_numpy(some_images(len(images), recipe))
        images, labels = images[chosen], labels[chosen]
    return images, labels
