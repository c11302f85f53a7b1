"""The noise proxy: noise with the moments of rounding, and gradients of width and clip that are those of the formulas."""

import pytest
import torch

from arquant.quantization import noise_proxy
from arquant.quantization.noise_proxy import NoiseProxy, rounding_noise


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def at(bits, *, clip=2.0, signed=True):
    """Return a proxy whose width is a whole number, so that none is drawn."""
    proxy = NoiseProxy(clip, signed=signed, low=bits, high=bits)
    assert float(proxy.clip.detach()) == pytest.approx(clip, rel=1e-5)
    return proxy


@pytest.mark.parametrize("bits", [2, 3, 6])
@pytest.mark.parametrize("signed", [True, False])
def test_noise_has_the_moments_of_rounding(bits, signed):
    """Of a law for which errors are neither uniform nor, at few bits, of mean zero."""
    proxy = at(bits, signed=signed)
    x = torch.empty(200_000).exponential_(1.0) - (0.3 if signed else 0.0)
    inside = (x > (-2.0 if signed else 0.0)) & (x < 2.0)
    step = 2.0 / float(proxy.levels(torch.tensor(float(bits))))
    errors = ((x / step).round() * step - x)[inside]
    with torch.no_grad():
        noise = (proxy(x)[0] - x)[inside]
    spread = float(errors.std())
    assert float(noise.mean()) == pytest.approx(float(errors.mean()), abs=0.02 * spread)
    assert float(noise.std()) == pytest.approx(spread, rel=0.02)
    assert abs(float(torch.corrcoef(torch.stack([noise, errors]))[0, 1])) < 0.02, "drawn anew, not its own error"
    if bits == 6:
        assert float(noise.var()) == pytest.approx(step**2 / 12, rel=0.03)


def test_draws_follow_the_histogram():
    x = torch.tensor([0.1, 0.1, 0.1, 0.4]).repeat(5000)  # errors of -0.1 and -0.4 of a step of 1
    noise = rounding_noise(x, torch.ones_like(x, dtype=torch.bool), torch.tensor(1.0))
    near = (noise + 0.1).abs() < 1 / 128
    assert float(near.float().mean()) == pytest.approx(0.75, abs=0.02)
    assert bool(((noise + 0.4).abs() < 1 / 128)[~near].all())


def test_clipped_values_are_the_clip():
    x = torch.tensor([-9.0, -2.0, 2.0, 9.0])
    assert at(4)(x)[0].tolist() == pytest.approx([-2.0, -2.0, 2.0, 2.0])
    assert at(4, signed=False)(x)[0].tolist() == pytest.approx([0.0, 0.0, 2.0, 2.0])
    assert at(3)(torch.full((3,), 9.0))[0].tolist() == pytest.approx([2.0] * 3), "none inside"


@pytest.mark.parametrize("signed", [True, False])
def test_gradients(signed, monkeypatch):
    """x: 1 inside; clip: z / levels inside, +-1 (or 0) where clipped; width: z times the derivative of the step."""
    z = torch.tensor([0.0, 0.25, -0.5, 0.125, 0.0])
    monkeypatch.setattr(noise_proxy, "rounding_noise", lambda x, inside, step: z)
    x = torch.tensor([-7.0, 0.3, 0.9, 1.4, 5.0], requires_grad=True)
    proxy = NoiseProxy(2.0, signed=signed, low=2, high=6)
    upstream = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    monkeypatch.setattr(torch, "rand_like", lambda each: torch.full_like(each, 0.5))  # 4 bits, drawn as they are
    proxy(x)[0].backward(upstream)
    assert x.grad.tolist() == [0.0, 2.0, 4.0, 8.0, 0.0]
    levels = 2.0**3 - 1 if signed else 2.0**4 - 1
    noise = float((upstream * z)[1:4].sum())
    by_clip = noise / levels + 16.0 - (1.0 if signed else 0.0)
    slope = float(torch.sigmoid(proxy.reach.detach()))
    assert float(proxy.reach.grad) == pytest.approx(by_clip * slope, rel=1e-5)
    by_bits = -noise * 2.0 / levels**2 * (levels + 1) * torch.tensor(2.0).log()
    assert float(proxy.width.grad) == pytest.approx(float(by_bits) * 4 * 0.25, rel=1e-5)


def test_widths_are_whole_and_right_on_average():
    proxy = NoiseProxy(1.0, signed=True, low=2, high=8)
    with torch.no_grad():
        proxy.width.fill_(-1.0)
        drawn = torch.stack([proxy.drawn_bits() for _ in range(2000)])
    wanted = float(proxy.bits.detach())
    assert set(drawn.tolist()) == {3.0, 4.0}
    assert float(drawn.mean()) == pytest.approx(wanted, abs=0.05)


@pytest.mark.parametrize("clip", [1e-6, 0.01, 1.0, 100.0])
def test_the_clip_begins_as_stated(clip):
    assert float(NoiseProxy(clip, signed=True, low=2, high=8).clip.detach()) == pytest.approx(clip, rel=0.02)
