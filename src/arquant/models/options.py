"""A caller's statements about a model, combined with those of the model's source."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from arquant.base.errors import InputError, MismatchError
from arquant.models.classifier import Classifier

MAX_VALUES = 2**26
"""largest number of values of one image, and of classes: beyond it a number is a slip, not a wish"""


class ShapeUnknownError(InputError):
    """The shape of a model's images is told neither by its source nor by the caller."""


@dataclass(frozen=True)
class Options:
    """The caller's statements; None means: as the model's source says."""

    mean: tuple[float, ...] | None = None
    """per channel, in the units of `bounds`"""
    std: tuple[float, ...] | None = None
    bounds: tuple[float, float] = (0.0, 1.0)
    input_shape: tuple[int, int, int] | None = None
    """(channels, height, width)"""
    num_classes: int | None = None

    def __post_init__(self) -> None:
        shape = self.input_shape
        if shape is not None and (len(shape) != 3 or min(shape) < 1 or math.prod(shape) > MAX_VALUES):
            raise InputError(f"the input shape must be (channels, height, width) of one image, got {tuple(shape)}")
        if self.num_classes is not None and self.num_classes < 2:
            raise InputError(f"a classifier needs at least 2 classes, got {self.num_classes}")
        if self.num_classes is not None and self.num_classes > MAX_VALUES:
            raise InputError(f"a classifier has at most {MAX_VALUES:,} classes, got {self.num_classes}")

    def classifier(
        self,
        module: nn.Module,
        *,
        name: str,
        num_classes: int,
        input_shape: Sequence[int],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Classifier:
        """Return `module` as a Classifier. The caller's mean and std win over the source's, which are for [0, 1]."""
        low, high = self.bounds
        if mean is not None:
            mean = [low + (high - low) * value for value in mean]
        if std is not None:
            std = [(high - low) * value for value in std]
        return Classifier(
            module,
            num_classes=num_classes,
            input_shape=input_shape if self.input_shape is None else self.input_shape,
            mean=mean if self.mean is None else self.mean,
            std=std if self.std is None else self.std,
            bounds=self.bounds,
            name=name,
        )

    def confirm(self, classifier: Classifier) -> Classifier:
        """Return a classifier that carries its own settings, or refuse the caller's if they differ."""
        if self.mean is not None or self.std is not None:
            raise InputError(f"model {classifier.name!r} brings its own normalisation; leave out --mean and --std")
        stated = {"--input": self.input_shape, "--classes": self.num_classes, "--bounds": self.bounds}
        own = {"--input": classifier.input_shape, "--classes": classifier.num_classes, "--bounds": classifier.bounds}
        if stated["--bounds"] == (0.0, 1.0):
            stated["--bounds"] = None
        for option, value in stated.items():
            if value is not None and value != own[option]:
                raise MismatchError(f"model {classifier.name!r} has {option} {own[option]}, not {value}; leave it out")
        return classifier


@contextmanager
def seeded_init() -> Iterator[None]:
    """Make random initial weights within the context the same every time; leave the generator outside as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield
