"""Group the searched layers by what the network shows: kind and stage, so that a few numbers say what widths cost.

A stage is where the feature maps have one size. Where nearly all work has one kind and size, as in a transformer, depth takes
the place of the stage. Names play no part, so a user's own network is grouped like ours.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arquant.models.tracing.layer import Layer

MOST_GROUPS = 6
"""more than this, and a search spends its candidates on telling groups apart"""
DEPTHS = 3
"""parts, by depth, of a group that holds most of the work"""


def group_layers(layers: Sequence[Layer], most: int = MOST_GROUPS) -> NDArray[np.int64]:
    """Return the group of each layer, numbered in execution order, at most `most` of them.

    Layers of one kind (convolution, depthwise, linear, matmul) whose outputs have the same size are a group. One with
    more than half of the work is cut into `DEPTHS` parts; then the group with the least work joins its neighbour, of its
    own kind if there is one, until there are few enough.
    """
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, layer in enumerate(layers):
        found["depthwise" if layer.depthwise else layer.kind, layer.positions // layer.uses].append(place)
    work = np.array([layer.macs for layer in layers], dtype=np.float64)
    groups: list[tuple[str, list[int]]] = []
    for (kind, _), members in found.items():
        heavy = work[members].sum() > work.sum() / 2 and len(members) >= 2 * DEPTHS
        groups += [(kind, part.tolist()) for part in np.array_split(members, DEPTHS if heavy else 1)]
    while len(groups) > max(1, most):
        groups = _merged(groups, work)
    label = np.zeros(len(layers), dtype=np.int64)
    for number, (_, members) in enumerate(sorted(groups, key=lambda group: group[1][0])):
        label[members] = number
    return label


def _merged(groups: list[tuple[str, list[int]]], work: NDArray[np.float64]) -> list[tuple[str, list[int]]]:
    """Return the groups with the lightest one merged into the nearest other, of its own kind if possible."""
    least = min(groups, key=lambda group: (work[group[1]].sum(), group[1][0]))
    others = [group for group in groups if group is not least]
    alike = [group for group in others if group[0] == least[0]] or others
    centre = float(np.mean(least[1]))
    nearest = min(alike, key=lambda group: (abs(float(np.mean(group[1])) - centre), group[1][0]))
    joined = (nearest[0], sorted(nearest[1] + least[1]))
    return [joined if group is nearest else group for group in others]
