"""Numbers in files that anyone may have written."""

import math
from typing import Any


def finite(value: Any) -> float | None:
    """Return a number of a JSON file as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's integers have no limit
        return None
    return number if math.isfinite(number) else None
