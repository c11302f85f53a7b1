"""Noise-augmented training and fine-tuning: one loop for both, resumable to the same result.

Noise is fresh for every batch and added in pixel space, before normalisation and without clipping.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from arquant.base.allocator import keep_freed_memory
from arquant.base.errors import InputError, MismatchError
from arquant.base.processor import Precision, compiler_available, has_bfloat16
from arquant.base.progress import Report, Status, silent
from arquant.models.classifier import Classifier
from arquant.quantization.calibration import estimate_batchnorm_
from arquant.quantization.quantizers import learned_sizes
from arquant.training.batches import addressed_seed, epoch_order, noisy_batch
from arquant.training.checkpoint import check_same_run, identity_of, read_checkpoint, save_checkpoint
from arquant.training.losses import Answers, find_loss
from arquant.training.recipe import Recipe

Step = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""from noisy images, labels and, in distillation, the teacher's probabilities to the loss and how many answers were right"""
REPORT_SECONDS = 2.0
RECORDED_STEPS = 100
"""the last steps of a run, over which its record has loss and accuracy"""
COMPILE_FROM = 200
"""optimizer steps"""


def default_precision() -> Precision:
    """What to train in on this machine: bfloat16 where it has arithmetic for it, else float32."""
    return "bfloat16" if has_bfloat16("cuda" if torch.cuda.is_available() else "cpu") else "float32"


class Diverged(InputError):
    """Training gave NaN or infinite numbers; the message says where."""


def train(
    model: Classifier,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    teacher: Classifier | None = None,
    answers: dict[int, Tensor] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 120.0,
    origin: str | None = None,
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
        images, labels: uint8 (N, C, H, W) or floats in units of the pixel range, and int64 (N,).
        teacher: for `recipe.distill`: a model of the same classes, in eval mode, that sees the same noisy images.
        answers: the teacher's probabilities by step, used where they are there and added where not. Calls that share it
            must agree in recipe, images and teacher; the batches are then the same, and the teacher sees each once.
        checkpoint: a safetensors file, written every `checkpoint_seconds`, that the same call resumes from; refused if it
            belongs to another recipe, policy, data set or origin.
        origin: what the model was before its first step, in a word that the checkpoint records.
        compiled: compile the step; by default for runs of COMPILE_FROM steps or more, which repay the minute it takes.
        look: may end the run on the way; if it does not, the result is that of a run without it.
        accepted: called once before the first step, if the checkpoint is not refused.

    Raises:
        Diverged: the loss became NaN or infinite; the checkpoint keeps the last finite state.
    """
    keep_freed_memory()
    recipe.check_images(len(images))
    images, labels = _subset(images, labels, recipe)
    if (recipe.distill > 0) != (teacher is not None):
        raise InputError(f"distillation needs a teacher and a weight above 0, got weight {recipe.distill}")
    device = torch.device(device)
    identity = identity_of(model, recipe, images, labels) | ({} if origin is None else {"origin": origin})
    run = _Run(model, recipe, identity, len(images) // recipe.images_per_step, device)
    run.resume(checkpoint)
    accepted()
    compiled = (run.total >= COMPILE_FROM if compiled is None else compiled) and compiler_available(device)
    loss_of = _step_function(model, recipe, compiled=compiled)
    taught = None if teacher is None else _Teaching(teacher, recipe, device, answers, compiled=compiled)
    began = saved = reported = time.monotonic()
    while run.step < run.total:
        pixels, target = noisy_batch(images, labels, recipe, run.step)
        pixels = pixels.to(device).contiguous(memory_format=model.memory_format)
        run.update(loss_of, pixels, target.to(device), None if taught is None else taught.answer(run.step, pixels))
        now, final = time.monotonic(), run.step == run.total
        if final or now - reported >= REPORT_SECONDS:
            report(run.status(stage))
            reported = now
        if final or now - saved >= checkpoint_seconds:
            run.summarise()
            if checkpoint is not None:
                run.save(checkpoint, run.seconds_before + now - began)
            saved = now
        if look is not None and run.step == round(look.after * run.total) and not final and not run.allows(look):
            model.eval()
            return {**run.identity, "steps": run.step, **run.summary, "seconds": round(time.monotonic() - began, 1)}
    if recipe.settle_batchnorm:
        settled = (noisy_batch(images, labels, recipe, run.total + i)[0] for i in range(recipe.settle_batchnorm))
        estimate_batchnorm_(model, (model.from_unit(pixels).to(device) for pixels in settled))
    model.eval()
    seconds = run.seconds_before + time.monotonic() - began
    return {**run.identity, "steps": run.total, **run.summary, "seconds": round(seconds, 1)}


@dataclass(frozen=True)
class Look:
    """A look at the model, in eval mode, after a share of the steps; training goes on if `goes_on` returns True."""

    after: float
    goes_on: Callable[[], bool]


@dataclass
class _Run:
    """A training run between two steps."""

    model: Classifier
    recipe: Recipe
    identity: dict[str, Any]
    per_epoch: int
    device: torch.device
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
        self._ready()
        sizes = {id(size) for size in learned_sizes(self.model)}
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        weights = [parameter for parameter in trained if id(parameter) not in sizes]
        clips = [parameter for parameter in trained if id(parameter) in sizes]
        self.parameters = weights + clips
        self.optimizer = torch.optim.SGD(
            [{"params": weights, "factor": 1.0}, {"params": clips, "factor": self.recipe.clip_lr}],
            lr=self.recipe.lr,
            momentum=self.recipe.momentum,
            weight_decay=self.recipe.weight_decay,
            nesterov=self.recipe.nesterov and self.recipe.momentum > 0,  # without momentum both are the same
        )

    def _ready(self) -> None:
        """The model on its device, in training mode."""
        self.model.to(device=self.device, memory_format=self.model.memory_format).train()  # type: ignore[call-overload]
        if self.recipe.freeze_batchnorm:
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def allows(self, look: Look) -> bool:
        """Whether training goes on after a look."""
        self.summarise()
        self.model.eval()
        goes_on = look.goes_on()
        self._ready()
        return goes_on

    def update(self, loss_of: Step, pixels: Tensor, target: Tensor, wanted: Tensor | None) -> None:
        """One optimizer step."""
        rate = self.recipe.lr_at(self.step, self.total, self.per_epoch) * self.lr_factor
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimizer.zero_grad(set_to_none=True)
        with self._addressed_draws():
            loss, right = loss_of(pixels, target, wanted)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._window.append((loss.detach(), right))
        self.recent.append((loss.detach(), right))
        self.step += 1
        if self.recipe.schedule == "plateau":
            self.epoch_loss += float(loss.detach())
            if self.step % self.per_epoch == 0:
                self._end_epoch()

    @contextmanager
    def _addressed_draws(self) -> Iterator[None]:
        """What the network draws (dropout, stochastic depth) is a function of seed and step; the generators outside are left
        as they were. A compiled step draws its seeds from the same generators.
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
        """Loss and accuracy, of the record and since the last summary; raises if a loss since then is not finite."""
        if not self._window:
            return
        self.latest = _averages(self._window, self.recipe.batch)
        if not math.isfinite(loss := self.latest["loss"]):
            raise Diverged(f"the loss became {loss} before step {self.step}; use a smaller --lr")
        self.summary = _averages(self.recent, self.recipe.batch)
        self._window = []

    def status(self, stage: str) -> Status:
        """How far the run is, with loss and accuracy on the noisy training images."""
        self.summarise()
        details = {"loss": f"{self.latest['loss']:.4f}", "accuracy": f"{self.latest['accuracy']:.1%}"}
        values = {**self.latest, "lr": self.optimizer.param_groups[0]["lr"]}
        size = self.recipe.images_per_step
        done, total = self.step * size, self.total * size
        return Status(stage, done, total, "images", details, values, self.step)

    def momenta(self) -> dict[str, Tensor]:
        """The optimizer's momentum buffers by parameter number."""
        buffers = {str(i): self.optimizer.state[p].get("momentum_buffer") for i, p in enumerate(self.parameters)}
        return {name: buffer for name, buffer in buffers.items() if buffer is not None}

    def save(self, path: Path, seconds: float) -> None:
        """Write model, momentum and position."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"momentum.{index}": tensor for index, tensor in self.momenta().items()}
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
        weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise MismatchError(f"{path} belongs to another model: {error}") from error
        for index, parameter in enumerate(self.parameters):
            if (momentum := tensors.get(f"momentum.{index}")) is not None:
                self.optimizer.state[parameter]["momentum_buffer"] = momentum.to(self.device)
        self.step, self.seconds_before = int(state["step"]), float(state["seconds"])
        self.lr_factor, self.epoch_losses = float(state["lr_factor"]), list(state["epoch_losses"])
        self.epoch_loss, self.summary = float(state["epoch_loss"]), dict(state["summary"])
        # older checkpoints have none: the record is then of the steps since
        losses, rights = (torch.tensor(values, device=self.device) for values in state.get("recent", ([], [])))
        self.recent.extend(zip(losses, rights, strict=True))


def _averages(steps: Sequence[tuple[Tensor, Tensor]], batch: int) -> dict[str, float]:
    """Loss and accuracy over some steps."""
    loss = float(torch.stack([loss for loss, _ in steps]).mean())
    right = float(torch.stack([right for _, right in steps]).sum())
    return {"loss": loss, "accuracy": right / (len(steps) * batch)}


def _subset(images: Tensor, labels: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """The images to train on: all, or as many as the recipe says."""
    if 0 < recipe.images < len(images):
        chosen = torch.from_numpy(np.sort(epoch_order(len(images), recipe.seed, -1)[: recipe.images]))
        images, labels = images[chosen], labels[chosen]
    return images, labels


class _Teaching:
    """The teacher's probabilities for the batches of a run; `answers` keeps them for the runs that follow."""

    def __init__(
        self,
        teacher: Classifier,
        recipe: Recipe,
        device: torch.device,
        answers: dict[int, Tensor] | None,
        *,
        compiled: bool,
    ) -> None:
        teacher.to(device)
        mixed = recipe.precision == "bfloat16"

        def probabilities_of(pixels: Tensor) -> Tensor:
            return _logits(teacher, pixels, mixed=mixed).softmax(1)

        self._compute = torch.compile(probabilities_of) if compiled else probabilities_of
        self._answers = answers

    @torch.no_grad()
    def answer(self, step: int, pixels: Tensor) -> Tensor:
        if self._answers is None:
            return self._compute(pixels)
        if step not in self._answers:
            self._answers[step] = self._compute(pixels)
        return self._answers[step]


def _logits(model: Classifier, pixels: Tensor, *, mixed: bool) -> Tensor:
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=mixed):
        answer = model(model.from_unit(pixels))
    # some networks answer with auxiliary heads in training mode, the logits first
    logits = answer if isinstance(answer, Tensor) else _first_of(answer, (len(pixels), model.num_classes), model.name)
    return logits.float()


def _first_of(answer: Any, shape: tuple[int, int], name: str) -> Tensor:
    parts = answer.values() if isinstance(answer, Mapping) else answer if isinstance(answer, tuple | list) else ()
    for part in parts:
        if isinstance(part, Tensor) and tuple(part.shape) == shape:
            return part
    raise InputError(f"model {name!r} returns no logits of shape {shape} in training mode, but {type(answer).__name__}")


def _step_function(model: Classifier, recipe: Recipe, *, compiled: bool) -> Step:
    mixed, copies = recipe.precision == "bfloat16", recipe.copies
    terms = [(find_loss(name), weight) for name, weight in recipe.terms]

    def loss_of(pixels: Tensor, target: Tensor, taught: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = _logits(model, pixels, mixed=mixed)
        answers = Answers(logits, target, taught, copies)
        (first, weight), *others = terms
        loss = first(answers, weight)
        for term, weight in others:
            loss = loss + term(answers, weight)
        return loss, (logits.argmax(1) == target).sum()

    return torch.compile(loss_of) if compiled else loss_of
