import numpy as np
import pytest
import torch
from torch.nn import functional

from arquant.models.tracing.signs import nonnegative, operation

POSITIVE = torch.rand(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
SIGNED = POSITIVE - 0.5


def sure(func, *args, **kwargs) -> bool:
    """What the rules say, with the result checked when they say yes."""
    claimed = nonnegative(operation(func), args, kwargs, lambda tensor: bool((tensor >= 0).all()))
    if claimed:
        result = func(*args, **kwargs)
        first = result if isinstance(result, torch.Tensor) else result[0]
        assert (first >= 0).all()
    return claimed


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (functional.relu, (SIGNED,), {}),
        (functional.relu6, (SIGNED,), {}),
        (functional.hardtanh, (SIGNED, 0.0, 6.0), {}),
        (functional.hardtanh, (SIGNED,), {"min_val": 0.0, "max_val": 6.0}),
        (torch.clamp, (SIGNED,), {"min": 0.0}),
        (torch.Tensor.clamp, (SIGNED, 0), {}),
        (torch.clamp, (POSITIVE,), {"max": 0.5}),
        (torch.sigmoid, (SIGNED,), {}),
        (functional.softmax, (SIGNED, -1), {}),
        (torch.abs, (SIGNED,), {}),
        (torch.pow, (SIGNED, 2), {}),
        (torch.pow, (POSITIVE, 0.5), {}),
        (functional.max_pool2d, (POSITIVE, 2), {}),
        (functional.adaptive_avg_pool2d, (POSITIVE, 1), {}),
        (torch.flatten, (POSITIVE, 1), {}),
        (torch.Tensor.permute, (POSITIVE, 0, 2, 3, 1), {}),
        (torch.Tensor.transpose, (POSITIVE, -1, -2), {}),
        (torch.Tensor.add, (POSITIVE, POSITIVE), {}),
        (torch.add, (POSITIVE, 1.0), {}),
        (torch.mul, (POSITIVE, POSITIVE), {}),
        (torch.cat, ([POSITIVE, POSITIVE], 1), {}),
        (torch.Tensor.chunk, (POSITIVE, 2, 1), {}),
        (torch.Tensor.mean, (POSITIVE, (-1, -2)), {}),
        (torch.maximum, (SIGNED, POSITIVE), {}),
        (torch.minimum, (POSITIVE, POSITIVE), {}),
        (torch.min, (POSITIVE,), {}),
        (torch.min, (POSITIVE, 1), {}),
        (functional.pad, (POSITIVE, (1, 1)), {}),
        (functional.interpolate, (POSITIVE,), {"scale_factor": 2, "mode": "bilinear"}),
        (functional.dropout, (POSITIVE,), {"training": False}),
        (torch.Tensor.__getitem__, (POSITIVE, -1), {}),
        (torch.Tensor.matmul, (POSITIVE, POSITIVE), {}),
        (torch.where, (SIGNED > 0, POSITIVE, POSITIVE), {}),
        (torch.add, (POSITIVE, np.float32(0.5)), {}),
        (torch.cat, (), {"dim": 1, "tensors": [POSITIVE, POSITIVE]}),
        (torch.flatten, (), {"start_dim": 1, "input": POSITIVE}),
    ],
)
def test_sure(func, args, kwargs):
    assert sure(func, *args, **kwargs)


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (functional.gelu, (POSITIVE,), {}),
        (functional.hardtanh, (SIGNED,), {}),
        (functional.hardtanh, (POSITIVE, -2.0, -1.0), {}),
        (torch.clamp, (SIGNED,), {"min": -1.0}),
        (torch.clamp, (POSITIVE,), {"max": -1.0}),
        (torch.clamp, (POSITIVE, 0.0, -1.0), {}),
        (functional.hardtanh, (POSITIVE,), {"min_val": -2.0, "max_val": -1.0}),
        (torch.pow, (SIGNED, 3), {}),
        (torch.pow, (SIGNED, 2.5), {}),
        (torch.sub, (POSITIVE, POSITIVE), {}),
        (torch.add, (POSITIVE, -1.0), {}),
        (torch.add, (POSITIVE, POSITIVE), {"alpha": -2}),
        (torch.add, (POSITIVE, SIGNED), {}),
        (torch.mul, (POSITIVE, SIGNED), {}),
        (torch.cat, ([POSITIVE, SIGNED], 1), {}),
        (torch.minimum, (POSITIVE, SIGNED), {}),
        (torch.min, (POSITIVE, SIGNED), {}),
        (torch.min, (POSITIVE,), {"other": SIGNED}),
        (torch.maximum, (SIGNED, SIGNED), {}),
        (functional.pad, (POSITIVE, (1, 1), "constant", -1.0), {}),
        (functional.pad, (POSITIVE, (1, 1)), {"value": -1.0}),
        (functional.interpolate, (POSITIVE,), {"scale_factor": 2, "mode": "bicubic"}),
        (functional.interpolate, (POSITIVE, None, 2, "bicubic"), {}),
        (functional.max_pool2d, (SIGNED, 2), {}),
        (torch.flatten, (SIGNED, 1), {}),
        (functional.layer_norm, (POSITIVE, (8,)), {}),
        (torch.neg, (POSITIVE,), {}),
        (torch.rsub, (POSITIVE, 0.1), {}),
        (torch.Tensor.sub_, (POSITIVE.clone(), POSITIVE), {}),
        (torch.diff, (POSITIVE,), {}),
        (torch.log, (POSITIVE,), {}),
        (torch.tanh, (SIGNED,), {}),
        (functional.leaky_relu, (SIGNED,), {}),
        (functional.elu, (SIGNED,), {}),
        (functional.silu, (POSITIVE,), {}),
        (functional.hardswish, (POSITIVE,), {}),
        (functional.log_softmax, (SIGNED, -1), {}),
        (torch.clone, ((10 * SIGNED).to(torch.int64),), {}),
        (torch.Tensor.masked_fill, (POSITIVE, SIGNED > 0, float("-inf")), {}),
    ],
)
def test_not_sure(func, args, kwargs):
    assert not sure(func, *args, **kwargs)


@pytest.mark.parametrize("number", [-0.5, np.float32(-0.5), np.float64(-0.5), np.int64(-1)])
def test_a_negative_number_counts_whatever_its_type(number):
    assert not sure(torch.add, POSITIVE, number)
    assert not sure(torch.Tensor.mul, POSITIVE, number)
    assert not sure(torch.where, SIGNED > 0, POSITIVE, number)


def test_the_input_is_known_by_its_name_in_whatever_order_arguments_are_given():
    assert not sure(torch.cat, dim=1, tensors=[POSITIVE, SIGNED])
    assert not sure(torch.flatten, start_dim=1, input=SIGNED)
    assert not sure(functional.pad, pad=(1, 1), input=SIGNED)
    assert not sure(torch.clamp, max=0.5, input=SIGNED)


def test_names():
    assert operation(torch.Tensor.__iadd__) == "iadd"
    assert operation(torch.relu_) == "relu"
    assert operation(torch.Tensor.T.__get__) == "get"
    assert operation(object()) == ""
