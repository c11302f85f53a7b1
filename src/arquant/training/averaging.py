"""An exponential moving average of a network's weights, and of its BatchNorm statistics, which belong to them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Average:
    """The average of everything in a network's state that is a floating-point number.

    Over the first steps the decay is lower, (1 + step) / (10 + step), so that the random beginning is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._present = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        self.tensors = {name: value.clone() for name, value in self._present.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after optimizer step `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(self._present.values()), 1 - decay)

    @torch.no_grad()
    def exchange_(self) -> None:
        """Put the average into the network, and the network's weights here; a second call undoes it."""
        for name, present in self._present.items():
            kept = present.clone()
            present.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)

    def restore_(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up an average that was saved."""
        for name, value in tensors.items():
            self.tensors[name].copy_(value)
