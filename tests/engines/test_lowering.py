"""The lowered graph computes what the quantized PyTorch model computes, and its products run on integer kernels."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from arquant.engines.lowering import Template, _on_grid, fits, lower, trace
from arquant.engines.onnx_model import onnx_model
from arquant.engines.openvino import OpenVinoEngine, product_precisions
from arquant.engines.openvino_api import ov
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.quantization.policy import Bits, Policy, left_in_float
from arquant.quantization.quantized import Grid, QuantizedClassifier, quantize
from arquant.quantization.quantizers import activation_levels
from tests.support.networks_to_lower import BATCH, SIDE, float_classifier, noisy, quantized, reference


def check_parity(classifier: QuantizedClassifier, engine: OpenVinoEngine) -> None:
    """Logits agree for nearly all images; where a rounding tie fell otherwise, they are still near."""
    batch = noisy()
    expected, got = reference(classifier, batch), engine.logits_of(batch)
    spread = expected.std()
    error = np.abs(got - expected).max(1) / spread
    assert spread > 1e-3
    assert np.mean(error > 1e-4) <= 0.25
    assert error.max() < 0.5
    margin = -np.diff(np.sort(expected, 1)[:, -2:], axis=1)[:, 0]
    clear = -margin / spread > error.max() * 2
    np.testing.assert_array_equal(engine.labels_of(batch)[clear], expected.argmax(1)[clear])


@pytest.mark.parametrize(
    ("name", "per_channel"), [("resnet", False), ("vit", True), ("mobile", False), ("mobile", True), ("encoder", False)]
)
def test_all_products_run_on_integers_and_agree_with_torch(name: str, per_channel: bool) -> None:
    classifier = quantized(name, per_channel)
    engine = OpenVinoEngine(classifier, batch=BATCH, input_kind="levels", threads=1)
    precisions = product_precisions(engine.compiled)
    assert set(precisions) <= {"u8", "i8"}
    assert len(precisions) == sum(layer.uses for layer in classifier.layers)
    assert engine.describe()["precision"] == "int8"
    check_parity(classifier, engine)
    engine.close()


@pytest.mark.parametrize(
    ("name", "pattern", "count"), [("vit", "*#*", 2), ("encoder", "*#*", 2), ("resnet", "conv1", 1)]
)
def test_layers_left_in_float_run_there_and_all_others_on_integers(name: str, pattern: str, count: int) -> None:
    classifier = float_classifier(name)
    found = find_layers(classifier)
    layers = found.leaving(left_in_float(found, [f"{pattern}=float"]))
    assert len(layers.left) == count
    images = np.random.default_rng(0).integers(0, 256, (32, *classifier.input_shape)).astype(np.uint8)
    left = quantize(classifier, Policy.uniform(layers, 4), images, sigma=0.5, layers=layers)
    engine = OpenVinoEngine(left, batch=BATCH, input_kind="levels", threads=1)
    precisions = product_precisions(engine.compiled)
    assert sum(kind in ("u8", "i8") for kind in precisions) == sum(layer.uses for layer in layers)
    check_parity(left, engine)
    engine.close()


def test_the_precision_test_sees_a_float_fallback() -> None:
    classifier = quantized("resnet", False)
    model = lower(classifier, batch=2)
    quantizers = [node for node in model.get_ordered_ops() if node.get_type_name() == "FakeQuantize"]
    for target in list(quantizers[3].output(0).get_target_inputs()):
        target.replace_source_output(quantizers[3].input_value(0))
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert "f32" in product_precisions(compiled)


def test_every_width_is_exact_on_eight_bit_levels() -> None:
    """The grid of each width, against integers computed directly; the values lie off the rounding ties."""
    generator = np.random.default_rng(0)
    for bits in range(1, 9):
        for signed, skewed in ((False, None), (True, None), (True, 0), (True, -1), (True, -min(20, 2**bits // 4))):
            low, high = activation_levels(bits, signed=signed, low=skewed)
            grid = Grid(0.125, low, high, signed)
            wanted = generator.integers(-300, 300, 1000)
            values = ((wanted + generator.uniform(-0.49, 0.49, 1000)) * grid.scale).astype(np.float32)
            parameter = ov.opset15.parameter([1000], ov.Type.f32)
            compiled = ov.Core().compile_model(ov.Model([_on_grid(parameter.output(0), grid)], [parameter]), "CPU")
            np.testing.assert_array_equal(compiled(values)[0] / grid.scale, np.clip(wanted, low, high))


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 8])
def test_widths_agree_with_torch(bits: int) -> None:
    classifier = quantized("mobile", False)
    classifier.set_policy_(Policy.uniform(classifier.layers, bits))
    engine = OpenVinoEngine(classifier, batch=BATCH, input_kind="levels", threads=1)
    assert set(product_precisions(engine.compiled)) <= {"u8", "i8"}
    check_parity(classifier, engine)
    engine.close()


def test_a_new_policy_or_new_weights_only_fill_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = quantized("resnet", False)
    before = lower(classifier, batch=BATCH)
    monkeypatch.setattr(Template, "__init__", lambda *_, **__: pytest.fail("traced again"))
    names = list(classifier.policy)
    classifier.set_policy_(Policy({name: Bits(2 + i % 7, 8 - i % 7) for i, name in enumerate(names)}))
    with torch.no_grad():
        classifier.module.bn1.running_mean += 0.1
    engine = OpenVinoEngine(classifier, batch=BATCH, input_kind="levels", threads=1)
    check_parity(classifier, engine)
    assert before.get_parameters()[0].get_partial_shape() == ov.PartialShape([BATCH, 3, SIDE, SIDE])
    engine.close()


def test_tied_weights_are_filled_in_everywhere() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Linear(3, 10)
            self.second.weight = self.first.weight
            self.norm, self.again = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
            self.again.bias = self.norm.bias

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.again(self.second(self.norm(self.first(x)))).mean((2, 3)))

    torch.manual_seed(0)
    classifier = Classifier(Tied(), num_classes=10, input_shape=(3, SIDE, SIDE)).eval()
    tied = quantize(classifier, 8, np.zeros((2, 3, SIDE, SIDE), np.uint8), sigma=0.5)
    with torch.no_grad():
        lower(tied, batch=BATCH)
        tied.module.norm.bias += 0.5
    engine = OpenVinoEngine(tied, batch=BATCH, input_kind="levels", threads=1)
    check_parity(tied, engine)
    engine.close()


def test_the_memory_layout_of_the_weights_does_not_matter() -> None:
    classifier = copy.deepcopy(quantized("resnet", False))
    expected, stored = lower(classifier, batch=2), onnx_model(classifier).SerializeToString()
    classifier.to(memory_format=torch.channels_last)
    got = lower(classifier, batch=2)
    pixels = noisy(2).astype(np.float32) / 255
    results = [ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}) for model in (expected, got)]
    np.testing.assert_array_equal(*(compiled(pixels)[0] for compiled in results))
    assert onnx_model(classifier).SerializeToString() == stored


def test_a_batch_size_that_was_traced_as_a_constant_is_noticed() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3)).reshape(len(x), 3)

    classifier = Classifier(Fixed(), num_classes=3, input_shape=(3, SIDE, SIDE))
    engine = OpenVinoEngine(classifier, batch=5, input_kind="levels", threads=1)
    np.testing.assert_allclose(engine.logits_of(noisy(5)), reference(classifier, noisy(5)), atol=1e-5)
    engine.close()
    assert not fits(trace(Fixed(), (torch.zeros(2, 3, SIDE, SIDE),), "fixed"), classifier, 5)


def test_the_number_of_images_may_stay_open() -> None:
    classifier = quantized("vit", True)
    compiled = ov.Core().compile_model(lower(classifier, batch=-1), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for count in (1, 3):
        pixels = noisy(count).astype(np.float32) / 255
        assert compiled(pixels)[0].shape == (count, 10)
