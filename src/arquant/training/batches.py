"""Training batches that are a function of (seed, step): images, crops, flips and noise are the same after a kill."""

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from arquant.images.crops import least_share, random_box
from arquant.images.imageset import ImageSet
from arquant.images.photos import Photos
from arquant.training.recipe import Recipe


def addressed_seed(*address: object) -> int:
    """Return a 63-bit seed that is a function of the address and of nothing else."""
    digest = hashlib.sha256(json.dumps([str(part) for part in address]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@functools.lru_cache(maxsize=2)
def epoch_order(images: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the order in which epoch `epoch` visits the images."""
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


def resized_parts(images: Tensor, share: float, seeds: Sequence[int]) -> Tensor:
    """Resize a random part of each image to all of it, as `random_box` chooses it for the image's own seed."""
    height, width = images.shape[2:]
    parts = []
    for image, seed in zip(images, seeds, strict=True):
        (left, top, right, bottom), mirrored = random_box((width, height), (width, height), share, seed)
        part = image[None, :, top:bottom, left:right].float()
        part = F.interpolate(part, (height, width), mode="bilinear", antialias=True, align_corners=False)
        parts.append(part.flip(3) if mirrored else part)
    resized = torch.cat(parts)
    return resized if images.is_floating_point() else resized.round_().to(images.dtype)


class TrainingPhotos:
    """Photos to train on, decoded batch by batch; the next batch is decoded while the present one is trained on.

    Indexing with positions gives some of them, as with the tensor of images that it stands for.
    """

    def __init__(self, photos: Photos) -> None:
        self.photos = photos
        self.ahead = _Ahead()

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, positions: Tensor) -> "TrainingPhotos":
        return TrainingPhotos(self.photos.take(positions.numpy()))

    def batch(self, recipe: Recipe, step: int) -> Tensor:
        """Return the photos of a step, uint8; what `recipe.crops` says is done to them, padding excepted."""
        if self.ahead.of != (recipe, step):
            self.ahead.begin(recipe, step, self._decode)
        pixels = self.ahead.result()
        self.ahead.begin(recipe, step + 1, self._decode)
        return torch.from_numpy(pixels)

    def _decode(self, recipe: Recipe, step: int) -> npt.NDArray[np.uint8]:
        chosen, epoch = _chosen(len(self), recipe, step)
        share = least_share(recipe.crops) if recipe.augment else None
        if share is None:
            return self.photos[chosen]
        return self.photos.crops(chosen, share, _crop_seeds(self.photos.numbers[chosen], recipe, epoch))


Source = Tensor | TrainingPhotos
"""images (N, C, H, W) to train on: in memory, uint8 or floats in units of the pixel range, or in files"""


@dataclass
class _Ahead:
    """One batch that is being decoded."""

    of: tuple[Recipe, int] | None = None
    future: Future[npt.NDArray[np.uint8]] = field(default_factory=Future)
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "batch"))

    def begin(self, recipe: Recipe, step: int, decode: Callable[[Recipe, int], npt.NDArray[np.uint8]]) -> None:
        self.of, self.future = (recipe, step), self.worker.submit(decode, recipe, step)

    def result(self) -> npt.NDArray[np.uint8]:
        return self.future.result()


def source_of(images: ImageSet) -> tuple[Source, Tensor]:
    """Return the images and labels of a set as training takes them."""
    pixels = images.images
    source = TrainingPhotos(pixels) if isinstance(pixels, Photos) else torch.from_numpy(pixels)
    return source, torch.from_numpy(images.labels)


def visited(images: ImageSet, recipe: Recipe) -> ImageSet:
    """Return the photos on demand that a run by `recipe` reads, of those that it may; of images in memory, all."""
    if not isinstance(images.images, Photos):
        return images
    chosen = some_images(len(images), recipe)
    per_epoch = len(chosen) // recipe.images_per_step
    steps, reached = recipe.total_steps(per_epoch) + recipe.settle_batchnorm, np.zeros(len(chosen), bool)
    for epoch in range(-(-steps // per_epoch)):
        last = min(steps - epoch * per_epoch, per_epoch) * recipe.images_per_step
        reached[epoch_order(len(chosen), recipe.seed, epoch)[:last]] = True
        if reached.all():
            break
    return images.take(chosen[reached])


def some_images(images: int, recipe: Recipe) -> npt.NDArray[np.int64]:
    """Return the positions of the images to train on: all, or as many as the recipe says."""
    if 0 < recipe.images < images:
        return np.sort(epoch_order(images, recipe.seed, -1)[: recipe.images])
    return np.arange(images)


def data_digest(images: Source, labels: Tensor) -> str:
    """Return a SHA-256 by which a run knows its images: of all pixels and labels; of many photos, of their files' names and
    sizes instead of pixels.
    """
    if isinstance(images, Tensor):
        digest = hashlib.sha256(np.ascontiguousarray(images.numpy()).data)
    elif images.photos.is_small:
        digest = hashlib.sha256()
        for photo in images.photos:
            digest.update(photo.data)
    else:
        digest = hashlib.sha256(images.photos.listing_digest().encode())
    digest.update(np.ascontiguousarray(labels.numpy()).data)
    return digest.hexdigest()


def note_training_noise(noise: str, note: Callable[[str], None]) -> None:
    """Say so where a model that is fine-tuned here will be smoothed with noise of another law."""
    if noise not in ("grid", "gaussian"):
        note(f"fine-tuning adds Gaussian noise of the same standard deviation, all else {noise} noise")


def _chosen(images: int, recipe: Recipe, step: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the positions of the images of a step, and its epoch."""
    size = recipe.images_per_step
    epoch, within = divmod(step, images // size)
    return epoch_order(images, recipe.seed, epoch)[within * size : (within + 1) * size], epoch


def _crop_seeds(numbers: npt.NDArray[np.int64], recipe: Recipe, epoch: int) -> list[int]:
    return [addressed_seed("crop", recipe.seed, epoch, number) for number in numbers.tolist()]


def noisy_batch(images: Source, labels: Tensor, recipe: Recipe, step: int) -> tuple[Tensor, Tensor]:
    """Batch `step` of a run: images in units of the pixel range with fresh noise (not clipped), and their labels.

    Of several noisy copies the first of every image come first, then the second.
    Random-resized crops are a function of seed, epoch and image, padded ones of seed and step.
    """
    positions, epoch = _chosen(len(images), recipe, step)
    chosen = torch.from_numpy(positions)
    generator = torch.Generator().manual_seed(addressed_seed("batch", recipe.seed, step))
    batch = images[chosen] if isinstance(images, Tensor) else images.batch(recipe, step)
    share = least_share(recipe.crops)
    if recipe.augment and share is None:
        batch = augment(batch, generator)
    elif recipe.augment and share is not None and isinstance(images, Tensor):
        batch = resized_parts(batch, share, _crop_seeds(positions, recipe, epoch))
    pixels = (batch.float() / 255 if batch.dtype == torch.uint8 else batch).repeat(recipe.copies, 1, 1, 1)
    noise = recipe.sigma * torch.randn(pixels.shape, generator=generator)
    noisy = pixels + noise
    return torch.round(255 * noisy) / 255 if recipe.grid else noisy, labels[chosen].repeat(recipe.copies)
