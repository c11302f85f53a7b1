"""A network of three linear layers, whose radii interval arithmetic can prove, and the certifier of docs/extending.md."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from arquant.certification.noiseless import NoiselessCertifier
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier

SHAPE, CLASSES = (3, 4, 4), 4
NAME = "tests.support.linear_network:factory"
PAGE = Path(__file__).parents[2] / "docs/extending.md"


def factory() -> nn.Module:
    """The network, with weights of a fixed seed."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES)
        )


def linear_classifier() -> Classifier:
    """The classifier of the network."""
    classifier = Classifier(factory(), num_classes=CLASSES, input_shape=SHAPE, name=NAME)
    classifier.arch = NAME
    return classifier.eval()


def labelled_images(count: int, seed: int) -> ImageSet:
    """Random images, whose labels are the network's answers."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, *SHAPE)).astype(np.uint8)
    with torch.no_grad():
        labels = linear_classifier()(torch.from_numpy(pixels) / 255).argmax(dim=1).numpy()
    return ImageSet(pixels, labels, np.arange(count), f"random {seed}", CLASSES)


@cache
def _example() -> dict[str, Any]:
    section = PAGE.read_text().split("\n## A certifier\n")[1]
    (text,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:1]
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def intervals() -> NoiselessCertifier:
    """The certifier that the page defines."""
    certifier: NoiselessCertifier = _example()["Intervals"]()
    return certifier
