"""Training batches that are a function of (seed, step): images, crops, flips and noise are the same after a kill."""

import functools
import hashlib
import json
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from arquant.training.recipe import Recipe


def addressed_seed(*address: object) -> int:
    """A 63-bit seed that is a function of the address and of nothing else."""
    digest = hashlib.sha256(json.dumps([str(part) for part in address]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@functools.lru_cache(maxsize=2)
def epoch_order(images: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which epoch `epoch` visits the images."""
    return np.random.default_rng(addressed_seed("order", seed, epoch)).permutation(images)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop each image at a random place of its zero-padded self (an eighth of its height more) and flip half of them."""
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


def note_training_noise(noise: str, note: Callable[[str], None]) -> None:
    """Say so where a model that is fine-tuned here will be smoothed with noise of another law."""
    if noise not in ("grid", "gaussian"):
        note(f"fine-tuning adds Gaussian noise of the same standard deviation, all else {noise} noise")


def noisy_batch(images: Tensor, labels: Tensor, recipe: Recipe, step: int) -> tuple[Tensor, Tensor]:
    """Batch `step` of a run: images in units of the pixel range with fresh noise (not clipped), and their labels.

    Of several noisy copies the first of every image come first, then the second.

    Args:
        images: (N, C, H, W), uint8 or floats in units of the pixel range.
    """
    size = recipe.images_per_step
    epoch, within = divmod(step, len(images) // size)
    order = epoch_order(len(images), recipe.seed, epoch)
    chosen = torch.from_numpy(order[within * size : (within + 1) * size])
    generator = torch.Generator().manual_seed(addressed_seed("batch", recipe.seed, step))
    batch = images[chosen]
    if recipe.augment:
        batch = augment(batch, generator)
    pixels = (batch.float() / 255 if batch.dtype == torch.uint8 else batch).repeat(recipe.copies, 1, 1, 1)
    noise = recipe.sigma * torch.randn(pixels.shape, generator=generator)
    return pixels + noise, labels[chosen].repeat(recipe.copies)
