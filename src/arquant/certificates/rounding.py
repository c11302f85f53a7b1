"""Radii as text, never rounded up: a figure that is read is a claim."""

import math
from decimal import ROUND_FLOOR, Decimal


def round_down(value: float, decimals: int) -> str:
    """Return the largest number with that many decimals that does not exceed the value."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_FLOOR):f}"


def down(radius: float, digits: int = 3) -> str:
    """Return a radius as text, rounded down: the number shown was proved."""
    scale = 10**digits
    return f"{math.floor(radius * scale + 1e-9) / scale:.{digits}f}"
