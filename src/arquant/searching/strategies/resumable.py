"""Train in `prepare` by steps that a strategy defines; a killed training goes on from its checkpoint, to the same result."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arquant.base.errors import FileFormatError
from arquant.base.progress import Status
from arquant.searching.context import SearchContext
from arquant.training.batches import Source, addressed_seed, noisy_batch, source_of
from arquant.training.checkpoint import by_part, read_checkpoint, save_checkpoint
from arquant.training.loop import REPORT_SECONDS, Diverged, training_images
from arquant.training.optimizers import optimizer_tensors, restore_optimizer_
from arquant.training.recipe import Recipe

CHECKPOINT_SECONDS = 60.0
MOMENTUM = 0.9
Update = Callable[[int, Tensor, Tensor], Tensor]
"""from the number of the step, noisy images in units of the pixel range and labels to the loss; leaves the gradients"""


def checkpoint_of(context: SearchContext, name: str) -> Path:
    """Return where `train_resumably` keeps a training on the way; delete it once its result is kept."""
    return context.folder / f"{name}.checkpoint"


def train_resumably(
    context: SearchContext,
    name: str,
    model: nn.Module,
    groups: Sequence[dict[str, Any]],
    update: Update,
    *,
    steps: int,
    lr: float,
    options: Mapping[str, Any],
) -> None:
    """Take `steps` steps of SGD on the calibration images, with the noise of the search, one-cycle from `lr`.

    Batches, and whatever `update` draws from torch's generator, are a function of the search's seed and the step; the
    generator outside is left as it was.

    Args:
        model: holds all that changes, in its state-dict.
        groups: of parameters, as an optimizer takes them; "factor" multiplies the learning rate.
        options: what the result depends on beside the context; a checkpoint of others is not taken up.

    Raises:
        Diverged: the loss became NaN or infinite.
    """
    recipe = replace(context.recipe, steps=steps, lr=lr, schedule="onecycle", distill=0.0, consistency=0.0, losses=())
    images, labels, recipe = batches_of(context, recipe)
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM, nesterov=True)
    run = _Progress(checkpoint_of(context, name), model, optimizer, context.identity(options))
    step, device = run.resume(), torch.device(context.device)
    saved = reported = time.monotonic()
    while step < steps:
        pixels, target = noisy_batch(images, labels, recipe, step)
        for group in optimizer.param_groups:
            group["lr"] = group["factor"] * recipe.lr_at(step, steps, 1)
        optimizer.zero_grad(set_to_none=True)
        with torch.random.fork_rng():
            torch.manual_seed(addressed_seed(name, recipe.seed, step))
            loss = float(update(step, pixels.to(device), target.to(device)))
        if not loss < float("inf"):
            raise Diverged(f"the loss of {name} became {loss} at step {step}; use a smaller lr (--option lr=...)")
        optimizer.step()
        step, now = step + 1, time.monotonic()
        if step == steps or now - reported >= REPORT_SECONDS:
            context.report(Status("prepare", step, steps, "steps", {"loss": f"{loss:.4f}"}))
            reported = now
        if now - saved >= CHECKPOINT_SECONDS:
            run.save(step)
            saved = now


def batches_of(context: SearchContext, recipe: Recipe) -> tuple[Source, Tensor, Recipe]:
    """Return the calibration images that the recipe trains on, their labels, and the recipe with a batch that they fill."""
    images, labels = training_images(*source_of(context.calibrate), recipe)
    return images, labels, replace(recipe, batch=min(recipe.batch, len(images)))


class _Progress:
    """A training on disk: the model and the optimizer's momentum after a step."""

    def __init__(self, path: Path, model: nn.Module, optimizer: torch.optim.SGD, identity: str) -> None:
        self.path, self.model, self.optimizer, self.identity = path, model, optimizer, identity

    def save(self, step: int) -> None:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"momentum.{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.path, tensors, {"identity": self.identity, "step": step})

    def resume(self) -> int:
        """Take up the training of the same identity that is there; return how many steps are done."""
        if not self.path.exists():
            return 0
        try:
            tensors, state = read_checkpoint(self.path)
        except FileFormatError:
            return 0
        if state.get("identity") != self.identity:
            return 0
        parts = by_part(tensors)
        self.model.load_state_dict(parts["model"])
        restore_optimizer_(self.optimizer, parts["momentum"])
        return int(state["step"])
