"""Random crops of training: how they are spelled, and which part of a photo one takes. No torch."""

import math
import random

from arquant.base.errors import InputError

PADDED = "padded"
CROPS = (
    "padded (shifted by up to an eighth), resized (any part of at least 8 % of the photo), or resized:0.35 (of 35 %)"
)
USUAL_SHARE = 0.08
_NARROWEST, _WIDEST = 3 / 4, 4 / 3
_TRIES = 10

Box = tuple[int, int, int, int]
"""left, top, right and bottom of a part of a photo, in pixels"""


def least_share(crops: str) -> float | None:
    """Return the smallest share of a photo's area that a random-resized crop takes; None for padded crops."""
    kind, colon, text = crops.partition(":")
    if crops == PADDED:
        return None
    try:
        share = float(text) if colon else USUAL_SHARE
    except ValueError:
        share = math.nan
    if kind != "resized" or not 0 < share <= 1:
        raise InputError(f"cannot read the crops {crops!r}; valid are {CROPS}")
    return share


def random_box(size: tuple[int, int], shape: tuple[int, int], share: float, seed: int) -> tuple[Box, bool]:
    """Return a random part of a photo and whether to mirror it: a function of the arguments and of nothing else.

    Its area is uniform between `share` and all of the photo's, its shape between 3:4 and 4:3 of the input's, both even on
    their scales (the latter a logarithmic one); where ten such parts do not fit, it is the largest in the centre.

    Args:
        size: width and height of the photo.
        shape: width and height of the input.
    """
    draw = random.Random(seed)
    (width, height), proportion = size, shape[0] / shape[1]
    mirrored = draw.random() < 0.5
    for _ in range(_TRIES):
        area = width * height * draw.uniform(share, 1.0)
        ratio = proportion * math.exp(draw.uniform(math.log(_NARROWEST), math.log(_WIDEST)))
        wide, high = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        if wide <= width and high <= height:
            left, top = draw.randrange(width - wide + 1), draw.randrange(height - high + 1)
            return (left, top, left + wide, top + high), mirrored
    wide = min(width, max(1, round(height * proportion)))
    high = min(height, max(1, round(width / proportion)))
    left, top = (width - wide) // 2, (height - high) // 2
    return (left, top, left + wide, top + high), mirrored
