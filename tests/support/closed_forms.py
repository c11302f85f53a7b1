"""Base classifiers whose smoothed versions are known exactly, and an engine that runs them through the real pipeline."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from arquant.certification.smoothing import Smoothed
from arquant.engines.base import Engine, InputKind
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier

Rule = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.int64]]
"""Noisy images (N, d) in units of the pixel range -> classes (N,)."""


class FunctionEngine(Engine):
    """Runs a plain function instead of a network."""

    def __init__(self, rule: Rule, shape: tuple[int, int, int], *, input_kind: InputKind, batch: int = 4096) -> None:
        super().__init__(batch=batch, input_shape=shape, input_kind=input_kind)
        self.rule = rule

    def labels_of(self, batch: np.ndarray) -> npt.NDArray[np.int64]:
        unit = batch.astype(np.float64) / (255 if self.input_kind == "levels" else 1)
        return self.rule(unit.reshape(len(batch), -1)).astype(np.int64)

    def describe(self) -> dict[str, Any]:
        return {"engine": "function", "batch": self.batch}


class Nothing(nn.Module):
    """Stands where a network would; a test's engine never calls it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), self.classes)


def smoothed(
    rule: Rule,
    sigma: float,
    *,
    classes: int = 2,
    shape: tuple[int, int, int] = (1, 1, 2),
    noise: str = "gaussian",
    seed: int = 0,
    batch: int = 4096,
) -> Smoothed:
    """The rule as a smoothed classifier."""
    classifier = Classifier(Nothing(classes), num_classes=classes, input_shape=shape)
    kind: InputKind = "levels" if noise == "grid" else "unit"
    return Smoothed(
        classifier, sigma, noise=noise, seed=seed, engine=FunctionEngine(rule, shape, input_kind=kind, batch=batch)
    )


def copies(
    x: Sequence[float] | np.ndarray, count: int, *, classes: int = 2, label: int = 0, first: int = 0
) -> ImageSet:
    """`count` copies of one image with indices of their own, so that each has noise of its own."""
    pixels = np.asarray(x)
    image = pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
    images = np.repeat(image.reshape(1, 1, 1, -1), count, axis=0)
    indices = np.arange(first, first + count, dtype=np.int64)
    return ImageSet(images, np.full(count, label, np.int64), indices, "copies", classes)


def half_space(threshold: float) -> Rule:
    """Class 0 where the first coordinate is above the threshold."""
    return lambda z: np.where(z[:, 0] > threshold, 0, 1)
