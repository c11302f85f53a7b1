"""A network, images and votes small enough to search, fine-tune and certify in seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from arquant.certification.vote_cache import VoteCache
from arquant.engines.choice import ENGINES
from arquant.engines.torch import TorchEngine
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import Layers, find_layers
from arquant.quantization.budget import Budget
from arquant.searching.space import Space

SHAPE, CLASSES, SIGMA = (3, 8, 8), 4, 0.25


def small_module() -> nn.Module:
    """Four quantizable layers, two of which are searched."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def factory() -> nn.Module:
    """The trained module, as `tests.support.small_search:factory` on the command line."""
    module = small_module()
    module.load_state_dict(_trained())
    return module.eval()


def small_classifier() -> Classifier:
    """The trained network."""
    name = "tests.support.small_search:factory"
    classifier = Classifier(factory(), num_classes=CLASSES, input_shape=SHAPE, name=name)
    classifier.arch = name
    return classifier.eval()


@cache
def _trained() -> dict[str, torch.Tensor]:
    from arquant.training.loop import train
    from arquant.training.recipe import Recipe

    with torch.random.fork_rng():
        torch.manual_seed(0)
        classifier = Classifier(small_module(), num_classes=CLASSES, input_shape=SHAPE)
    images = image_set(256, 100)
    recipe = Recipe(sigma=SIGMA, steps=80, batch=64, lr=0.1, augment=False)
    train(classifier, torch.from_numpy(images.images), torch.from_numpy(images.labels), recipe, compiled=False)
    return {name: tensor.clone() for name, tensor in classifier.module.state_dict().items()}


def image_set(count: int, seed: int, name: str = "synthetic") -> ImageSet:
    """Images of four classes that differ in where they are bright; no two sets of different seeds share one."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = rng.integers(40, 150, (count, *SHAPE))
    for i, label in enumerate(labels):
        top, left = divmod(int(label), 2)
        images[i, :, 4 * top : 4 * top + 4, 4 * left : 4 * left + 4] += rng.integers(30, 100)
    return ImageSet(images.astype(np.uint8), labels.astype(np.int64), np.arange(count), name, CLASSES)


def cache_of(votes: np.ndarray, labels: np.ndarray, selected: np.ndarray | None = None) -> VoteCache:
    """A cache with given votes."""
    return VoteCache(votes.astype(np.uint8), labels if selected is None else selected, labels, {})


@cache
def small_layers() -> Layers:
    """The layers of the network, without training it."""
    return find_layers(Classifier(small_module(), num_classes=CLASSES, input_shape=SHAPE))


def small_space(budget: str = "bops<=3bit") -> Space:
    """The policies of the network within a budget."""
    return Space(Budget.parse(budget, small_layers()))


SHIPPED_ENGINES = dict(ENGINES)


@contextmanager
def quick_engines() -> Iterator[None]:
    """PyTorch as it is, whichever engine is asked for: tracing or compiling would take most of a test's time."""

    def plain(classifier: Classifier, *, input_kind: Any, **_: Any) -> TorchEngine:
        return TorchEngine(classifier, batch=64, input_kind=input_kind, compiled=False)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("torch", "openvino"):
            patch.setitem(ENGINES, name, plain)
        yield
