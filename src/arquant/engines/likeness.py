"""How far apart are two sets of logits of the same images, by what separates the classes of each?"""

import numpy as np
import numpy.typing as npt

from arquant.engines.probes import ORDINARY
from arquant.engines.reference import Logits

Rows = npt.NDArray[np.bool_]
_DIGITS = 1e-4
"""relative error of a logit that rounding may make whatever the others are"""


def scale_of(logits: Logits) -> npt.NDArray[np.float64]:
    """Return how far each probe's best class stands out from the middle one; small ones count as a tenth of the usual."""
    finite = np.where(np.isfinite(logits), logits, 0.0).astype(np.float64)
    spread = finite.max(axis=1) - np.median(finite, axis=1)
    scale: npt.NDArray[np.float64] = np.maximum(spread, 0.1 * np.median(spread[:ORDINARY]))
    return scale


def differ(found: Logits, expected: Logits, scale: npt.NDArray[np.float64], share: float) -> Rows:
    """Return which rows differ by more than a share of their scale."""
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        near = np.abs(found - expected) <= share * scale[:, None] + _DIGITS * np.abs(expected)
    rows: Rows = ~(same | near).all(axis=1)
    return rows
