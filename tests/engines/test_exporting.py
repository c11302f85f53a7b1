"""Exported files compute what the classifier computes, and come back as classifiers."""

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from arquant.base.errors import FileFormatError, InputError
from arquant.engines.choice import make_engine
from arquant.engines.exporting import export_model
from arquant.engines.files import FileClassifier, load_file_classifier
from arquant.engines.onnx_model import QONNX_DOMAIN, onnx_model
from arquant.engines.onnxruntime import OnnxRuntimeEngine
from arquant.engines.openvino import OpenVinoEngine
from arquant.loading.models import load_model
from arquant.models.classifier import Classifier
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import QuantizedClassifier, quantize
from tests.support.networks_to_lower import SHAPE, float_classifier, noisy, quantized, reference

NETWORKS = ["resnet", "vit", "mobile", "encoder"]


def pixels(count: int = 32) -> np.ndarray:
    return noisy(count).astype(np.float32) / 255


def logits_of_file(path: Path, images: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"pixels": images})[0]
    return result


def assert_agrees(got: np.ndarray, classifier: Classifier) -> None:
    """Equal but for float rounding, except where a rounding tie fell otherwise."""
    expected = reference(classifier, noisy())
    error = np.abs(got - expected).max(1) / expected.std()
    assert np.mean(error > 1e-4) <= 0.25
    assert error.max() < 0.5


@pytest.mark.parametrize("container", ["int8", "int4"])
@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_runs_in_both_runtimes_with_any_batch(name: str, container: Any, tmp_path: Path) -> None:
    classifier = quantized(name, True)
    path = export_model(classifier, tmp_path / "model.onnx", container=container).path
    model = onnx.load(path)
    assert {(entry.domain, entry.version) for entry in model.opset_import} == {("", 21)}
    assert_agrees(logits_of_file(path, pixels()), classifier)
    np.testing.assert_array_equal(logits_of_file(path, pixels(3)), logits_of_file(path, pixels())[:3])
    engine = OpenVinoEngine(load_file_classifier(path), batch=32, input_kind="levels", threads=1)
    assert engine.describe()["precision"] == "int8"
    assert_agrees(engine.logits_of(noisy()), classifier)
    engine.close()


def test_shortcuts_of_a_fine_tuned_network_stay_on_integers(tmp_path: Path) -> None:
    """Fine-tuning gives the two readers of an activation clips of their own; a stride must not cost the integers then."""
    classifier = copy.deepcopy(quantized("resnet", True))
    with torch.no_grad():
        for number, layer in enumerate(classifier.layers):
            classifier.quantizer(layer.name).a.size.mul_(1 + 0.003 * number)
    strided = [layer.name for layer in classifier.layers if layer.kernel == (1, 1) and max(layer.stride) > 1]
    assert strided
    path = export_model(classifier, tmp_path / "model.onnx").path
    convolutions = {node.name: node for node in onnx.load(path).graph.node if node.op_type == "Conv"}
    assert all(
        max(next(a for a in node.attribute if a.name == "strides").ints) == 1
        for node in convolutions.values()
        if set(next(a for a in node.attribute if a.name == "kernel_shape").ints) == {1}
    )
    assert_agrees(logits_of_file(path, pixels()), classifier)
    engine = OpenVinoEngine(load_file_classifier(path), batch=32, input_kind="levels", threads=2)
    assert engine.describe()["precision"] == "int8"
    assert_agrees(engine.logits_of(noisy()), classifier)
    engine.close()


def test_int4_containers_are_smaller(tmp_path: Path) -> None:
    classifier = quantized("resnet", False)
    sizes = [
        export_model(classifier, tmp_path / f"{container}.onnx", container=container).size_bytes
        for container in ("int8", "int4")  # type: ignore[arg-type]
    ]
    weights = sum(layer.weights for layer in classifier.layers if classifier.policy[layer.name].w <= 4)
    assert abs(sizes[0] - sizes[1] - weights // 2) < 100


def test_weights_are_stored_as_their_integers() -> None:
    classifier = quantized("resnet", False)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx_model(classifier).graph.initializer}
    for name, layer in classifier.integer_state().items():
        turned = layer.kind == "linear"
        values = stored[f"{name}.weight.transposed.integers" if turned else f"{name}.weight.integers"]
        assert layer.weight is not None
        np.testing.assert_array_equal(values.T if turned else values, layer.weight)


def test_float_attention_on_pytorch_s_fast_path_is_exported(tmp_path: Path) -> None:
    classifier = float_classifier("encoder")
    path = export_model(classifier, tmp_path / "model.onnx").path
    assert_agrees(logits_of_file(path, pixels()), classifier)
    assert torch.backends.mha.get_fastpath_enabled(), "as it was before"


class Fork(torch.nn.Module):
    """Two 1x1 convolutions with a stride read the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Linear(8, 10)
        self.left, self.right = torch.nn.Conv2d(8, 8, 1, 2), torch.nn.Conv2d(8, 8, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        result: torch.Tensor = self.head((self.left(x) * self.right(x)).mean((2, 3)))
        return result


def test_two_shortcuts_from_one_value(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = quantize(Classifier(Fork(), num_classes=10, input_shape=SHAPE), 6, noisy(16).astype(np.uint8), sigma=0.25)
    path = export_model(made, tmp_path / "model.onnx").path
    assert_agrees(logits_of_file(path, pixels()), made)


def test_nothing_is_left_that_does_nothing() -> None:
    kinds = Counter(node.op_type for node in onnx_model(quantized("resnet", False)).graph.node)
    assert not {"Cast", "Mul", "Identity", "Constant", "Transpose"} & kinds.keys()
    assert (kinds["Conv"], kinds["MatMul"], kinds["QuantizeLinear"], kinds["DequantizeLinear"]) == (9, 1, 10, 20)


@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_float_models_are_exported_too(format: Any, tmp_path: Path) -> None:
    classifier = float_classifier("resnet", bounds=(-1.0, 1.0))
    path = export_model(
        classifier, tmp_path / ("model.xml" if format == "openvino" else "model.onnx"), format=format
    ).path
    loaded = load_file_classifier(path)
    assert (loaded.bounds, loaded.policy) == ((-1.0, 1.0), None)
    np.testing.assert_allclose(reference(loaded, noisy()), reference(classifier, noisy()), atol=1e-4)


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_openvino_file_equals_the_engine_bit_for_bit(name: str, tmp_path: Path) -> None:
    classifier = quantized(name, True)
    exported = export_model(classifier, tmp_path / "model.xml", format="openvino", sigma=0.5)
    assert exported.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    engines = [
        OpenVinoEngine(model, batch=32, input_kind="levels", threads=1)
        for model in (classifier, load_file_classifier(exported.path))
    ]
    np.testing.assert_array_equal(*(engine.logits_of(noisy()) for engine in engines))
    assert engines[1].describe()["precision"] == "int8"


class Quant(OpRun):
    """QONNX's Quant, written from its definition."""

    op_domain = QONNX_DOMAIN

    def _run(self, x: Any, scale: Any, zero: Any, bits: Any, **options: Any) -> Any:
        signed, narrow = options["signed"], options["narrow"]
        low = -(2 ** (bits - 1)) + narrow if signed else 0
        high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
        return (((np.clip(np.rint(x / scale + zero), low, high) - zero) * scale).astype(np.float32),)


class BipolarQuant(OpRun):
    """QONNX's BipolarQuant, written from its definition."""

    op_domain = QONNX_DOMAIN

    def _run(self, x: Any, scale: Any) -> Any:
        return ((np.where(x >= 0, 1, -1) * scale).astype(np.float32),)


@pytest.mark.parametrize(
    ("name", "bits"), [("mobile", 1), ("mobile", 2), ("mobile", 3), ("mobile", 8), ("vit", 3), ("vit", 4)]
)
def test_qonnx_means_the_same(name: str, bits: int, tmp_path: Path) -> None:
    classifier = quantized(name, True)
    before = classifier.policy
    classifier.set_policy_(Policy.uniform(classifier.layers, bits))
    path = export_model(classifier, tmp_path / "model.onnx", format="qonnx").path
    evaluator = ReferenceEvaluator(onnx.load(path), new_ops=[Quant, BipolarQuant])
    assert_agrees(evaluator.run(None, {"pixels": pixels()})[0], classifier)
    classifier.set_policy_(before)


def test_a_qonnx_file_says_that_it_is_for_other_tools(tmp_path: Path) -> None:
    path = export_model(quantized("resnet", True), tmp_path / "model.onnx", format="qonnx").path
    with pytest.raises(FileFormatError, match="is a QONNX file, for FPGA tools"):
        load_file_classifier(path)


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    classifier = quantized("resnet", False)
    for format, name in (("onnx", "model.onnx"), ("openvino", "model.xml")):
        path = export_model(classifier, tmp_path / name, format=format, sigma=0.5, more={"run": "a"}).path  # type: ignore[arg-type]
        loaded = load_file_classifier(path)
        assert isinstance(loaded, FileClassifier)
        assert loaded.facts is not None
        assert (loaded.policy, loaded.facts.sigma, loaded.facts.more) == (classifier.policy, 0.5, {"run": "a"})
        assert loaded.facts.fingerprint == classifier.fingerprint()
        assert (loaded.num_classes, loaded.input_shape, loaded.name) == (10, SHAPE, classifier.name)
        loaded.check()


def test_an_export_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    first = export_model(quantized("mobile", False), path)
    second = export_model(quantized("mobile", True), path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert json.loads(onnx.load(path).metadata_props[0].value)["fingerprint"] == second.facts.fingerprint
    assert first.facts.fingerprint != second.facts.fingerprint


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("model.onnx", {"format": "tflite"}, "tflite"),
        ("model.onnx", {"container": "int2"}, "int2"),
        ("model.onnx", {"format": "openvino"}, r"\.xml"),
        ("model.onnx", {"format": "qonnx"}, "not quantized"),
    ],
)
def test_bad_requests_are_refused(name: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        export_model(float_classifier("mobile"), tmp_path / name, **options)


def test_a_network_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    class Opaque(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("no such operation")

    with pytest.raises(InputError, match=r"opaque.*ONNX"):
        export_model(Classifier(Opaque(), num_classes=2, input_shape=SHAPE, name="opaque"), tmp_path / "m.onnx")


def test_exporting_leaves_the_classifier_alone(tmp_path: Path) -> None:
    classifier: QuantizedClassifier = quantized("resnet", False)
    before = classifier.fingerprint()
    classifier.train()
    export_model(classifier, tmp_path / "model.onnx")
    assert classifier.training
    classifier.eval()
    assert classifier.fingerprint() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "vit_tiny", "mobilenetv2", "resnet50"])
def test_whole_architectures(name: str, tmp_path: Path) -> None:
    """Real sizes, random weights: every product is an integer product, from memory and from both kinds of file."""
    classifier = load_model(name, weights_required=False)
    images = np.random.default_rng(0).integers(0, 256, (4, *classifier.input_shape)).astype(np.uint8)
    model = quantize(classifier, 4, images, sigma=0.25, estimate_bn=True)
    files = [export_model(model, tmp_path / "m.onnx"), export_model(model, tmp_path / "m.xml", format="openvino")]
    for each in (model, *(load_file_classifier(file.path) for file in files)):
        engine = OpenVinoEngine(each, batch=4, input_kind="levels")
        assert engine.describe()["precision"] == "int8"
        assert np.isfinite(engine.logits_of(images.astype(np.int16))).all()
        engine.close()
    assert logits_of_file(files[0].path, images.astype(np.float32) / 255).shape == (4, classifier.num_classes)


def test_external_weights_belong_to_the_fingerprint(tmp_path: Path) -> None:
    path = export_model(float_classifier("resnet"), tmp_path / "inside.onnx").path
    outside = tmp_path / "outside.onnx"
    onnx.save(onnx.load(path), outside, save_as_external_data=True, location="weights.data", size_threshold=0)
    before = load_file_classifier(outside).fingerprint()
    expected = logits_of_file(path, pixels())
    engine = OnnxRuntimeEngine(load_file_classifier(outside), batch=32, input_kind="levels", threads=1)
    assert np.isfinite(engine.logits_of(noisy())).all()
    engine.close()
    np.testing.assert_allclose(logits_of_file(outside, pixels()), expected, rtol=1e-5, atol=1e-5)
    weights = bytearray((tmp_path / "weights.data").read_bytes())
    weights[len(weights) // 2] ^= 1
    (tmp_path / "weights.data").write_bytes(weights)
    assert load_file_classifier(outside).fingerprint() != before


def test_so_do_those_in_attributes_of_operators(tmp_path: Path) -> None:
    model = onnx.load(export_model(float_classifier("resnet"), tmp_path / "inside.onnx").path)
    for initializer in list(model.graph.initializer):
        constant = onnx.helper.make_node("Constant", [], [initializer.name], value=initializer)
        model.graph.node.insert(0, constant)
        model.graph.initializer.remove(initializer)
    path = tmp_path / "outside.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=0, convert_attribute=True)
    before = load_file_classifier(path).fingerprint()
    weights = bytearray((tmp_path / "w.data").read_bytes())
    weights[len(weights) // 2] ^= 1
    (tmp_path / "w.data").write_bytes(weights)
    assert load_file_classifier(path).fingerprint() != before


def test_a_fixed_batch_is_named_where_it_cannot_be_changed(tmp_path: Path) -> None:
    path = export_model(float_classifier("resnet"), tmp_path / "model.onnx").path
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    with pytest.raises(InputError, match="batches of 1 images only: use --batch 1"):
        OnnxRuntimeEngine(load_file_classifier(path), batch=32, input_kind="levels", threads=1)


def test_a_quantized_file_needs_no_other_precision(tmp_path: Path) -> None:
    path = export_model(quantized("resnet", True), tmp_path / "model.onnx").path
    with pytest.raises(InputError, match="is quantized"):
        make_engine(load_file_classifier(path), input_kind="levels", precision="bfloat16")


class Normalised(torch.nn.Module):
    """A small product without a bias, whose variance is no larger than the epsilon of what follows."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.conv = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.linear = torch.nn.Linear(8, 8, bias=False)
        self.norm = {
            "group": torch.nn.GroupNorm(2, 8), "instance": torch.nn.InstanceNorm2d(8), "layer": torch.nn.LayerNorm(8),
        }[kind]  # fmt: skip
        self.head = torch.nn.Linear(8, 10)
        with torch.no_grad():
            self.conv.weight.mul_(0.01)
            self.linear.weight.mul_(0.01)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        if self.kind == "layer":
            return self.head(self.norm(self.linear(x.mean((2, 3)))))
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


@pytest.mark.parametrize("kind", ["group", "instance", "layer"])
def test_the_epsilon_of_a_normalisation_is_not_lost(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    classifier = Classifier(Normalised(kind).eval(), num_classes=10, input_shape=SHAPE)
    images = np.random.default_rng(0).integers(0, 256, (32, *SHAPE)).astype(np.uint8)
    network = quantize(classifier, 8, images, sigma=0.25)
    batch = noisy(32)
    wanted = reference(network, batch)
    spread = np.ptp(wanted)
    engine = OpenVinoEngine(network, batch=32, input_kind="levels", threads=1)
    assert np.abs(engine.logits_of(batch) - wanted).max() < 1e-3 * spread
    engine.close()
    path = export_model(network, tmp_path / "model.onnx").path
    for runtime in ("openvino", "onnxruntime"):
        of_file: Any = make_engine(load_file_classifier(path), kind=runtime, batch=32, input_kind="levels", threads=1)
        assert np.abs(of_file.logits_of(batch) - wanted).max() < 1e-3 * spread
        of_file.close()


class Extreme(torch.nn.Module):
    """Largest or smallest values over axes, which quantized layers read."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.gate = torch.nn.Conv2d(8, 8, 1)
        self.head = torch.nn.Linear(8, 10)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.silu(self.stem(x))
        if self.kind == "gate":
            return self.head((x * self.gate(x.amax((2, 3), keepdim=True)).sigmoid()).mean((2, 3)))
        return self.head(x.amin((2, 3)) if self.kind == "smallest" else x.amax((2, 3)))


@pytest.mark.parametrize("kind", ["largest", "smallest", "gate"])
def test_the_largest_of_values_is_not_that_of_wrong_integers(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    classifier = Classifier(Extreme(kind).eval(), num_classes=10, input_shape=SHAPE)
    images = np.random.default_rng(0).integers(0, 256, (32, *SHAPE)).astype(np.uint8)
    network = quantize(classifier, 4, images, sigma=0.25)
    engines: list[Any] = [OpenVinoEngine(network, batch=32, input_kind="levels", threads=1)]
    for format, name in (("onnx", "model.onnx"), ("openvino", "model.xml")):
        file = load_file_classifier(export_model(network, tmp_path / name, format=format).path)  # type: ignore[arg-type]
        engines.append(OpenVinoEngine(file, batch=32, input_kind="levels", threads=1))
    for engine in engines:
        assert_agrees(engine.logits_of(noisy(32)), network)
        engine.close()
    assert_agrees(logits_of_file(tmp_path / "model.onnx", pixels()), network)


class Same(torch.nn.Module):
    """Padding "same" of dilated and of even kernels, and a linear layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding="same", dilation=2)
        self.even = torch.nn.Conv2d(8, 8, 4, padding="same")
        self.linear = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.even(self.stem(x).relu()).relu().mean((2, 3))
        return self.head(self.linear(self.linear(x).relu()))


@pytest.mark.parametrize("bits", [None, 8])
def test_onnx_runtime_takes_dilated_same_padding_and_layers_used_twice(bits: int | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    classifier = Classifier(Same().eval(), num_classes=10, input_shape=SHAPE)
    images = np.random.default_rng(0).integers(0, 256, (32, *SHAPE)).astype(np.uint8)
    network = classifier if bits is None else quantize(classifier, bits, images, sigma=0.25)
    path = export_model(network, tmp_path / "model.onnx").path
    batch = noisy(32)
    engine: Any = make_engine(load_file_classifier(path), kind="onnxruntime", batch=32, input_kind="levels", threads=1)
    wanted = reference(network, batch)
    assert np.median(np.abs(engine.logits_of(batch) - wanted).max(1)) < 1e-3 * np.ptp(wanted)
    engine.close()
