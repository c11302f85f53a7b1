"""Models from strangers that name weight files: nothing but regular files in their folder is opened."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from arquant.base.errors import FileFormatError
from arquant.engines import weight_files as module
from arquant.engines.exporting import export_model
from arquant.engines.files import file_digest, load_file_classifier
from arquant.engines.weight_files import weight_files
from tests.support.command_line import Project
from tests.support.networks_to_lower import float_classifier


def external(location: str, dims: tuple[int, ...] = (3,), name: str = "far", **more: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _model(initializers: list[TensorProto] | None = None, bias: str = "bias") -> onnx.ModelProto:
    """The channel means plus a bias, for images 3 x 4 x 4."""
    own = numpy_helper.from_array(np.zeros(3, np.float32), "bias")
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=0),
            helper.make_node("Add", ["mean", bias], ["y"]),
        ],
        "means",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3]), *(initializers or [own])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _subgraph(tensor: TensorProto) -> onnx.GraphProto:
    return helper.make_graph([], "inner", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])], [tensor])


def _function(node: onnx.NodeProto) -> onnx.FunctionProto:
    return helper.make_function("own", "Unused", [], ["z"], [node], [helper.make_opsetid("", 18)])


def _constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["z"], value=tensor)


def _sparse(tensor: TensorProto) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=tensor, indices=numpy_helper.from_array(np.arange(3), "i"), dims=[9])


def _used(model: onnx.ModelProto, tensor: TensorProto) -> None:
    tensor.name = "bias"
    del model.graph.initializer[-1]
    model.graph.initializer.append(tensor)


def _default(model: onnx.ModelProto, tensor: TensorProto) -> None:
    function = _function(helper.make_node("Identity", [], ["z"]))
    function.attribute_proto.append(helper.make_attribute("value", tensor))
    model.functions.append(function)


def _branch(model: onnx.ModelProto, tensor: TensorProto) -> None:
    inner = helper.make_node("If", ["c"], ["z"], then_branch=_subgraph(tensor), else_branch=_subgraph(tensor))
    model.functions.append(_function(inner))


PLACES: dict[str, Callable[[onnx.ModelProto, TensorProto], object]] = {
    "a weight": _used,
    "an unused initializer": lambda model, tensor: model.graph.initializer.append(tensor),
    "a sparse initializer": lambda model, tensor: model.graph.sparse_initializer.append(_sparse(tensor)),
    "an unused function": lambda model, tensor: model.functions.append(_function(_constant(tensor))),
    "the default of a function": _default,
    "a graph in a function": _branch,
    "a sparse attribute": lambda model, tensor: model.functions.append(
        _function(helper.make_node("Constant", [], ["z"], sparse_value=_sparse(tensor)))
    ),
    "a training part": lambda model, tensor: model.training_info.add().algorithm.CopyFrom(_subgraph(tensor)),
}


def saved(folder: Path, place: str, tensor: TensorProto) -> Path:
    model = _model()
    PLACES[place](model, tensor)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("place", ["a weight", "a sparse initializer", "an unused function"])
def test_endless_files_are_never_opened(place: str, project: Project) -> None:
    saved(project.folder, place, external("/dev/zero"))
    answer = project.run("certify", "m.onnx", "npz:data.npz", "--sigma", "0.5", "--n", "64", "--out", f"zero {place}")
    assert answer.code == 2
    assert "names the weight file '/dev/zero'" in answer.err


@pytest.mark.parametrize("place", PLACES)
def test_no_device_is_opened_wherever_it_is_named(place: str, tmp_path: Path) -> None:
    for location in ("/dev/null", "../../../../../../../dev/null"):
        with pytest.raises(FileFormatError, match=r"names the weight file .*leads out of"):
            load_file_classifier(saved(tmp_path, place, external(location)))


@pytest.mark.parametrize("place", PLACES)
def test_every_external_file_is_part_of_the_fingerprint(place: str, tmp_path: Path) -> None:
    (tmp_path / "far.bin").write_bytes(bytes(12))
    path = saved(tmp_path, place, external("far.bin"))
    before = file_digest(path)
    (tmp_path / "far.bin").write_bytes(bytes(11) + b"\1")
    assert file_digest(path) != before


@pytest.mark.parametrize("location", [
    "../far.bin", "in/../../far.bin", "", ".", "in", "missing.bin", "pipe", "link.bin", "in/link.bin", "linked/far.bin",
    "loop", "a\0b", "x" * 5000,
])  # fmt: skip
def test_only_regular_files_in_the_folder_are_weight_files(location: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "far.bin"
    (folder / "in").mkdir(parents=True)
    outside.write_bytes(bytes(12))
    os.mkfifo(folder / "pipe")
    (folder / "link.bin").symlink_to(outside)
    (folder / "in" / "link.bin").symlink_to(outside)
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    for place in ("a weight", "an unused function"):
        with pytest.raises(FileFormatError, match="names the weight file"):
            load_file_classifier(saved(folder, place, external(location)))


@pytest.mark.parametrize("location", ["far.bin", "in/far.bin", "link.bin"])
def test_files_inside_of_the_folder_are_read(location: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("far.bin", "in/far.bin"):
        (tmp_path / name).write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    (tmp_path / "link.bin").symlink_to("far.bin")
    path = saved(tmp_path, "an unused function", external(location))
    assert weight_files(path) == [tmp_path / location]
    assert len(load_file_classifier(path).fingerprint()) == 64


@pytest.mark.parametrize("tensor", [
    external("far.bin"), external("far.bin", length="12"), external("far.bin", offset="4", length="8"),
])  # fmt: skip
def test_a_weight_file_is_about_as_long_as_its_tensors(tensor: TensorProto, tmp_path: Path) -> None:
    path = saved(tmp_path, "an unused function", tensor)
    for size, fits in ((12, True), (2**20, True), (2**40, False)):  # the last, with nothing in it, takes no space
        with (tmp_path / "far.bin").open("wb") as file:
            file.truncate(size)
        if fits:
            assert weight_files(path) == [tmp_path / "far.bin"]
        else:
            with pytest.raises(FileFormatError, match="1,099,511,627,776 bytes long"):
                load_file_classifier(path)


@pytest.mark.parametrize("tensor", [external("far.bin", dims=(2**50,)), external("far.bin", length=str(2**60))])
def test_a_model_cannot_ask_for_longer_ones(
    tensor: TensorProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    (tmp_path / "far.bin").write_bytes(bytes(101))
    with pytest.raises(FileFormatError, match="101 bytes long where at most 100"):
        load_file_classifier(saved(tmp_path, "an unused function", tensor))


@pytest.mark.parametrize("tensor", [external("far.bin", length="many"), external("far.bin", offset="-"), external("f")])
def test_damaged_entries_are_refused(tensor: TensorProto, tmp_path: Path) -> None:
    (tmp_path / "far.bin").write_bytes(bytes(12))
    tensor.external_data.add(key="location", value="far.bin")
    with pytest.raises(FileFormatError):
        load_file_classifier(saved(tmp_path, "an unused initializer", tensor))


def test_the_weights_of_an_openvino_model_lie_beside_it(tmp_path: Path) -> None:
    path = export_model(float_classifier("mobile"), tmp_path / "m.xml", format="openvino").path
    weights = path.with_suffix(".bin").rename(tmp_path.parent / f"{tmp_path.name}.bin")
    with pytest.raises(FileFormatError, match=r"m\.bin.*missing"):
        load_file_classifier(path)
    for target in (weights, Path("/dev/zero")):
        path.with_suffix(".bin").symlink_to(target)
        with pytest.raises(FileFormatError, match="leads out of"):
            load_file_classifier(path)
        path.with_suffix(".bin").unlink()
    os.mkfifo(path.with_suffix(".bin"))
    with pytest.raises(FileFormatError, match="not a regular file"):
        load_file_classifier(path)


def test_a_file_is_of_the_format_that_its_name_says(tmp_path: Path) -> None:
    """OpenVINO goes by the contents: weights of another place would be run, and others be hashed."""
    xml = export_model(float_classifier("mobile"), tmp_path / "m.xml", format="openvino").path
    for name in ("disguised.onnx", "disguised too.onnx"):
        (tmp_path / name).write_bytes((b"\n" if "too" in name else b"") + xml.read_bytes())
        shutil.copy(xml.with_suffix(".bin"), (tmp_path / name).with_suffix(".bin"))
        with pytest.raises(FileFormatError, match="not an intact ONNX file"):
            load_file_classifier(tmp_path / name)
    shutil.copy(xml.with_suffix(".bin"), tmp_path / "onnx.bin")
    model = _model().SerializeToString()
    for raw in (model, b"\n<" + b"x" * 60 + model):  # the latter begins with a field that readers skip
        (tmp_path / "onnx.xml").write_bytes(raw)
        with pytest.raises(FileFormatError, match="not the XML"):
            load_file_classifier(tmp_path / "onnx.xml")
