"""Quantize weights as DoReFa does, rescaled to the size that they had; activations as PACT does.

DoReFa (Zhou et al., 2016) squashes weights by tanh, divides them by the largest and rounds them evenly over [-1, 1]. A network
that was trained before does not survive weights of another size, so ours multiplies by the largest weight again.
"""

import torch
from torch import Tensor

from arquant.quantization.quantizers import TINY, Pact, WeightQuantizer, register_quantizer

ON_GRID = 1e-3
"""in steps: a weight all of whose values are as near to the grid is rounded already"""


@register_quantizer("pact-dorefa")
class PactDorefa(Pact):
    """Learns the clips of activations; rounds squashed weights, whose gradient follows the squashing."""

    @staticmethod
    def weight(quantizer: WeightQuantizer, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the squashed weight in steps.

        A weight that lies on the grid, as one read from a file does, is left as it is: it was squashed before it was
        rounded.
        """
        step = quantizer.step
        plain, squashed = weight * (1 / step), dorefa(weight) * (1 / step)
        grid = torch.round(plain + quantizer.offset) - quantizer.offset
        return torch.where((plain - grid).abs().amax() < ON_GRID, plain, squashed), step


def dorefa(weight: Tensor) -> Tensor:
    """Return tanh(weight), scaled so that its largest magnitude is the weight's own."""
    bent = torch.tanh(weight)
    return bent * (weight.detach().abs().amax() / bent.abs().amax().clamp(min=TINY))
