"""Noise-augmented training and fine-tuning: one loop, resumable, the same batches and noise for a seed whatever happens.

Every batch is addressed: its images, crops, flips and noise follow from (seed, epoch or step), so a run that was killed
and resumed sees exactly what an uninterrupted one sees. Noise is fresh for every batch and added in pixel space, before
normalisation and without clipping.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from arquant.errors import FileFormatError, InputError, MismatchError

Schedule = Literal["onecycle", "step", "constant"]


@dataclass(frozen=True)
class Recipe:
    """How to train: everything that decides the result, and nothing else."""

    sigma: float
    """standard deviation of the Gaussian noise, in units of the pixel range"""
    epochs: float
    """passes over the images; a fraction is a part of one"""
    batch: int = 256
    lr: float = 0.2
    """peak learning rate"""
    momentum: float = 0.9
    weight_decay: float = 2e-4
    schedule: Schedule = "onecycle"
    """onecycle: linear warm-up over the first tenth, then cosine to zero; step: x `decay` at each milestone"""
    milestones: tuple[float, ...] = ()
    """epochs at which the step schedule decays"""
    decay: float = 0.1
    augment: bool = True
    """random crop of the image padded by an eighth, and horizontal flip"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """of the forward and backward pass; weights, updates and statistics stay float32"""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sigma >= 0:
            raise InputError(f"sigma must be at least 0, got {self.sigma}")
        if not self.epochs > 0:
            raise InputError(f"epochs must be positive, got {self.epochs}")
        if self.batch < 2:
            raise InputError(f"batch must be at least 2, got {self.batch}")
        if not self.lr > 0:
            raise InputError(f"lr must be positive, got {self.lr}")

    def steps(self, images: int) -> int:
        """Number of optimizer steps over a set of `images` images (the last, partial batch of an epoch is dropped)."""
        return max(1, round(self.epochs * (images // self.batch)))

    def lr_at(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """Learning rate of optimizer step `step` (from 0) of `steps`."""
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "step":
            return self.lr * self.decay ** sum(step >= m * steps_per_epoch for m in self.milestones)
        warm_up = max(1, steps // 10)
        if step < warm_up:
            return self.lr * (step + 1) / warm_up
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


@dataclass(frozen=True)
class Progress:
    """What a training loop reports after a step."""

    step: int
    steps: int
    loss: float
    """mean over the steps since the last report"""
    accuracy: float
    """of the base classifier on the noisy training images, a fraction"""
    images_per_second: float


def addressed_seed(*address: object) -> int:
    """A 63-bit seed that is a function of the address and of nothing else."""
    digest = hashlib.sha256(json.dumps([str(part) for part in address]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def epoch_order(images: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which epoch `epoch` visits the images."""
    return np.random.default_rng(addressed_seed("order", seed, epoch)).permutation(images)


def augment_batch(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop each image at a random place of its zero-padded self (an eighth of the height on each side) and flip half of them."""
    count, _, height, width = images.shape
    pad = max(1, height // 8)
    padded = F.pad(images, (pad, pad, pad, pad))
    top = torch.randint(0, 2 * pad + 1, (count, 1, 1, 1), generator=generator)
    left = torch.randint(0, 2 * pad + 1, (count, 1, 1, 1), generator=generator)
    flip = torch.randint(0, 2, (count, 1, 1, 1), generator=generator, dtype=torch.bool)
    columns = torch.arange(width).view(1, 1, 1, width)
    columns = torch.where(flip, columns.flip(3), columns) + left
    rows = torch.arange(height).view(1, 1, height, 1) + top
    image = torch.arange(count).view(count, 1, 1, 1)
    channel = torch.arange(images.shape[1]).view(1, -1, 1, 1)
    return padded[image, channel, rows, columns]


def noisy_batch(images: Tensor, labels: Tensor, recipe: Recipe, step: int) -> tuple[Tensor, Tensor]:
    """Batch `step` of the run: unit-range float images with fresh noise (not clipped), and their labels.

    `images` is uint8 (N, C, H, W); the batch is a function of (seed, step) only.
    """
    per_epoch = len(images) // recipe.batch
    epoch, within = divmod(step, per_epoch)
    chosen = torch.from_numpy(epoch_order(len(images), recipe.seed, epoch)[within * recipe.batch :][: recipe.batch])
    generator = torch.Generator().manual_seed(addressed_seed("batch", recipe.seed, step))
    batch = images[chosen]
    if recipe.augment:
        batch = augment_batch(batch, generator)
    pixels = batch.float() / 255 if batch.dtype == torch.uint8 else batch
    return pixels + recipe.sigma * torch.randn(pixels.shape, generator=generator), labels[chosen]


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 120.0,
    compiled: bool = True,
    device: torch.device | str = "cpu",
    report: Callable[[Progress], None] | None = None,
    report_seconds: float = 10.0,
) -> dict[str, Any]:
    """Train `model` in place by `recipe` and return the record of the run (recipe, steps, final loss, seconds).

    Args:
        model: takes unit-range pixels, returns logits; left in eval mode.
        images, labels: uint8 (N, C, H, W) or float in [0, 1], and int64 (N,).
        checkpoint: a safetensors file that is written every `checkpoint_seconds` and resumed from if it exists; it is
            refused if it belongs to another recipe or data set.
        report: called about every `report_seconds`.

    Raises:
        InputError: the loss became NaN or infinite; the checkpoint keeps the last finite state.
    """
    if len(images) < recipe.batch:
        raise InputError(
            f"{len(images)} training images are fewer than one batch of {recipe.batch}; use a smaller --batch"
        )
    per_epoch = len(images) // recipe.batch
    steps = recipe.steps(len(images))
    identity = {"recipe": asdict(recipe), "images": len(images), "data": data_fingerprint(images, labels)}
    model.to(device=device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=True
    )
    first, seconds_before = _resume(checkpoint, model, optimizer, identity)
    loss_of = _loss_function(model, recipe, compiled=compiled, device=torch.device(device))

    started = saved = reported = time.monotonic()
    window: list[tuple[Tensor, Tensor]] = []
    last = {"loss": math.nan, "accuracy": math.nan}
    for step in range(first, steps):
        pixels, target = noisy_batch(images, labels, recipe, step)
        pixels = pixels.to(device).contiguous(memory_format=torch.channels_last)
        target = target.to(device)
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr_at(step, steps, per_epoch)
        optimizer.zero_grad(set_to_none=True)
        loss, correct = loss_of(pixels, target)
        loss.backward()
        optimizer.step()
        window.append((loss.detach(), correct))

        now = time.monotonic()
        final = step == steps - 1
        if final or now - reported >= report_seconds or now - saved >= checkpoint_seconds:
            last = _summarise(window, recipe.batch, step)
            rate = len(window) * recipe.batch / max(1e-9, now - reported)
            if report is not None:
                report(Progress(step + 1, steps, last["loss"], last["accuracy"], rate))
            reported, window = now, []
        if checkpoint is not None and (final or now - saved >= checkpoint_seconds):
            save_checkpoint(checkpoint, model, optimizer, identity, step + 1, seconds_before + now - started)
            saved = now
    model.eval()
    return {**identity, "steps": steps, **last, "seconds": round(seconds_before + time.monotonic() - started, 1)}


def data_fingerprint(images: Tensor, labels: Tensor) -> str:
    """SHA-256 of the images and labels as they are."""
    digest = hashlib.sha256(np.ascontiguousarray(images.numpy()).data)
    digest.update(np.ascontiguousarray(labels.numpy()).data)
    return digest.hexdigest()


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, Any], step: int, seconds: float
) -> None:
    """Write model, momentum and position to `path`, replacing it in one move so that a kill never leaves half a file."""
    tensors = {f"model.{name}": value.contiguous() for name, value in model.state_dict().items()}
    for index, momentum in _momenta(optimizer):
        tensors[f"momentum.{index}"] = momentum.contiguous()
    metadata = {"schema": "arquant.training", "version": "1", "step": str(step), "seconds": str(round(seconds, 1))}
    metadata["identity"] = json.dumps(identity, sort_keys=True)
    scratch = path.with_name(path.name + ".part")
    save_file(tensors, scratch, metadata)
    scratch.replace(path)


def _resume(
    path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, Any]
) -> tuple[int, float]:
    """Load the checkpoint into model and optimizer; return the next step and the seconds already spent."""
    if path is None or not path.exists():
        return 0, 0.0
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        tensors = load_file(path)
        step, seconds = int(metadata["step"]), float(metadata["seconds"])
        stored = json.loads(metadata["identity"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise FileFormatError(
            f"{path} is not a readable training checkpoint ({error}); delete it to start over"
        ) from error
    if stored != json.loads(json.dumps(identity)):
        raise MismatchError(f"{path} belongs to another recipe or data set; choose another --out or delete it")
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        if (momentum := tensors.get(f"momentum.{index}")) is not None:
            optimizer.state[parameter]["momentum_buffer"] = momentum.to(parameter.device)
    return step, seconds


def _momenta(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, Tensor]]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        momentum = optimizer.state[parameter].get("momentum_buffer")
        if momentum is not None:
            yield index, momentum


def _loss_function(
    model: nn.Module, recipe: Recipe, *, compiled: bool, device: torch.device
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def loss_of(pixels: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            logits = model(pixels)
        logits = logits.float()
        return F.cross_entropy(logits, target), (logits.argmax(1) == target).sum()

    return torch.compile(loss_of) if compiled else loss_of


def _summarise(window: list[tuple[Tensor, Tensor]], batch: int, step: int) -> dict[str, float]:
    loss = float(torch.stack([loss for loss, _ in window]).mean())
    if not math.isfinite(loss):
        raise InputError(f"the loss became {loss} near step {step}; use a smaller --lr")
    return {"loss": loss, "accuracy": float(torch.stack([c for _, c in window]).sum()) / (len(window) * batch)}
