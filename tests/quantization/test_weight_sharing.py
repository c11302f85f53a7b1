"""Shared weights: the centroids of k-means, how fine-tuning moves them, and the file that they make smaller."""

from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch

from arquant.base.errors import InputError
from arquant.quantization.artifact import load_artifact, save_artifact
from arquant.quantization.budget import Budget
from arquant.quantization.costs import FileBytes
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import quantize
from arquant.quantization.quantizers import WeightQuantizer
from arquant.quantization.weight_sharing import kmeans, shared
from arquant.training.loop import train
from arquant.training.recipe import Recipe
from tests.support.small_search import SIGMA, image_set, small_classifier, small_layers


def test_centroids_of_separate_groups_are_their_means() -> None:
    values = np.array([9.0, -5.0, 0.1, -0.1, 11.0, -7.0, 0.3])
    centroids, codes = kmeans(values, 3)
    np.testing.assert_allclose(centroids, [-6.0, 0.1, 10.0])
    assert codes.tolist() == [2, 0, 1, 1, 2, 0, 1]


def test_two_centroids_of_a_normal_sample_are_where_the_textbook_has_them() -> None:
    """Lloyd and Max: the best two values of a standard normal variable are +-sqrt(2 / pi)."""
    values = np.random.default_rng(0).standard_normal(200_000)
    centroids, _ = kmeans(values, 2)
    np.testing.assert_allclose(centroids, [-np.sqrt(2 / np.pi), np.sqrt(2 / np.pi)], atol=0.01)


def test_no_number_is_nearer_to_another_centroid_and_every_centroid_is_a_mean() -> None:
    values = np.random.default_rng(1).laplace(size=2000)
    centroids, codes = kmeans(values, 16, rounds=1000)
    np.testing.assert_array_equal(codes, np.abs(values[:, None] - centroids).argmin(1))
    for code in np.unique(codes):
        assert centroids[code] == pytest.approx(values[codes == code].mean())


def test_a_weight_of_equal_numbers_is_shared_too() -> None:
    largest, codes = shared(torch.full((2, 3), 0.25), 2)
    assert largest == pytest.approx(0.25)
    assert len(codes.unique()) == 1


def quantizer_of(weight: torch.Tensor, bits: int) -> WeightQuantizer:
    quantizer = WeightQuantizer(weight, learn="kmeans")
    largest, codes = shared(weight, bits)
    quantizer.set_(bits, largest)
    quantizer.share_(codes)
    return quantizer


def test_a_step_moves_a_shared_value_by_the_mean_gradient() -> None:
    weight = torch.tensor([-1.0, -0.9, 0.5, 0.7], requires_grad=True)
    quantizer = quantizer_of(weight.detach(), 1)
    assert quantizer.bits == 1
    integers, step = quantizer(weight)
    np.testing.assert_allclose((integers * step).detach(), [-0.95, -0.95, 0.6, 0.6], atol=float(step) / 2)
    gradient = torch.tensor([1.0, 3.0, -2.0, 6.0])
    ((integers * step) * gradient).sum().backward()
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad, [2.0, 2.0, 2.0, 2.0], rtol=1e-6)


def test_values_are_at_most_two_to_the_bits_on_the_grid_of_eight() -> None:
    weight = torch.from_numpy(np.random.default_rng(2).standard_normal((8, 4, 3, 3))).float()
    for bits in (1, 3, 8):
        integers, _ = quantizer_of(weight, bits)(weight)
        assert len(integers.unique()) <= 2**bits
        assert int(integers.abs().max()) == 127
        assert torch.equal(integers, integers.round())


def small_model(bits: str = "w3a8", learn: str = "kmeans"):
    images = image_set(16, 5).images
    return quantize(small_classifier(), bits, images, sigma=SIGMA, learn=learn)


def test_the_file_has_codes_and_values_and_gives_the_same_answers(tmp_path: Path) -> None:
    model = small_model()
    assert str(next(iter(list(model.policy.values())[1:2]))) == "w3a8"
    arch = "tests.support.small_search:factory"
    size = save_artifact(tmp_path / "model.safetensors", model, {}, arch=arch)
    back = load_artifact(tmp_path / "model.safetensors", arch=arch)
    images = torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(model(images), back(images))
    assert back.fingerprint() == model.fingerprint()
    assert back.policy == model.policy
    assert size.counted <= ceil(FileBytes(books=True).cost(model.policy, small_layers()))
    for layer in back.integer_state().values():
        assert layer.weight is not None
        assert layer.bits.w == 8, "engines run integers of 8 bits"


def test_the_float_weights_come_back_where_they_round_to_the_shared_values() -> None:
    model = small_model()
    before = model.fingerprint()
    assert model.unround_(small_classifier())
    assert model.fingerprint() == before


def test_a_budget_of_shared_weights_counts_their_values_and_nothing_but_bytes() -> None:
    layers = small_layers()
    policy = Policy.uniform(layers, "w3a8")
    plain, books = FileBytes().cost(policy, layers), FileBytes(books=True).cost(policy, layers)
    assert books - plain == sum(2 ** policy[layer.name].w for layer in layers)
    with pytest.raises(InputError, match="shared weights make the file smaller, and nothing else"):
        Budget.parse("bops<=3bit", layers, books=True)
    assert Budget.parse("bytes<=20k", layers, books=True).text == "bytes<=20k"


def test_values_per_channel_are_refused() -> None:
    with pytest.raises(InputError, match="leave --per-channel out"):
        WeightQuantizer(torch.ones(2, 2), per_channel=True, learn="kmeans")


def test_a_fine_tuned_model_survives_its_file(tmp_path: Path) -> None:
    model, images = small_model("w2a8"), image_set(64, 2)
    before = model.fingerprint()
    recipe = Recipe(sigma=SIGMA, steps=4, batch=32, lr=0.05, augment=False)
    train(model, torch.from_numpy(images.images), torch.from_numpy(images.labels), recipe, compiled=False)
    assert model.fingerprint() != before
    for name, layer in model.integer_state().items():
        assert layer.weight is not None
        assert len(np.unique(layer.weight)) <= 2 ** model.policy[name].w, "training moves values, it makes no new ones"
    save_artifact(tmp_path / "model.safetensors", model, {})
    assert load_artifact(tmp_path / "model.safetensors", arch=model.arch).fingerprint() == model.fingerprint()


def test_one_graph_serves_every_width() -> None:
    model, images = small_model(), torch.rand(4, 3, 8, 8)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for bits in ("w3a8", "w2a8"):
        model.set_policy_(Policy.uniform(small_layers(), bits))
        with torch.no_grad():
            assert torch.equal(compiled(images), model(images))
