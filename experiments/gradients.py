"""Quantizers that change what the gradient of a weight does at the rounding: tried by `finetune_defaults.py`, not shipped.

- ewgs (Lee, Kim and Ham, CVPR 2021): a gradient that pulls a weight towards the far side of its rounding interval counts more
  than one that pushes it back, by `pull` per step of distance.
- damped (Nagel et al., ICML 2022): weights are drawn to the grid, so that fewer of them swing between two values.
"""

from typing import Any

import torch
from torch import Tensor

from arquant.quantization.quantizers import Pact, WeightQuantizer, register_quantizer


class _Elastic(torch.autograd.Function):
    """The identity; backwards g (1 + pull sign(g) (x - round(x))), x in steps."""

    @staticmethod
    def forward(ctx: Any, scaled: Tensor, pull: float) -> Tensor:
        ctx.save_for_backward(scaled)
        ctx.pull = pull
        return scaled.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (scaled,) = ctx.saved_tensors
        return gradient * (1 + ctx.pull * torch.sign(gradient) * (scaled - torch.round(scaled))), None


class _Drawn(torch.autograd.Function):
    """The identity; backwards g + strength (x - round(x)), x in steps."""

    @staticmethod
    def forward(ctx: Any, scaled: Tensor, strength: Tensor) -> Tensor:
        ctx.save_for_backward(scaled, strength)
        return scaled.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scaled, strength = ctx.saved_tensors
        return gradient + strength * (scaled - torch.round(scaled)), None


def _ewgs(pull: float) -> type[Pact]:
    class Ewgs(Pact):
        @staticmethod
        def weight(quantizer: WeightQuantizer, weight: Tensor) -> tuple[Tensor, Tensor]:
            scaled, step = Pact.weight(quantizer, weight)
            return _Elastic.apply(scaled, pull), step  # type: ignore[no-untyped-call]

    return Ewgs


def _damped(weight_of_distance: float) -> type[Pact]:
    class Damped(Pact):
        @staticmethod
        def weight(quantizer: WeightQuantizer, weight: Tensor) -> tuple[Tensor, Tensor]:
            scaled, step = Pact.weight(quantizer, weight)
            strength = 2 * weight_of_distance * step.detach() ** 2  # of the squared distance in units of the weight
            return _Drawn.apply(scaled, strength), step  # type: ignore[no-untyped-call]

    return Damped


for _pull in (0.2, 1.0):
    register_quantizer(f"ewgs-{_pull:g}")(_ewgs(_pull))
for _weight in (0.001, 0.01):
    register_quantizer(f"damped-{_weight:g}")(_damped(_weight))
