"""Traces of Hessian blocks: exact where they can be, unbiased against an exact Hessian elsewhere."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from arquant.searching.strategies.hutchinson import trace_draw


def test_one_draw_of_a_diagonal_hessian_is_exact():
    blocks = [torch.ones(2, 3, requires_grad=True), torch.ones(4, requires_grad=True)]
    factors = [torch.arange(6.0).reshape(2, 3), torch.tensor([-1.0, -2.0, 3.0, 0.5])]

    def loss():
        return sum((factor * block**2).sum() / 2 for factor, block in zip(factors, blocks, strict=True))

    assert trace_draw(loss, blocks, torch.Generator().manual_seed(0)).tolist() == [15.0, 0.5]


def test_draws_average_to_the_exact_traces():
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(6, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    start = [torch.randn(5, 4, generator=generator), torch.randn(3, 5, generator=generator)]

    def loss_at(first, second):
        return functional.cross_entropy(torch.tanh(x @ first.T) @ second.T, labels)

    hessian = torch.autograd.functional.hessian(loss_at, tuple(start))
    exact = [float(hessian[i][i].reshape(n, n).trace()) for i, n in enumerate((20, 15))]
    blocks = [each.clone().requires_grad_() for each in start]
    draws = np.stack([trace_draw(lambda: loss_at(*blocks), blocks, generator) for _ in range(600)])
    error = draws.std(axis=0, ddof=1) / len(draws) ** 0.5
    assert (np.abs(draws.mean(axis=0) - exact) < 4 * error).all()
    assert (error < 0.1 * np.abs(exact)).all(), "else the comparison says nothing"


def test_attention_has_a_second_derivative():
    weight = torch.eye(4).requires_grad_()
    x = torch.randn(2, 1, 3, 4, generator=torch.Generator().manual_seed(0))

    def loss():
        q = x @ weight
        return functional.scaled_dot_product_attention(q, q, q).square().sum()

    assert trace_draw(loss, [weight], torch.Generator().manual_seed(0))[0] != 0


def test_a_block_that_is_linear_has_no_curvature():
    pair = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))]
    draw = trace_draw(lambda: pair[0].sum() + pair[1].square().sum(), pair, torch.Generator().manual_seed(0))
    assert draw == pytest.approx([0.0, 6.0])
