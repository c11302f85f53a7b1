"""Hold what each width costs each searched layer: what a file, learned steps or a Hessian say, in one form for the solver."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arquant.searching.sensitivity_table import SensitivityTable
from arquant.searching.space import Space

Table = NDArray[np.float64]
"""[searched layer, width - min_bits]"""


@dataclass(frozen=True, eq=False)
class Importance:
    """How bad each width is for the weights and for the input of each searched layer; larger is worse, in any unit."""

    weights: Table
    activations: Table

    def damage(self, weight_factor: float = 1.0) -> NDArray[np.float64]:
        """Return [layer, w - min_bits, a - min_bits]: the sum of both, with a factor for the weights."""
        return weight_factor * self.weights[:, :, None] + self.activations[:, None, :]

    def monotone(self) -> "Importance":
        """Return the nearest tables, in the least squares of each layer, that never grow with the width."""
        return Importance(*(np.stack([falling(row) for row in table]) for table in (self.weights, self.activations)))

    def save(self, path: Path, space: Space, facts: Mapping[str, Any]) -> None:
        """Write the file that strategy `ilp` and the report read."""
        widths = range(space.min_bits, space.max_bits + 1)
        pairs = zip(space.searched, self.weights.tolist(), self.activations.tolist(), strict=True)
        rows = {
            name: {"w": dict(zip(widths, w, strict=True)), "a": dict(zip(widths, a, strict=True))}
            for name, w, a in pairs
        }
        SensitivityTable(rows, facts=facts).save(path)


def falling(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the non-increasing sequence nearest to `values` in least squares (pool adjacent violators)."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] < means[-1]:
            total = counts[-2] + counts[-1]
            means[-2:] = [(means[-2] * counts[-2] + means[-1] * counts[-1]) / total]
            counts[-2:] = [total]
    return np.repeat(means, counts)
