"""A training run between two steps: the network, its optimizer, where it stands, and all of it as a checkpoint."""

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arquant.base.errors import InputError, MismatchError
from arquant.base.progress import Status
from arquant.models.classifier import Classifier
from arquant.training.averaging import Average
from arquant.training.batches import addressed_seed
from arquant.training.checkpoint import by_part, check_same_run, read_checkpoint, save_checkpoint
from arquant.training.optimizers import make_optimizer, optimizer_tensors, restore_optimizer_
from arquant.training.recipe import Recipe
from arquant.training.step import Step

RECORDED_STEPS = 100
"""the last steps of a run, over which its record has loss and accuracy"""


class Diverged(InputError):
    """Training gave NaN or infinite numbers; the message says where."""


@dataclass
class Run:
    """A training run between two steps."""

    model: Classifier
    recipe: Recipe
    identity: dict[str, Any]
    per_epoch: int
    device: torch.device
    head: Collection[str] = ()
    """names of the parameters that learn at the full rate; the last layer's if there are none"""
    step: int = 0
    seconds_before: float = 0.0
    lr_factor: float = 1.0
    """what the plateau schedule has made of the learning rate"""
    epoch_losses: list[float] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)
    """loss and accuracy of the last RECORDED_STEPS steps"""
    latest: dict[str, float] = field(default_factory=dict)
    """those of the steps between the last two summaries, for who watches"""
    recent: deque[tuple[Tensor, Tensor]] = field(default_factory=lambda: deque(maxlen=RECORDED_STEPS))
    """loss and number of right answers of the steps that the record is about"""
    _window: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """those of the steps since the last summary"""
    epoch_loss: float = 0.0
    """sum over the steps of the epoch in progress; kept for the plateau schedule only"""

    def __post_init__(self) -> None:
        self.total = self.recipe.total_steps(self.per_epoch)
        self.ready()
        self.optimizer = make_optimizer(self.model, self.recipe, self.head)
        self.parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.average = Average(self.model, self.recipe.ema) if self.recipe.ema > 0 else None

    def ready(self) -> None:
        """Put the model on its device, in training mode."""
        self.model.to(device=self.device, memory_format=self.model.memory_format).train()  # type: ignore[call-overload]
        if self.recipe.freeze_batchnorm:
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Let the model be, for a while, what it would be if training ended here, but for settled BatchNorm."""
        self.summarise()
        self.exchange_average_()
        self.model.eval()
        yield
        self.exchange_average_()
        self.ready()

    def exchange_average_(self) -> None:
        """Give the model the averaged weights, if the recipe has them, or its own ones back."""
        if self.average is not None:
            self.average.exchange_()

    def update(self, loss_of: Step, pixels: Tensor, target: Tensor, wanted: Tensor | None) -> None:
        """Make one optimizer step."""
        rate = self.recipe.lr_at(self.step, self.total, self.per_epoch) * self.lr_factor
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimizer.zero_grad(set_to_none=True)
        with self._addressed_draws():
            loss, right = loss_of(pixels, target, wanted)
            loss.backward()  # type: ignore[no-untyped-call]
        if self.recipe.max_gradient > 0:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.max_gradient)
        self.optimizer.step()
        self._window.append((loss.detach(), right))
        self.recent.append((loss.detach(), right))
        self.step += 1
        if self.average is not None:
            self.average.update(self.step)
        if self.recipe.schedule == "plateau":
            self.epoch_loss += float(loss.detach())
            if self.step % self.per_epoch == 0:
                self._end_epoch()

    @contextmanager
    def _addressed_draws(self) -> Iterator[None]:
        """Make what the network draws (dropout, stochastic depth) a function of seed and step, and leave the generators
        outside as they were. A compiled step draws its seeds from the same generators.
        """
        kind, seed = self.device.type, addressed_seed("update", self.recipe.seed, self.step)
        restored = [] if kind in ("cpu", "mps") else [self.device]  # fork_rng knows cpu anyway, and no mps
        with torch.random.fork_rng(restored, device_type=kind):
            torch.default_generator.manual_seed(seed)
            if kind != "cpu":
                torch.get_device_module(kind).manual_seed(seed)
            yield

    def _end_epoch(self) -> None:
        if self.epoch_losses and self.epoch_loss >= min(self.epoch_losses):
            self.lr_factor *= self.recipe.decay
        self.epoch_losses.append(self.epoch_loss)
        self.epoch_loss = 0.0

    def summarise(self) -> None:
        """Find loss and accuracy, of the record and since the last summary.

        Raises:
            Diverged: a loss since then is not finite.
        """
        if not self._window:
            return
        self.latest = _averages(self._window, self.recipe.batch)
        if not math.isfinite(loss := self.latest["loss"]):
            raise Diverged(f"the loss became {loss} before step {self.step}; use a smaller --lr")
        self.summary = _averages(self.recent, self.recipe.batch)
        self._window = []

    def status(self, stage: str) -> Status:
        """Return how far the run is, with loss and accuracy on the noisy training images."""
        self.summarise()
        details = {"loss": f"{self.latest['loss']:.4f}", "accuracy": f"{self.latest['accuracy']:.1%}"}
        values = {**self.latest, "lr": self.optimizer.param_groups[0]["lr"]}
        size = self.recipe.images_per_step
        done, total = self.step * size, self.total * size
        return Status(stage, done, total, "images", details, values, self.step)

    def save(self, path: Path, seconds: float) -> None:
        """Write model, average, what the optimizer remembers, and position."""
        average = {} if self.average is None else self.average.tensors
        parts = {"model": self.model.state_dict(), "average": average, "momentum": optimizer_tensors(self.optimizer)}
        tensors = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        state = {
            "identity": self.identity,
            "step": self.step,
            "seconds": round(seconds, 1),
            "lr_factor": self.lr_factor,
            "epoch_losses": self.epoch_losses,
            "epoch_loss": self.epoch_loss,
            "summary": self.summary,
            "recent": [torch.stack(values).tolist() for values in zip(*self.recent, strict=True)],
        }
        save_checkpoint(path, tensors, state)

    def resume(self, path: Path | None) -> None:
        """Continue from a checkpoint, if there is one."""
        if path is None or not path.exists():
            return
        tensors, state = read_checkpoint(path)
        check_same_run(path, state["identity"], self.identity)
        parts = by_part(tensors)
        try:
            self.model.load_state_dict(parts["model"])
        except RuntimeError as error:
            raise MismatchError(f"{path} belongs to another model: {error}") from error
        restore_optimizer_(self.optimizer, parts["momentum"])
        if self.average is not None:
            self.average.restore_(parts["average"])
        self.step, self.seconds_before = int(state["step"]), float(state["seconds"])
        self.lr_factor, self.epoch_losses = float(state["lr_factor"]), list(state["epoch_losses"])
        self.epoch_loss, self.summary = float(state["epoch_loss"]), dict(state["summary"])
        # older checkpoints have none: the record is then of the steps since
        losses, rights = (torch.tensor(values, device=self.device) for values in state.get("recent", ([], [])))
        self.recent.extend(zip(losses, rights, strict=True))


def _averages(steps: Sequence[tuple[Tensor, Tensor]], batch: int) -> dict[str, float]:
    """Return loss and accuracy over some steps."""
    loss = float(torch.stack([loss for loss, _ in steps]).mean())
    right = float(torch.stack([right for _, right in steps]).sum())
    return {"loss": loss, "accuracy": right / (len(steps) * batch)}
