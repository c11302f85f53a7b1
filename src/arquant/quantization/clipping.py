"""Where to clip before quantizing: the KL rule of the paper's code family, least squared error, the maximum, or `auto`.

A quantizer's grid is the integers from `low` to `high` times a step, and its clip is `high` steps. The rules look at
values of shape (rows, count) and return one clip per row: one row is a tensor, many rows are the channels of a weight.
A clip is always positive and finite; where all values are zero it is 1.

Activations that are signed but hardly negative, as after GELU, SiLU or hard-swish, would waste nearly half of a symmetric
grid: `skewed_grid` also chooses how many of the levels are below zero.
"""

import math
from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor

from arquant.base.errors import InputError
from arquant.quantization.options import ClipRule as ClipRule

FEW_LEVELS = 4
"""grids of at most so many levels, those of up to 2 bits, follow the KL rule under `auto`, others have least squared error"""
KL_MOST_BITS = 4
"""wider quantizers clip at the maximum under the KL rule, as the published code does"""
KL_MOST_BINS = 512
MOST_VALUES = 2**15
"""longer rows are thinned to about this many values before a search; the maximum is always that of all values"""
COARSE_RATIO = 1.17
SKEWED = 0.25
"""signed values that reach at most this share of their maximum below zero have a skewed grid"""
ROWS = 256
"""channels that are searched at a time"""


def clips(values: Tensor, low: int, high: int, *, rule: ClipRule, largest: float | None = None) -> Tensor:
    """One clip per row of `values` (rows, count) for the grid `low`..`high`, as float32 (rows,) on the CPU.

    `largest` is the maximum (of the magnitude, if `low` < 0) where `values` are only a sample.

    Raises:
        InputError: an unknown rule, no values, or values that are not finite.
    """
    if rule not in get_args(ClipRule):
        raise InputError(f"clip rule {rule!r} is unknown; it is one of {', '.join(get_args(ClipRule))}")
    if values.ndim != 2 or values.shape[1] == 0:
        raise InputError(f"clips need values of shape (rows, count), got {tuple(values.shape)}")
    values = values.detach().float().cpu()
    if not bool(torch.isfinite(values).all()):
        raise InputError("values to be quantized are NaN or infinite; check the model's weights and the images")
    if rule == "auto":
        rule = "kl" if high - low < FEW_LEVELS else "mse"
    tops = max_clips(values, low)
    if largest is not None and largest > 0:
        tops = torch.full_like(tops, largest)
    if rule == "max" or (rule == "kl" and high + 1 > kl_levels(KL_MOST_BITS, signed=low < 0)):
        return tops
    thinned = thin(values, MOST_VALUES)
    magnitudes = thinned.abs() if low < 0 else thinned.clamp(min=0)
    if rule == "mse":
        found = mse_clips(magnitudes, high, tops)
    else:
        rows = zip(magnitudes, tops, strict=True)
        found = torch.tensor([kl_clip(row, high + 1, float(top)) for row, top in rows])
    return torch.where(magnitudes.amax(1) > 0, found, tops)


def kl_levels(bits: int, *, signed: bool) -> int:
    """Return how many levels a magnitude has on a grid of `bits` bits, zero included."""
    return 1 << (bits - 1) if signed else 1 << bits


def thin(values: Tensor, most: int) -> Tensor:
    """About `most` values of each row, evenly spaced.

    The spacing is 1, 2 or a prime that does not divide the number of values: 3 x 3 kernels, say, are met in all nine places.
    """
    count = values.shape[1]
    step = math.ceil(count / most)
    while step > 2 and (count % step == 0 or any(step % part == 0 for part in range(2, math.isqrt(step) + 1))):
        step += 1
    return values[:, ::step]


def max_clips(values: Tensor, low: int) -> Tensor:
    """Return the largest magnitude of each row; the largest value if the grid has no negative side."""
    largest = (values.abs() if low < 0 else values).amax(1)
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def mse_clips(magnitudes: Tensor, high: int, largest: Tensor) -> Tensor:
    """Return the clip of each row whose quantization has the least mean squared error, to within 2 per cent of the clip.

    A geometric search from `largest` down to 1/150 of it, then a finer one around its best clip.
    """
    if len(magnitudes) > ROWS:  # the memory that follows grows with rows times levels
        places = range(0, len(magnitudes), ROWS)
        return torch.cat([mse_clips(magnitudes[i : i + ROWS], high, largest[i : i + ROWS]) for i in places])
    ordered = magnitudes.double().sort(1).values
    return _least(lambda tried: squared_errors(ordered, tried, high), largest)[0]


def _least(errors_of: Callable[[Tensor], Tensor], largest: Tensor) -> tuple[Tensor, Tensor]:
    """Return the clip of each row that has the least error, and that error; `errors_of` maps clips (rows, clips) to errors."""
    best = largest.double()
    for ratios in (COARSE_RATIO ** -torch.arange(33.0), COARSE_RATIO ** torch.linspace(-1, 1, 15)):
        tried = torch.minimum(best[:, None] * ratios, largest.double()[:, None])
        least = errors_of(tried).min(1, keepdim=True)
        best = tried.gather(1, least.indices)[:, 0]
    return best.float(), least.values[:, 0]


def is_skewed(smallest: float, largest: float) -> bool:
    """Tell whether values between these are signed, but reach so little below zero that they get a skewed grid."""
    return -SKEWED * largest <= smallest < 0


def skewed_grid(values: Tensor, bits: int, *, largest: float) -> tuple[int, float]:
    """Return the smallest integer and the clip of the grid of 2^bits levels whose quantization of values (count,) errs least.

    None, one or more of its levels are below zero, up to a quarter; with some below, none is above 127.
    """
    thinned = thin(values.detach().double().cpu()[None], MOST_VALUES)
    above, below = (part.clamp(min=0).sort(1).values for part in (thinned, -thinned))
    top = torch.tensor([largest])

    def found(low: int) -> tuple[float, float]:
        high = min(low + 2**bits - 1, 127 if low < 0 else 255)

        def errors(tried: Tensor) -> Tensor:
            lost = (
                squared_errors(below, tried * (-low / high), -low) if low < 0 else below.square().mean(1, keepdim=True)
            )
            return squared_errors(above, tried, high) + lost

        clip, error = _least(errors, top)
        return float(error), float(clip)

    best = {-count: found(-count) for count in range(2**bits // 4 + 1)}
    low = min(best, key=lambda low: best[low][0])
    return low, best[low][1]


def squared_errors(ordered: Tensor, tried: Tensor, high: int) -> Tensor:
    """Exact mean squared quantization errors (rows, clips) of sorted magnitudes (rows, count) for clips (rows, clips).

    The values that round to one level are neighbours in sorted order, so that sums over them are differences of
    cumulative sums: the cost grows with the number of levels, not with the number of values.
    """
    rows, count = ordered.shape
    step = (tried / high)[:, :, None]
    level = torch.arange(high + 1, dtype=torch.float64)
    cuts = torch.searchsorted(ordered, ((level[:-1] + 0.5) * step).reshape(rows, -1)).reshape(rows, -1, high)
    edges = torch.cat([torch.zeros_like(cuts[:, :, :1]), cuts, torch.full_like(cuts[:, :, :1], count)], 2)
    totals = torch.cat([torch.zeros(rows, 1, dtype=torch.float64), ordered.cumsum(1)], 1)
    sums = totals.gather(1, edges.reshape(rows, -1)).reshape(edges.shape).diff(dim=2)
    quantized = level * step
    change = (quantized * (quantized * edges.diff(dim=2) - 2 * sums)).sum(2)
    return (change + ordered.square().sum(1, keepdim=True)) / count


def kl_clip(magnitudes: Tensor, levels: int, largest: float) -> float:
    """Return the clip that disturbs the distribution of magnitudes least, as the published code measures it.

    For every candidate bin i the cumulative histogram C is saturated from there on, resampled linearly to `levels`
    points and back to Q, and sum (C - Q) log2(C / Q) over all bins is minimised. Differences from the published code:
    `levels` counts both halves' worth of levels where values are unsigned, empty first bins do not give NaN, and the
    histogram has at most `KL_MOST_BINS` bins, so that the search takes milliseconds.
    """
    bins = min(math.ceil(math.sqrt(magnitudes.numel())), KL_MOST_BINS)
    if levels + 1 > bins or largest <= 0:
        return largest
    counts = torch.histc(magnitudes.double(), bins, 0.0, largest)
    cdf = torch.cumsum(counts / counts.sum(), 0)
    ends = torch.arange(levels + 1, bins + 1, dtype=torch.float64)[:, None]
    bin_index = torch.arange(bins, dtype=torch.float64)[None, :]
    saturated = torch.where(bin_index >= ends - 1, 1.0, cdf)
    knots = _interpolate(saturated, torch.arange(levels, dtype=torch.float64) * (ends - 1) / (levels - 1))
    resampled = _interpolate(knots, bin_index.clamp(max=ends - 1) * (levels - 1) / (ends - 1))
    tiny = torch.finfo(torch.float64).tiny
    distance = ((cdf - resampled) * torch.log2(cdf.clamp(min=tiny) / resampled.clamp(min=tiny))).sum(1)
    chosen = float(ends[int(distance.argmin()), 0])
    return min((chosen + 0.5) * largest / bins, largest)


def _interpolate(rows: Tensor, at: Tensor) -> Tensor:
    """Linear interpolation of each row at fractional positions `at` (rows, points)."""
    left = at.floor().long().clamp(0, rows.shape[1] - 2)
    weight = at - left
    return torch.gather(rows, 1, left) * (1 - weight) + torch.gather(rows, 1, left + 1) * weight
