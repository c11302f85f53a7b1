"""Replace rounding by noise of the same law, so that gradients reach the width and the clip of a quantizer.

After NIPQ (Shin et al., CVPR 2023): in training, a value inside the clip gets the error of a random other value of the same
tensor, in steps, times the step; the step is a smooth function of the width and the clip. No gradient is straight-through.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from arquant.quantization.quantizers import TINY, straight_through

BINS = 256
"""of the histogram of rounding errors over a step"""
QUANTILES = 4096
"""of that histogram, from which noise is drawn: looking one up is faster than inverting the histogram for each value"""
MOST_VALUES = 2**17
"""that fill a histogram"""


class NoiseProxy(nn.Module):
    """Stands in for a quantizer of a weight or of an input while its width and clip are learned.

    Draws come from torch's own generator. There is no answer in eval mode other than in training: what is learned is
    taken from `bits`.

    Args:
        clip: to begin with; positive.
        signed: whether values are clipped from below at -clip, or at 0.
        low, high: the widths it may have, at least 2 if signed; it begins in their middle.
    """

    def __init__(self, clip: float, *, signed: bool, low: int, high: int) -> None:
        super().__init__()
        self.signed, self.low, self.high = signed, low, high
        self.width = nn.Parameter(torch.zeros(()))
        self.reach = nn.Parameter(torch.tensor(_inverse_softplus(max(clip, TINY))))

    @property
    def bits(self) -> Tensor:
        """The width, a real number between `low` and `high`."""
        return self.low + (self.high - self.low) * torch.sigmoid(self.width)

    @property
    def clip(self) -> Tensor:
        """The largest value that is not clipped."""
        return softplus(self.reach) + TINY

    def levels(self, bits: Tensor) -> Tensor:
        """Return how many steps the clip is, at a width."""
        return 2 ** (bits - 1) - 1 if self.signed else 2**bits - 1

    def drawn_bits(self) -> Tensor:
        """Return a whole width, at random the one below or above `bits`, which has the gradient."""
        bits = self.bits
        whole = torch.round(bits + torch.rand_like(bits) - 0.5).clamp(self.low, self.high)
        return straight_through(whole, bits)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noisy values in units of 1, and that unit: the form in which quantizers answer."""
        x = x.float()
        clip = self.clip
        step = clip / self.levels(self.drawn_bits())
        floor = -clip if self.signed else torch.zeros_like(clip)
        inside = (x > floor) & (x < clip)
        noisy = x + rounding_noise(x.detach(), inside, step.detach()) * step
        return torch.where(inside, noisy, torch.where(x < clip, floor, clip)), torch.ones_like(clip)


@torch.no_grad()
def rounding_noise(x: Tensor, inside: Tensor, step: Tensor) -> Tensor:
    """Return a draw for every value, in steps, from the histogram of the errors that rounding makes inside the clip.

    Of a large tensor, rows evenly spaced over it fill the histogram.
    """
    some = slice(None, None, max(1, x.numel() // MOST_VALUES)) if x.ndim else ...
    scaled = x[some] / step
    errors = (torch.round(scaled) - scaled)[inside[some]]
    counts = torch.histc(errors, BINS, -0.5, 0.5) if errors.numel() else torch.ones(BINS, device=x.device)
    return _quantiles(counts)[(torch.rand_like(x) * QUANTILES).long().clamp_(max=QUANTILES - 1)]


def _quantiles(counts: Tensor) -> Tensor:
    """Return evenly spaced quantiles of a histogram over [-1/2, 1/2], whose bins are filled evenly."""
    share = counts / counts.sum()
    ends = share.cumsum(0)
    levels = (torch.arange(QUANTILES, device=counts.device) + 0.5) / QUANTILES
    bins = torch.searchsorted(ends, levels).clamp(max=BINS - 1)
    within = ((levels - (ends - share)[bins]) / share[bins].clamp(min=TINY)).clamp(0, 1)
    return (bins + within) / BINS - 0.5


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))
