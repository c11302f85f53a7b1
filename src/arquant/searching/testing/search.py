"""A network that exists on paper only, and a reward to search there: evaluations that take no time."""

from collections.abc import Callable, Mapping

import numpy as np

from arquant.models.tracing.attention import Call
from arquant.models.tracing.layer import Layer, Layers
from arquant.quantization.budget import Budget
from arquant.quantization.policy import BitsLike, Policy
from arquant.searching.space import Space

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
    """The first of six convolutions of unequal cost, one of them depthwise: `conv0`, `conv1`, ...; then `fc`."""
    layers = [
        _layer(f"conv{i}", "conv", (inputs, outputs), kernel, stride, groups, size)
        for i, (inputs, outputs, kernel, stride, groups, size) in enumerate(CONVOLUTIONS[:convolutions])
    ]
    fc = _layer("fc", "linear", (layers[-1].out_channels, 10), 1, 1, 1, 1)
    return Layers((*layers, fc), model="toy", input_shape=(3, 16, 16))


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
    """The space of the toy network, or of `layers`, under a budget."""
    found = toy_layers() if layers is None else layers
    return Space(Budget.parse(budget, found, keep=keep, min_bits=min_bits), max_bits)


def toy_reward(space: Space, *, seed: int = 0, spread: float = 1.0, noise: float = 0.0) -> Callable[[Policy], float]:
    """A reward that is separable: minus the sum over widths of sensitivity x 4^-bits.

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
