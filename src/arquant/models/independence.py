"""Does a network answer for each image on its own? Votes count as independent draws, which they are not otherwise."""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_TOLERANCE = 0.05
"""share of the logits' range; where a second call gives other digits, kernels round as they like"""
_CALLS = 8


def depends_on_batch(network: Callable[[Tensor], Tensor], images: Tensor) -> bool:
    """Tell whether an answer depends on the images beside it, or on random numbers that a batch shares.

    A network may draw at random for each image by itself: its votes stay independent. One draw for a whole batch makes
    them agree with each other. Where a network does both, only the former is seen.

    Args:
        network: from images to logits, in eval mode; it is called without gradients.
        images: two that are different.
    """
    with torch.no_grad():
        state = _random_state(images.device)
        logits, again = network(images), network(images)
        near = _TOLERANCE * float(logits.max() - logits.min())
        draws = state != _random_state(images.device) or _apart(logits, again) > near
        beside_itself = [network(images[[row, row]]) for row in (0, 1)]
        if draws:
            pairs = [beside_itself[1], *(network(images[[1, 1]]) for _ in range(_CALLS - 1))]
            if max(_apart(pair, pairs[0]) for pair in pairs) > near:
                return all(_apart(pair[0], pair[1]) <= near for pair in pairs)
    allowed = 0.0 if torch.equal(logits, again) else near
    return any(_apart(pair[row], logits[row]) > allowed for row, pair in enumerate(beside_itself))


def _apart(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


def _random_state(device: torch.device) -> tuple[object, ...]:
    """Return the states of the generators that a network may draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    of_numpy = np.random.get_state(legacy=True)  # noqa: NPY002 - a user's network may draw from it
    return random.getstate(), str(of_numpy), *(state.numpy().tobytes() for state in states)
