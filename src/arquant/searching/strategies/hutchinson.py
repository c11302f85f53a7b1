"""Estimate the trace of each block of a Hessian from products with random signs."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def trace_draw(loss: Callable[[], Tensor], blocks: Sequence[Tensor], generator: torch.Generator) -> NDArray[np.float64]:
    """Return one unbiased draw of the trace of each diagonal block of the loss's Hessian.

    One vector v of signs serves all blocks: v_i (Hv)_i has the block's trace for its mean, since the other blocks' parts
    cancel on average.

    Args:
        loss: computes it from the blocks, by operations that can be differentiated twice.
        blocks: leaf tensors that require a gradient.
    """
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        gradients = torch.autograd.grad(loss(), blocks, create_graph=True)
    signs = [_signs(block, generator) for block in blocks]
    curved = [i for i, gradient in enumerate(gradients) if gradient.requires_grad]
    outputs, vectors = [gradients[i] for i in curved], [signs[i] for i in curved]
    products = torch.autograd.grad(outputs, blocks, vectors, allow_unused=True)
    pairs = zip(signs, products, strict=True)
    return np.array([0.0 if product is None else float((v * product).double().sum()) for v, product in pairs])


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return (2 * torch.randint(0, 2, like.shape, generator=generator) - 1).to(like)
