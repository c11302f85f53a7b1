"""Quantizers whose widths, clips and steps are tensors: one compiled model serves every policy.

A quantizer returns integers, in a float tensor, together with their step; the quantized value is their product. Layers
can then multiply integers by integers and scale the result once: in float32 such sums are exact whatever their order
(up to 2^24), as they are on integer hardware. Rounding is to the nearest, ties to even.

- Weights of w >= 2 bits are integers from -(2^(w-1) - 1) to 2^(w-1) - 1 times `step = clip / (2^(w-1) - 1)`; at 1 bit
  they are -clip or +clip, stored as -1/2 or +1/2 times `step = 2 clip`. One clip per tensor or per output channel.
- Unsigned activations of a bits: 0 to 2^a - 1; signed ones: -(2^(a-1) - 1) to 2^(a-1) - 1, but 0 and 1 at 1 bit. Signed
  ones that reach far less below zero than above, as after GELU, have a skewed grid: 2^a levels from some `low` on, of which
  none is above 127 where `low` is negative, so that the levels are those of an 8-bit integer.

Gradients pass rounding unchanged. What else they do is the quantizer's `learn`, the name of a registered `Learning`; one of
your own is a subclass, `@register_quantizer("mine")`. Ours:
- "pact": weights get the gradient of their quantized value even where clipped, and their clip is fixed. An activation x
  gets it inside the clip only, the clip gets the sum of it where x is above (minus that where a signed x is below).
  Unsigned quantizers are for inputs that cannot be negative; should one be, its value is 0 and it gets the gradient.
- "lsq": the step of weights and activations is learned, gradients stop at the clip, and the gradient of the step is
  divided by sqrt(count x largest integer).
- "pact-dorefa" (`dorefa`) and "kmeans" (`weight_sharing`) differ from "pact" in their weights.
"""

import abc
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.base.registry import registering

TINY = 1e-8
"""no clip or step is smaller"""


def weight_levels(bits: int) -> tuple[float, float]:
    """Return the largest multiple of the step that a weight takes, and by how much the grid is off zero, in steps."""
    return (0.5, 0.5) if bits == 1 else (2.0 ** (bits - 1) - 1, 0.0)


def activation_levels(bits: int, *, signed: bool, low: int | None = None) -> tuple[int, int]:
    """Return the smallest and the largest integer that an activation takes; on a skewed grid, the smallest one is `low`."""
    largest = 2 ** (bits - 1) - 1
    usual = (0, 2**bits - 1) if bits == 1 or not signed else (-largest, largest)
    if low is None or low == usual[0]:
        return usual
    return low, min(low + 2**bits - 1, 127 if low < 0 else 255)


def straight_through(value: Tensor, source: Tensor) -> Tensor:
    """Exactly `value`, with the gradient of `source`."""
    return value.detach() + (source - source.detach()) if torch.is_grad_enabled() else value


def scale_gradient(value: Tensor, factor: Tensor) -> Tensor:
    """Exactly `value`, its gradient multiplied by `factor`."""
    return value.detach() + factor * (value - value.detach())


class Learning(abc.ABC):
    """Says what fine-tuning learns of a quantizer, and where gradients go. Subclasses hold no state."""

    size_is_step: ClassVar[bool]
    """True if the size that a quantizer keeps is its step, False if it is its clip"""
    learns_weights: ClassVar[bool]
    """True if the size of a weight's quantizer is trained; that of an activation's always is"""
    shares_weights: ClassVar[bool] = False
    """True if weights take at most 2^bits values of the 8-bit grid, each by its code"""

    @staticmethod
    @abc.abstractmethod
    def weight(quantizer: "WeightQuantizer", weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight in steps, with the gradient it is to have, not yet clipped or rounded; and the step."""

    @staticmethod
    @abc.abstractmethod
    def activation(quantizer: "ActivationQuantizer", x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input in steps, clipped, with the gradient it is to have, not yet rounded; and the step."""


QUANTIZERS: dict[str, type[Learning]] = {}


def register_quantizer(name: str) -> Callable[[type[Learning]], type[Learning]]:
    """Register what a quantizer learns under a name, which `learn` then takes; the last one registered counts."""
    return registering(QUANTIZERS, name)


def check_quantizer(name: str) -> None:
    """Refuse a name that is not registered."""
    if name not in QUANTIZERS:
        raise InputError(f"unknown quantizer {name!r} (--learn); registered are {', '.join(sorted(QUANTIZERS))}")


class _Quantizer(nn.Module):
    """What both quantizers share: a positive size, which is the clip or the step, as `learn` has it, and `high`.

    The size is a parameter where it is learned, else a buffer; its magnitude counts, should an optimizer cross zero.
    """

    size: Tensor
    high: Tensor
    share: Tensor
    """1 / high: kernels multiply faster than they divide"""

    def __init__(self, size: Tensor, *, learn: str, learned: bool) -> None:
        super().__init__()
        self.learn = learn
        if learned:
            self.size = nn.Parameter(size)
        else:
            self.register_buffer("size", size)
        self.register_buffer("high", torch.ones((), device=size.device))
        self.register_buffer("share", torch.ones((), device=size.device))

    @property
    def learning(self) -> type[Learning]:
        """Return what fine-tuning learns."""
        return QUANTIZERS[self.learn]

    @property
    def clip(self) -> Tensor:
        """The largest value that can be represented."""
        magnitude = torch.clamp(self.size.abs(), min=TINY)
        return magnitude * self.high if self.learning.size_is_step else magnitude

    @property
    def step(self) -> Tensor:
        """The distance of neighbouring values."""
        magnitude = torch.clamp(self.size.abs(), min=TINY)
        return magnitude if self.learning.size_is_step else magnitude * self.share

    @torch.no_grad()
    def _set_size(self, clip: Tensor | float, high: float) -> None:
        clips = torch.as_tensor(clip, dtype=self.size.dtype, device=self.size.device)
        if not bool((torch.isfinite(clips) & (clips > 0)).all()):
            raise InputError(f"a clip must be positive and finite, got {clips.flatten()[:4].tolist()}")
        self.high.fill_(high)
        self.share.fill_(1 / high)
        self.size.copy_((clips / high if self.learning.size_is_step else clips).reshape_as(self.size))

    def learned_step(self, values: Tensor) -> Tensor:
        """Return the step of LSQ with its gradient scaled by 1 / sqrt(count x largest integer)."""
        count = values.numel() / self.size.numel()
        return scale_gradient(self.step, torch.rsqrt(count * self.high))


def learned_sizes(model: nn.Module) -> list[nn.Parameter]:
    """Return the clips (or steps) of a model's quantizers that training changes."""
    sizes = (part.size for part in model.modules() if isinstance(part, _Quantizer))
    return [size for size in sizes if isinstance(size, nn.Parameter)]


class WeightQuantizer(_Quantizer):
    """Symmetric quantizer of a weight, with one clip for all of it or one per output channel."""

    offset: Tensor
    width: Tensor
    own: nn.Parameter | None
    """taken instead of the weight that the network gives; see `take_over_`"""
    codes: Tensor | None
    """where weights are shared: which of the layer's values each of them has"""

    def __init__(self, weight: Tensor, *, per_channel: bool = False, learn: str = "pact") -> None:
        check_quantizer(learn)
        shares = QUANTIZERS[learn].shares_weights
        if shares and per_channel:
            raise InputError(f"quantizer {learn!r} has one set of values for a whole layer: leave --per-channel out")
        shape = (weight.shape[0], *[1] * (weight.ndim - 1)) if per_channel else ()
        super().__init__(torch.ones(shape, device=weight.device), learn=learn, learned=QUANTIZERS[learn].learns_weights)
        self.register_parameter("own", None)
        self.register_buffer("offset", torch.zeros((), device=weight.device))
        self.register_buffer("codes", torch.zeros_like(weight, dtype=torch.uint8) if shares else None)
        if shares:
            self.register_buffer("width", torch.full((), 8, dtype=torch.uint8, device=weight.device))
        self.set_(8, 1.0 if not per_channel else torch.ones(shape))

    @property
    def bits(self) -> int:
        """The present width; of shared weights, that of their codes."""
        if self.codes is not None:
            return int(self.width)
        high = float(self.high)
        return 1 if high == 0.5 else round(high + 1).bit_length()

    @property
    def unit(self) -> float:
        """What stands for one integer, in steps: binary weights are off zero by half a step."""
        return 0.5 if float(self.high) == 0.5 else 1.0

    def set_(self, bits: int, clip: Tensor | float) -> None:
        """Change the width and the clip, in place; shared values keep the grid of 8 bits."""
        high, offset = weight_levels(bits if self.codes is None else 8)
        self._set_size(clip, high)
        self.offset.fill_(offset)
        if self.codes is not None:
            self.width.fill_(bits)

    def share_(self, codes: Tensor) -> None:
        """Let weights of equal codes have one value from now on."""
        assert self.codes is not None
        self.codes.copy_(codes.reshape(self.codes.shape))

    def take_over_(self, weight: Tensor) -> None:
        """Quantize this weight from now on, a parameter here, in place of one that is computed or shared with others."""
        self.own = nn.Parameter(weight)

    def forward(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight as multiples of the step, and the step, shaped to be multiplied with the weight."""
        weight = weight.float() if self.own is None else self.own
        scaled, step = self.learning.weight(self, weight)
        clipped = torch.clamp(scaled, -self.high, self.high)
        return straight_through(torch.round(clipped + self.offset) - self.offset, scaled), step

    def extra_repr(self) -> str:
        """Nothing that a policy changes."""
        return f"channels={self.size.numel()}, learn={self.learn!r}"


class ActivationQuantizer(_Quantizer):
    """Quantizer of a layer's input (or of an operand of attention), with one learned clip or step for all of it."""

    low: Tensor

    def __init__(self, *, signed: bool, learn: str = "pact", device: torch.device | str = "cpu") -> None:
        check_quantizer(learn)
        super().__init__(torch.ones((), device=device), learn=learn, learned=True)
        self.signed = signed
        self.register_buffer("low", torch.zeros((), device=device))
        self.set_(8, 1.0)

    @property
    def bits(self) -> int:
        """The present width."""
        return round(float(self.high - self.low)).bit_length()

    @property
    def skewed_low(self) -> int | None:
        """The smallest integer of a skewed grid; None of a grid that the width alone decides."""
        low = round(float(self.low))
        return None if low == activation_levels(self.bits, signed=self.signed)[0] else low

    def set_(self, bits: int, clip: Tensor | float, low: int | None = None) -> None:
        """Change the width, the clip and, for a skewed grid, its smallest integer, in place."""
        lowest, high = activation_levels(bits, signed=self.signed, low=low)
        self._set_size(clip, high)
        self.low.fill_(lowest)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input as integers in a float32 tensor, and their step."""
        scaled, step = self.learning.activation(self, x.float())
        integers = torch.round(scaled)
        return straight_through(integers if self.signed else torch.relu(integers), scaled), step

    def extra_repr(self) -> str:
        """Nothing that a policy changes."""
        return f"signed={self.signed}, learn={self.learn!r}"


@register_quantizer("pact")
class Pact(Learning):
    """Learns the clips of activations."""

    size_is_step, learns_weights = False, False

    @staticmethod
    def weight(quantizer: WeightQuantizer, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Let the gradient of a weight pass even where it is clipped."""
        step = quantizer.step
        return weight * (1 / step), step

    @staticmethod
    def activation(quantizer: ActivationQuantizer, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give the gradient of what is clipped to the clip."""
        step = quantizer.step.detach()
        # One clip per channel first: compilers fuse the sums over each channel with those of BatchNorm's gradient.
        clip = quantizer.clip.expand(x.shape[1]).reshape(1, -1, 1, 1) if x.ndim == 4 else quantizer.clip
        if not quantizer.signed:
            return torch.clamp(x, max=clip) * (1 / step), step
        return torch.clamp(x, clip * (quantizer.low * quantizer.share), clip) * (1 / step), step


@register_quantizer("lsq")
class Lsq(Learning):
    """Learns the steps of weights and activations."""

    size_is_step, learns_weights = True, True

    @staticmethod
    def weight(quantizer: WeightQuantizer, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Stop gradients at the clip."""
        step = quantizer.learned_step(weight)
        return torch.clamp(weight * (1 / step), -quantizer.high, quantizer.high), step

    @staticmethod
    def activation(quantizer: ActivationQuantizer, x: Tensor) -> tuple[Tensor, Tensor]:
        """Stop gradients at the clip."""
        step = quantizer.learned_step(x)
        return torch.clamp(x * (1 / step), quantizer.low, quantizer.high), step
