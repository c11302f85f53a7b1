"""DoReFa weights of their own size: what they are, their gradient, and that a saved model computes what it did."""

import pytest
import torch

from arquant.quantization.artifact import load_artifact, save_artifact
from arquant.quantization.dorefa import dorefa
from arquant.quantization.quantized import quantize
from arquant.quantization.quantizers import WeightQuantizer
from arquant.training.loop import train
from arquant.training.recipe import Recipe
from tests.support.small_search import SHAPE, SIGMA, image_set, small_classifier, small_layers


def weights(seed=0, scale=1.0):
    return scale * torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(seed))


def quantizer_of(weight, bits, **options):
    quantizer = WeightQuantizer(weight, learn="pact-dorefa", **options)
    quantizer.set_(bits, torch.full_like(quantizer.size, float(weight.abs().max())))
    return quantizer


def test_weights_are_squashed_and_keep_their_size():
    weight = weights()
    found = dorefa(weight)
    largest = weight.abs().max()
    assert torch.allclose(found, largest * torch.tanh(weight) / torch.tanh(largest))
    assert float(found.abs().max()) == pytest.approx(float(largest))
    assert dorefa(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_they_are_rounded_evenly_up_to_the_largest(bits):
    weight = weights()
    integers, step = quantizer_of(weight, bits)(weight)
    high = 2 ** (bits - 1) - 1
    largest = weight.abs().max()
    assert torch.equal(integers, torch.round(high * torch.tanh(weight) / torch.tanh(largest)))
    assert float(step) == pytest.approx(float(largest) / high)


def test_the_gradient_follows_the_squashing():
    weight = torch.tensor([0.2, -0.5, 1.0, -3.0], requires_grad=True)
    upstream = torch.tensor([1.0, 2.0, 4.0, 8.0])
    integers, step = quantizer_of(weight.detach(), 4)(weight)
    (integers * step).backward(upstream)
    bent = torch.tanh(weight.detach())
    slope = 1 - bent**2
    scale = 3.0 / bent.abs().max()
    wanted = scale * slope * upstream
    wanted[3] += scale * slope[3] * (upstream * bent).sum() / bent[3].abs()  # it is the largest: all are divided by it
    assert torch.allclose(weight.grad, wanted, atol=1e-5)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("per_channel", [False, True])
def test_rounded_weights_round_to_themselves(bits, per_channel):
    """Though tanh would move them: a model that is read from a file computes what it did."""
    weight = weights(scale=2.0)
    quantizer = quantizer_of(weight, bits, per_channel=per_channel)
    integers, step = quantizer(weight)
    again, _ = quantizer(integers * step)
    assert torch.equal(integers, again)


def test_a_fine_tuned_model_survives_its_file(tmp_path):
    quantized = quantize(
        small_classifier(), 3, image_set(32, 1), sigma=SIGMA, learn="pact-dorefa", layers=small_layers()
    )
    images = image_set(64, 2)
    recipe = Recipe(sigma=SIGMA, steps=4, batch=32, lr=0.05, augment=False)
    train(quantized, torch.from_numpy(images.images), torch.from_numpy(images.labels), recipe, compiled=False)
    save_artifact(tmp_path / "model.safetensors", quantized, {})
    loaded = load_artifact(tmp_path / "model.safetensors", arch=quantized.arch)
    assert loaded.learn == "pact-dorefa"
    assert loaded.fingerprint() == quantized.fingerprint()
    pixels = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(loaded(pixels), quantized(pixels))


def test_one_graph_serves_training_and_evaluation():
    quantized = quantize(
        small_classifier(), 3, image_set(32, 1), sigma=SIGMA, learn="pact-dorefa", layers=small_layers()
    )
    pixels = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(torch.compile(quantized, backend="eager", fullgraph=True)(pixels), quantized(pixels))


def test_it_answers_otherwise_than_plain_weights():
    models = [
        quantize(small_classifier(), 3, image_set(32, 1), sigma=SIGMA, learn=learn, layers=small_layers())
        for learn in ("pact", "pact-dorefa")
    ]
    assert models[0].fingerprint() != models[1].fingerprint()
