"""Make a toy to search: layers, a space, a reward that takes no time, and a small network for strategies that look at one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from arquant.base.progress import silent
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.models.tracing.attention import Call
from arquant.models.tracing.layer import Layer, Layers
from arquant.quantization.budget import Budget
from arquant.quantization.policy import BitsLike, Policy
from arquant.quantization.quantized import QuantizedClassifier, quantize
from arquant.searching.context import Arrays, SearchContext
from arquant.searching.space import Space
from arquant.training.recipe import Recipe

SHAPE, CLASSES, SIGMA = (3, 16, 16), 10, 0.25

CONVOLUTIONS = (
    # inputs, outputs, kernel, stride, groups, input size
    (3, 8, 3, 1, 1, 16),
    (8, 16, 3, 2, 1, 16),
    (16, 16, 3, 1, 16, 8),
    (16, 24, 1, 1, 1, 8),
    (24, 32, 3, 2, 1, 8),
    (32, 32, 3, 1, 1, 4),
)


def toy_layers(convolutions: int = len(CONVOLUTIONS)) -> Layers:
    """Return the first of six convolutions of unequal cost, one of them depthwise: `conv0`, `conv1`, ...; then `fc`."""
    layers = [
        _layer(f"conv{i}", "conv", (inputs, outputs), kernel, stride, groups, size)
        for i, (inputs, outputs, kernel, stride, groups, size) in enumerate(CONVOLUTIONS[:convolutions])
    ]
    fc = _layer("fc", "linear", (layers[-1].out_channels, CLASSES), 1, 1, 1, 1)
    return Layers((*layers, fc), model="toy", input_shape=SHAPE)


def _layer(name: str, kind: str, channels: tuple[int, int], kernel: int, stride: int, groups: int, size: int) -> Layer:
    inputs, outputs = channels
    positions = (size // stride) ** 2
    macs = inputs // groups * outputs * kernel**2 * positions
    return Layer(
        name=name,
        kind=kind,
        in_channels=inputs,
        out_channels=outputs,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(kernel // 2, kernel // 2),
        groups=groups,
        input_size=(size, size),
        positions=positions,
        macs=macs,
        macs_paper=macs,
        weight_shape=(outputs, inputs // groups, kernel, kernel) if kind == "conv" else (outputs, inputs),
        signed_input=False,
        call=Call(name, kind, weight="weight"),
    )


def toy_space(
    budget: str = "bops<=3bit",
    *,
    layers: Layers | None = None,
    keep: Mapping[str, BitsLike] | None = None,
    min_bits: int = 2,
    max_bits: int = 8,
) -> Space:
    """Return the space of the toy network, or of `layers`, under a budget."""
    found = toy_layers() if layers is None else layers
    return Space(Budget.parse(budget, found, keep=keep, min_bits=min_bits), max_bits)


def toy_reward(space: Space, *, seed: int = 0, spread: float = 1.0, noise: float = 0.0) -> Callable[[Policy], float]:
    """Return a reward that is separable: minus the sum over widths of sensitivity x 4^-bits.

    Sensitivities are log-normal with the given spread, larger by three for activations than for weights, and scaled so
    that 2 bits everywhere cost 1. Each call adds normal noise, drawn anew.
    """
    rng = np.random.default_rng(seed)
    sensitivity = np.exp(spread * rng.standard_normal((len(space.searched), 2))) * [1.0, 3.0]
    sensitivity *= 16.0 / sensitivity.sum()

    def reward(policy: Policy) -> float:
        loss = float((sensitivity * 4.0 ** -space.bits(policy)).sum())
        return -loss + noise * float(rng.standard_normal())

    return reward


class ToyNetwork(nn.Module):
    """The network of `toy_layers`, with random weights."""

    def __init__(self, convolutions: int = len(CONVOLUTIONS)) -> None:
        super().__init__()
        # Made without values, so that no layer draws its own from the global generator.
        self.stages = convolutions
        for i, (inputs, outputs, kernel, stride, groups, _) in enumerate(CONVOLUTIONS[:convolutions]):
            shape: dict[str, Any] = {"stride": stride, "padding": kernel // 2, "groups": groups, "device": "meta"}
            setattr(self, f"conv{i}", nn.Conv2d(inputs, outputs, kernel, **shape))
        self.fc = nn.Linear(CONVOLUTIONS[convolutions - 1][1], CLASSES, device="meta")
        self.to_empty(device="cpu")
        rng = np.random.default_rng(0)
        with torch.no_grad():
            for parameter in self.parameters():
                scale = (2 / max(1, parameter[0].numel())) ** 0.5
                parameter.copy_(torch.from_numpy(scale * rng.standard_normal(tuple(parameter.shape))))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        for i in range(self.stages):
            images = torch.relu(getattr(self, f"conv{i}")(images))
        logits: Tensor = self.fc(images.mean((2, 3)))
        return logits


@cache
def toy_classifier(convolutions: int = len(CONVOLUTIONS)) -> Classifier:
    """Return the toy network as a classifier; do not change it."""
    return Classifier(ToyNetwork(convolutions), num_classes=CLASSES, input_shape=SHAPE, name="toy").eval()


@dataclass(frozen=True, eq=False)
class ToyContext(SearchContext):
    """A context that writes down what is computed with it."""

    work: list[str] = field(default_factory=list)
    """the name of every kept result that was computed, and "train" for every training"""

    def kept(self, name: str, compute: Callable[[], Arrays], *, options: Mapping[str, Any] | None = None) -> Arrays:
        """Do what `SearchContext.kept` does."""

        def counted() -> Arrays:
            self.work.append(name)
            return compute()

        return super().kept(name, counted, options=options)

    def train(self, model: Classifier, recipe: Recipe | None = None, **options: Any) -> dict[str, Any]:
        """Do what `SearchContext.train` does."""
        self.work.append("train")
        return super().train(model, recipe, **options)


def toy_context(space: Space, folder: Path, *, seed: int = 0) -> ToyContext:
    """Return the context of a search over `space`, which must be of `toy_layers`: 32 images, fine-tunings of 2 and 20 steps."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (32, *SHAPE)).astype(np.uint8)
    images = ImageSet(pixels, np.arange(32) % CLASSES, np.arange(32), "toy", CLASSES)
    classifier = toy_classifier(len(space.layers) - 1).snapshot()
    recipe = Recipe(sigma=SIGMA, steps=2, batch=16, lr=0.01, augment=False, seed=seed)

    def make_quantized() -> QuantizedClassifier:
        return quantize(classifier, space.budget.cheapest(), images, sigma=SIGMA, images=8, seed=seed)

    return ToyContext(
        classifier=classifier,
        calibrate=images,
        space=space,
        sigma=SIGMA,
        noise="grid",
        seed=seed,
        recipe=recipe,
        final_recipe=replace(recipe, steps=20),
        device="cpu",
        threads=1,
        compiled=False,
        report=silent,
        folder=folder,
        quantizer={"clip": "auto", "per_channel": False, "learn": "pact"},
        make_quantized=make_quantized,
    )
