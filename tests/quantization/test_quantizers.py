import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from arquant.base.errors import InputError
from arquant.quantization.quantizers import (
    QUANTIZERS,
    ActivationQuantizer,
    Pact,
    WeightQuantizer,
    activation_levels,
    straight_through,
    weight_levels,
)


def fake(quantizer, x):
    integers, step = quantizer(x)
    return integers * step


def weight_quantizer(weight, bits, clip, **options):
    quantizer = WeightQuantizer(weight, **options)
    quantizer.set_(bits, clip)
    return quantizer


def activation_quantizer(bits, clip, *, signed, **options):
    quantizer = ActivationQuantizer(signed=signed, **options)
    quantizer.set_(bits, clip)
    return quantizer


@pytest.mark.parametrize("bits", range(2, 9))
def test_weights_have_an_odd_number_of_levels(bits):
    weight = torch.linspace(-2, 2, 4001)
    values = fake(weight_quantizer(weight, bits, 1.5), weight)
    assert len(values.unique()) == 2**bits - 1
    assert float(values.max()) == pytest.approx(1.5)
    assert 0.0 in values
    assert torch.equal(values, -values.flip(0))


def test_one_bit_weights_are_signs_times_the_clip():
    weight = torch.tensor([-3.0, -0.01, 0.01, 0.7])
    assert fake(weight_quantizer(weight, 1, 0.25), weight).tolist() == [-0.25, -0.25, 0.25, 0.25]


@pytest.mark.parametrize("bits", range(1, 9))
def test_unsigned_activations_have_all_levels(bits):
    values = fake(activation_quantizer(bits, 3.0, signed=False), torch.linspace(-1, 4, 5001)).detach()
    assert len(values.unique()) == 2**bits
    assert float(values.min()) == 0
    assert float(values.max()) == pytest.approx(3.0)


@pytest.mark.parametrize("bits", range(1, 9))
def test_signed_activations_are_symmetric_except_at_one_bit(bits):
    values = fake(activation_quantizer(bits, 3.0, signed=True), torch.linspace(-4, 4, 8001)).detach()
    assert len(values.unique()) == (2 if bits == 1 else 2**bits - 1)
    assert float(values.min()) == pytest.approx(0.0 if bits == 1 else -3.0)
    assert float(values.max()) == pytest.approx(3.0)


def test_levels_are_those_of_the_contract():
    assert activation_levels(4, signed=False) == (0, 15)
    assert activation_levels(4, signed=True) == (-7, 7)
    assert activation_levels(1, signed=True) == (0, 1)
    assert weight_levels(3) == (3.0, 0.0)


@given(st.integers(2, 8), st.integers(0, 31), st.floats(1e-3, 1e3))
def test_a_skewed_grid_has_its_levels_and_its_width(bits, below, clip):
    below = min(below, 2**bits // 4, 2 ** (bits - 1) - 2)
    quantizer = ActivationQuantizer(signed=True)
    quantizer.set_(bits, clip, -below)
    low, high = activation_levels(bits, signed=True, low=-below)
    assert (quantizer.bits, quantizer.skewed_low) == (bits, -below)
    assert (low, high) == (-below, min(2**bits - 1 - below, 127 if below else 255))
    values = fake(quantizer, torch.linspace(-2 * clip, 2 * clip, 4001)).detach()
    assert float(values.min()) == pytest.approx(-below / high * clip, rel=1e-5)
    assert float(values.max()) == pytest.approx(clip, rel=1e-5)
    quantizer.set_(bits, clip)
    assert quantizer.skewed_low is None


def test_ties_round_to_even():
    integers, step = activation_quantizer(3, 7.0, signed=False)(torch.tensor([0.5, 1.5, 2.5, 3.5]))
    assert float(step) == 1
    assert integers.tolist() == [0, 2, 2, 4]


@given(st.integers(1, 8), st.booleans(), st.floats(1e-3, 1e3))
def test_widths_are_read_back(bits, signed, clip):
    assert activation_quantizer(bits, clip, signed=signed).bits == bits
    assert weight_quantizer(torch.ones(2, 3), bits, clip).bits == bits


@given(st.integers(1, 8), st.floats(1e-4, 1e3), st.integers(0, 2**31), st.booleans())
def test_quantized_weights_quantize_to_themselves(bits, clip, seed, per_channel):
    weight = clip * torch.randn(4, 50, generator=torch.Generator().manual_seed(seed))
    clips = clip * torch.tensor([[1.0], [0.3], [2.0], [0.7]]) if per_channel else clip
    quantizer = weight_quantizer(weight, bits, clips, per_channel=per_channel)
    integers, step = quantizer(weight)
    again, _ = quantizer(integers * step)
    assert torch.equal(integers, again)


def test_channels_have_their_own_clip():
    weight = torch.tensor([[1.0, 0.4], [10.0, 4.0]])
    quantizer = weight_quantizer(weight, 3, torch.tensor([1.0, 10.0]), per_channel=True)
    integers, step = quantizer(weight)
    assert integers.tolist() == [[3, 1], [3, 1]]
    assert torch.allclose(step, torch.tensor([[1 / 3], [10 / 3]]))


def test_weight_gradient_is_the_identity_even_where_clipped():
    weight = torch.tensor([-5.0, -0.3, 0.0, 0.2, 5.0], requires_grad=True)
    for bits in (1, 2, 4):
        weight.grad = None
        fake(weight_quantizer(weight, bits, 1.0), weight).backward(torch.arange(5.0))
        assert torch.allclose(weight.grad, torch.arange(5.0))


def test_the_clip_of_weights_is_no_parameter_under_pact():
    assert not list(WeightQuantizer(torch.ones(3)).parameters())


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_pact_gradients_of_unsigned_activations(bits):
    x = torch.tensor([0.0, 0.1, 0.9, 1.9, 2.1, 7.0], requires_grad=True)
    quantizer = activation_quantizer(bits, 2.0, signed=False)
    upstream = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    fake(quantizer, x).backward(upstream)
    assert torch.allclose(x.grad, upstream * torch.tensor([1.0, 1, 1, 1, 0, 0]))
    assert float(quantizer.size.grad) == pytest.approx(48.0)


def test_images_give_the_same_gradient_to_the_clip():
    """Four-dimensional inputs are summed channel by channel."""
    x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    for signed in (False, True):
        pair = [activation_quantizer(3, 0.6, signed=signed) for _ in range(2)]
        fake(pair[0], x).square().sum().backward()
        fake(pair[1], x.reshape(2, -1)).square().sum().backward()
        assert float(pair[0].size.grad) == pytest.approx(float(pair[1].size.grad), rel=1e-5)


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_pact_gradients_of_signed_activations(bits):
    x = torch.tensor([-9.0, -1.9, 0.1, 1.9, 2.1], requires_grad=True)
    quantizer = activation_quantizer(bits, 2.0, signed=True)
    upstream = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    fake(quantizer, x).backward(upstream)
    assert torch.allclose(x.grad, upstream * torch.tensor([0.0, 1, 1, 1, 0]))
    assert float(quantizer.size.grad) == pytest.approx(16.0 - 1.0)


@pytest.mark.parametrize(("bits", "signed"), [(3, False), (3, True), (1, False), (8, True)])
def test_lsq_gradients(bits, signed):
    quantizer = activation_quantizer(bits, 2.0, signed=signed, learn="lsq")
    low, high = activation_levels(bits, signed=signed)
    step = 2.0 / high
    x = torch.tensor([-9.0, -0.33, 0.1, 1.37, 2.5], requires_grad=True)
    upstream = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    fake(quantizer, x).backward(upstream)
    ratio = x.detach() / step
    inside = (ratio > low) & (ratio < high)
    slope = torch.where(inside, ratio.round() - ratio, ratio.clamp(low, high))
    assert torch.allclose(x.grad, upstream * inside)
    expected = float((upstream * slope).sum()) / np.sqrt(5 * high)
    assert float(quantizer.size.grad) == pytest.approx(expected, rel=1e-4)


def test_lsq_learns_the_steps_of_weights():
    weight = torch.tensor([[-5.0, -0.3], [0.2, 5.0]], requires_grad=True)
    quantizer = weight_quantizer(weight, 3, torch.tensor([1.5, 3.0]), per_channel=True, learn="lsq")
    fake(quantizer, weight).sum().backward()
    assert weight.grad.tolist() == [[0, 1], [1, 0]]
    expected = torch.tensor([[-3 + (-1 + 0.6)], [3 + (0 - 0.2)]]) / np.sqrt(2 * 3)
    assert torch.allclose(quantizer.size.grad, expected)


def test_straight_through_is_exact_where_a_plain_sum_is_not():
    source = torch.randn(10_000, generator=torch.Generator().manual_seed(0), requires_grad=True) * 1e5
    value = source.detach().clamp(-1, 1) / 3
    assert not torch.equal(source.detach() + (value - source.detach()), value)
    assert torch.equal(straight_through(value, source), value)


@pytest.mark.parametrize("learn", ["pact", "lsq"])
def test_half_precision_inputs_are_quantized_in_single_precision(learn):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    quantizer = activation_quantizer(8, 3.0, signed=True, learn=learn)
    integers, step = quantizer(x)
    assert integers.dtype == torch.float32
    assert torch.equal(integers, torch.round(x.float().clamp(-3, 3) / (3 / 127)))
    assert integers.abs().max() <= 127
    assert float(step.detach()) == pytest.approx(3 / 127)


def test_a_size_that_crossed_zero_still_works():
    quantizer = activation_quantizer(4, 2.0, signed=False)
    before = fake(quantizer, torch.linspace(0, 3, 7))
    with torch.no_grad():
        quantizer.size.neg_()
    assert torch.equal(fake(quantizer, torch.linspace(0, 3, 7)), before)
    with torch.no_grad():
        quantizer.size.zero_()
    assert bool(torch.isfinite(fake(quantizer, torch.linspace(0, 3, 7))).all())


def test_nan_is_not_hidden():
    for signed in (False, True):
        assert bool(fake(activation_quantizer(3, 1.0, signed=signed), torch.tensor([float("nan")])).isnan().all())


def test_bad_clips_are_refused():
    for clip in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="positive"):
            activation_quantizer(4, clip, signed=False)


def test_rounding_agrees_with_torch_fake_quantize():
    """The same decisions as the 8-bit operator that integer engines are given."""
    x = 3 * torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    for bits in range(2, 9):
        quantizer = activation_quantizer(bits, 2.3, signed=True)
        step = float(quantizer.step.detach())
        high = 2 ** (bits - 1) - 1
        lowered = torch.fake_quantize_per_tensor_affine(torch.clamp(x, -high * step, high * step), step, 0, -128, 127)
        assert torch.equal(fake(quantizer, x).detach(), lowered)


def test_a_quantizer_of_ones_own_is_one_registered_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(Pact):
        """Trains as pact does, but no gradient reaches a weight."""

        @staticmethod
        def weight(quantizer: WeightQuantizer, weight: Tensor) -> tuple[Tensor, Tensor]:
            return Pact.weight(quantizer, weight.detach())

    monkeypatch.setitem(QUANTIZERS, "frozen", Frozen)
    weight = torch.linspace(-2, 2, 8, requires_grad=True)
    results = {}
    for learn in ("pact", "frozen"):
        quantizer = WeightQuantizer(weight, learn=learn)
        quantizer.set_(3, 1.5)
        results[learn], step = quantizer(weight)
        assert results[learn].requires_grad == (learn == "pact")
        assert float(step) == pytest.approx(0.5)
    assert torch.equal(results["frozen"], results["pact"])


def test_an_unknown_quantizer_is_refused() -> None:
    with pytest.raises(InputError, match="unknown quantizer 'none'"):
        ActivationQuantizer(signed=True, learn="none")
