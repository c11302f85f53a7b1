import contextlib
import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.engines.choice import make_engine
from arquant.engines.exporting import export_model
from arquant.engines.facts import KEY, Facts
from arquant.engines.files import load_file_classifier, read_file
from arquant.engines.openvino import OpenVinoEngine
from arquant.loading.models import load_model
from tests.support.damage import FUZZ, mutate
from tests.support.networks_to_lower import SHAPE, float_classifier, noisy, reference


def foreign(path: Path, *, shape: list[Any] | None = None, classes: int = 3, outputs: int = 1) -> Path:
    """A file that arquant did not write: the channel means are the logits."""
    shape = shape or ["batch", 3, 8, 8]
    nodes = [helper.make_node("ReduceMean", ["x", "axes"], [f"y{i}"], keepdims=0) for i in range(outputs)]
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["batch", classes]) for i in range(outputs)],
        [helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(float_classifier("mobile"), tmp_path_factory.mktemp("files") / "model.onnx").path


def test_a_foreign_file_is_normalised_as_told(tmp_path: Path) -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 0.125]
    classifier = load_file_classifier(foreign(tmp_path / "m.onnx"), mean=mean, std=std, bounds=(-1.0, 1.0))
    assert (classifier.num_classes, classifier.input_shape, classifier.facts) == (3, SHAPE, None)
    images = noisy(4)
    expected = ((2 * images / 255 - 1).mean((2, 3)) - mean) / std
    np.testing.assert_allclose(reference(classifier, images), expected, atol=1e-5)
    for kind in ("openvino", "onnxruntime"):
        engine: Any = make_engine(classifier, kind=kind, batch=4, input_kind="levels", threads=1)
        np.testing.assert_allclose(engine.logits_of(images), expected, atol=1e-5)
        np.testing.assert_array_equal(engine.labels_of(images), expected.argmax(1))
        engine.close()


def test_a_file_with_ranges_taken_over_the_batch_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["levels", "step", "zero"]),
        helper.make_node("DequantizeLinear", ["levels", "step", "zero"], ["rounded"]),
        helper.make_node("ReduceMean", ["rounded", "axes"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])],
    )
    path = tmp_path / "dynamic.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    with pytest.raises(InputError, match="another image stands beside it"):
        load_model(str(path))


def test_open_shapes_must_be_stated(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m.onnx", shape=["batch", 3, "h", "w"])
    with pytest.raises(InputError, match="--input"):
        load_file_classifier(path)
    assert load_file_classifier(path, input_shape=(3, 4, 4)).input_shape == (3, 4, 4)


def test_a_fixed_batch_size_is_changed(tmp_path: Path) -> None:
    classifier = load_file_classifier(foreign(tmp_path / "m.onnx", shape=[1, 3, 8, 8]))
    engine = OpenVinoEngine(classifier, batch=4, input_kind="levels", threads=1)
    assert engine.labels_of(noisy(4)).shape == (4,)
    engine.close()


@pytest.mark.parametrize(
    "options", [{"num_classes": 7}, {"input_shape": (3, 9, 9)}, {"mean": [0.5]}, {"bounds": (0.0, 255.0)}]
)
def test_a_file_of_ours_cannot_be_contradicted(exported: Path, options: dict[str, Any]) -> None:
    with pytest.raises(MismatchError):
        load_file_classifier(exported, **options)
    agreeing = {"num_classes": 10, "input_shape": SHAPE}
    assert load_file_classifier(exported, **agreeing).num_classes == 10


def test_load_model_reads_files(exported: Path) -> None:
    np.testing.assert_allclose(
        reference(load_model(exported), noisy(2)), reference(float_classifier("mobile"), noisy(2)), atol=1e-5
    )


def test_fingerprints_follow_the_contents(exported: Path, tmp_path: Path) -> None:
    same = tmp_path / "other name.onnx"
    same.write_bytes(exported.read_bytes())
    assert load_file_classifier(same).fingerprint() == load_file_classifier(exported).fingerprint()
    path = foreign(tmp_path / "m.onnx")
    prints = {load_file_classifier(path, mean=[mean]).fingerprint() for mean in (0.0, 0.5)}
    assert len(prints | {load_file_classifier(exported).fingerprint()}) == 3


def test_openvino_fingerprints_cover_the_weights(tmp_path: Path) -> None:
    path = export_model(float_classifier("mobile"), tmp_path / "m.xml", format="openvino").path
    before = load_file_classifier(path).fingerprint()
    weights = bytearray(path.with_suffix(".bin").read_bytes())
    weights[40] ^= 1
    path.with_suffix(".bin").write_bytes(weights)
    assert load_file_classifier(path).fingerprint() != before


def test_files_that_are_no_classifiers_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(FileFormatError, match=r"broken\.onnx"):
        load_file_classifier(broken)
    with pytest.raises(FileFormatError, match="2 outputs"):
        load_file_classifier(foreign(tmp_path / "two.onnx", outputs=2))
    with pytest.raises(FileFormatError, match="float32"):
        load_file_classifier(foreign(tmp_path / "flat.onnx", shape=["batch", 3, 8, 8, 1]))


def test_damaged_metadata_is_refused(exported: Path, tmp_path: Path) -> None:
    model = onnx.load(exported)
    onnx.helper.set_model_props(model, {KEY: '{"schema": "arquant.model", "version": 9}'})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(FileFormatError, match="metadata"):
        load_file_classifier(tmp_path / "m.onnx")


def test_facts_survive_the_round_trip() -> None:
    facts = Facts("a", 3, (3, 8, 8), (0.0, 1.0), "f", 0.5, None, {"x": [1]})
    assert Facts.parse(facts.to_json(), "here") == facts


@FUZZ
@given(data=st.data())
def test_fuzz_metadata_is_read_or_refused(data: st.DataObject) -> None:
    policy = {"schema": "arquant.policy", "version": 1, "model": {}, "layers": {"a": {"w": 3, "a": 4}}}
    facts = Facts("a", 3, (3, 8, 8), (0.0, 1.0), "f", 0.5, policy, {"x": [1]})
    text = mutate(facts.to_json().encode(), data).decode("utf-8", "replace")
    with contextlib.suppress(FileFormatError):
        assert Facts.parse(text, "here").name is not None


def test_torch_cannot_run_a_file(exported: Path) -> None:
    with pytest.raises(InputError, match="PyTorch cannot"):
        make_engine(load_file_classifier(exported), kind="torch", input_kind="levels")


def test_onnxruntime_cannot_run_openvino_files(tmp_path: Path) -> None:
    path = export_model(float_classifier("mobile"), tmp_path / "m.xml", format="openvino").path
    with pytest.raises(InputError, match="--engine openvino"):
        make_engine(load_file_classifier(path), kind="onnxruntime", input_kind="levels")


def test_a_file_classifier_can_be_copied(exported: Path) -> None:
    classifier = load_file_classifier(exported)
    images = torch.zeros(1, *SHAPE)
    before = classifier(images)
    assert torch.equal(copy.deepcopy(classifier)(images), before)


def test_four_bit_constants_keep_their_values(tmp_path: Path) -> None:
    values = np.arange(-8, 7, dtype=np.int8).reshape(3, 5)
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("DequantizeLinear", ["w", "scale"], ["floats"]),
        helper.make_node("MatMul", ["flat", "floats"], ["y"]),
    ]
    pairs = np.append(values.reshape(-1), 0).reshape(-1, 2) & 15
    packed = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8).tobytes()
    graph = helper.make_graph(
        nodes,
        "four",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [
            helper.make_tensor("w", TensorProto.INT4, [3, 5], packed, raw=True),
            helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
        ],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    assert not any(node.get_element_type().to_string() == "i4" for node in read_file(path).get_ops())
    logits = load_file_classifier(path)(torch.eye(3).reshape(3, 3, 1, 1))
    np.testing.assert_array_equal(logits.numpy(), values * 0.5)
