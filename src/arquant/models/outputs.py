"""Find the logits in what a network returns: a tensor, or a tuple, a dict or an object that holds one."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

WRAPPER = (
    "return logits only, for example: class Logits(nn.Module): def __init__(self, net): super().__init__(); self.net = net; "
    "def forward(self, x): return self.net(x)[0]"
)
"""the lines to write where it cannot be told what the logits are"""


def logits_of(output: Any) -> Any:
    """Return the logits in a network's output, or the output itself where it is not plain which part they are.

    They are a tensor itself; what is called `logits`, as an attribute (Hugging Face, torchvision's networks with auxiliary
    heads) or in a dict; the first of a tuple or list if it is a matrix; the only matrix of a dict.
    """
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    if isinstance(output, (tuple, list)) and output and _is_matrix(output[0]):
        return output[0]
    matrices = [value for value in output.values() if _is_matrix(value)] if isinstance(output, Mapping) else []
    return matrices[0] if len(matrices) == 1 else output


def first_of_shape(output: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return the first tensor of this shape in a tuple, a list or a dict; None if there is none."""
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((part for part in parts if isinstance(part, Tensor) and tuple(part.shape) == shape), None)


def _is_matrix(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2
