"""List the torch operations whose results cannot be negative. Others count as signed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Known = Callable[[Tensor], bool]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The same values in another arrangement (dropout: in eval mode).
REARRANGED = _words(
    "view reshape flatten unflatten transpose permute t swapaxes swapdims movedim moveaxis squeeze unsqueeze "
    "contiguous clone detach to float type type_as get view_as reshape_as roll flip pixel_shuffle pixel_unshuffle "
    "channel_shuffle dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout"
)
_ALWAYS = _words(
    "relu relu6 sigmoid expit hardsigmoid softmax softmin softplus abs absolute square exp exp2 sqrt rsqrt norm "
    "vector_norm var std zeros ones zeros_like ones_like new_zeros new_ones rand rand_like bernoulli one_hot"
)
# Negative only if the first argument (or a tensor in the list that it is) can be.
_SELECTED = _words(
    "getitem select narrow chunk split split_with_sizes tensor_split unbind index_select gather take topk sort max "
    "amax amin mean sum cumsum prod cat concat concatenate stack hstack vstack expand expand_as repeat "
    "repeat_interleave tile unfold fold max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d lp_pool2d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "broadcast_to upsample"
)
# Negative only if a tensor or a number among the arguments is.
_COMBINED = _words(
    "add radd iadd mul rmul imul multiply div truediv rtruediv idiv itruediv divide true_divide masked_fill where "
    "addcmul minimum fmin setitem copy fill matmul rmatmul bmm mm baddbmm"
)


def operation(func: Any) -> str:
    """Return the name of a torch function without underscores: `Tensor.__iadd__` is "iadd", `relu_` is "relu"."""
    return str(getattr(func, "__name__", "")).strip("_")


def nonnegative(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], known: Known) -> bool:
    """Tell whether the result of the operation is certainly >= 0, given which tensors are `known` to be."""
    values = [*args, *kwargs.values()]
    first = args[0] if args else kwargs.get("input", kwargs.get("tensors"))
    if name in _ALWAYS:
        return True
    if name in REARRANGED or name in _SELECTED:
        return _sure(first, known)
    if name in _COMBINED:
        return all(_sure(value, known) for value in values if isinstance(value, Tensor | int | float | np.generic))
    if name == "min":  # of one tensor, or the smaller of two
        return all(_sure(value, known) for value in values if isinstance(value, Tensor))
    if name in ("maximum", "fmax"):
        return any(_sure(value, known) for value in values)
    if name in ("clamp", "clip", "clamp_min", "hardtanh"):
        lowest = (
            args[1] if len(args) > 1 else kwargs.get("min", kwargs.get("min_val", -1.0 if name == "hardtanh" else None))
        )
        highest = args[2] if len(args) > 2 else kwargs.get("max", kwargs.get("max_val"))
        reaches = highest is None or _sure(highest, known)
        return reaches and (_sure(lowest, known) or _sure(first, known))
    if name == "pow":
        exponent = values[1]
        return _sure(first, known) or (isinstance(exponent, int | float) and exponent % 2 == 0)
    if name == "interpolate":
        mode = args[3] if len(args) > 3 else kwargs.get("mode", "nearest")
        return mode != "bicubic" and _sure(first, known)
    if name == "pad":
        filling = args[3] if len(args) > 3 else kwargs.get("value")
        return _sure(first, known) and (filling is None or filling >= 0)
    return False


def _sure(value: Any, known: Known) -> bool:
    if isinstance(value, Tensor):
        return value.dtype in (torch.bool, torch.uint8) or known(value)
    if isinstance(value, list | tuple):
        return bool(value) and all(_sure(item, known) for item in value)
    return isinstance(value, int | float | np.number) and bool(value >= 0)
