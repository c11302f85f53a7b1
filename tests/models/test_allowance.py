"""Model files from strangers: what their headers may ask for, and whom they may send us to."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors import safe_open
from safetensors.torch import save_file

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.engines.facts import KEY, Facts
from arquant.loading.models import load_model
from arquant.models.allowance import memory_errors
from arquant.models.architectures.registry import build_architecture
from arquant.models.classifier import Classifier
from arquant.models.options import Options
from arquant.models.tracing.layers import find_layers
from arquant.models.weights import save_weights
from arquant.quantization.artifact import _digest, _read, load_artifact, save_artifact
from arquant.quantization.policy import Bits, Policy
from arquant.quantization.quantized import QuantizedClassifier, quantize
from arquant.reporting.costing import network_layers
from tests.support.command_line import Project

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
HUGE: list[dict[str, Any]] = [
    {"num_classes": 4_000_000_000}, {"num_classes": 10**18}, {"num_classes": 2_000_000}, {"num_classes": 10**40},
    {"num_classes": 1e300}, {"num_classes": -4}, {"input_shape": [3, 60_000, 60_000]}, {"input_shape": [3, 10**9, 10**9]},
    {"input_shape": [10**12, 1, 1]}, {"input_shape": [3, 0, 32]}, {"input_shape": [3, -32, -32]}, {"mean": [0.5] * 100_000},
    {"input_shape": [3] * 10_000}, {"bounds": [0, 1e400]},
]  # fmt: skip
ARCHS = ("resnet20", "vit_tiny", "torchvision:resnet18", "timm:vit_tiny_patch16_224")
PLACES = ("timm:hf-hub:someone/else", "timm:hf_hub:someone/else", "timm:local-dir:/tmp/x", "timm:HF-HUB:a/b", "timm:a/b",
          "timm:../x", "timm:/x", "timm:", "torchvision:/x", "torchvision:a:b", "timm:https://example.org/x")  # fmt: skip


def of_one_bit(num_classes: int = 10) -> QuantizedClassifier:
    """A ResNet-20 whose weights have one bit each."""
    classifier = load_model("resnet20", weights_required=False, num_classes=num_classes)
    names = find_layers(classifier).names
    return quantize(classifier, Policy({name: Bits(1, 4) for name in names}), IMAGES, sigma=0.25)


@pytest.fixture(scope="module")
def quantized() -> QuantizedClassifier:
    return of_one_bit()


def artifact(path: Path, quantized: QuantizedClassifier, **header: Any) -> Path:
    """A file whose header says so, and whose digest fits."""
    save_artifact(path, quantized, {}, arch="resnet20")
    metadata, tensors = _read(path)
    metadata |= {name: value if isinstance(value, str) else json.dumps(value) for name, value in header.items()}
    metadata["sha256"] = _digest(metadata, tensors)
    save_file(tensors, path, metadata)
    return path


def weights(path: Path, classifier: Classifier, **header: Any) -> Path:
    save_weights(path, classifier, arch="resnet20")
    with safe_open(path, "pt") as file:
        metadata: Mapping[str, str] = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changed = {name: value if isinstance(value, str) else json.dumps(value) for name, value in header.items()}
    save_file(tensors, path, {**metadata, **changed})
    return path


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("header", HUGE, ids=lambda header: str(header)[:40])
def test_a_header_cannot_ask_for_more_than_its_file_holds(
    arch: str, header: dict[str, Any], quantized: QuantizedClassifier, tmp_path: Path
) -> None:
    float_model = build_architecture("resnet20", Options())
    for path in (
        artifact(tmp_path / "a.safetensors", quantized, arch=arch, **header),
        weights(tmp_path / "w.safetensors", float_model, arch=arch, **header),
    ):
        with pytest.raises(ArquantError):
            load_model(path)


@pytest.mark.parametrize("command", [["certify", "m.safetensors", "sample", "--sigma", "0.5"], ["export"], ["inspect"]])
def test_such_a_file_is_bad_input(command: list[str], quantized: QuantizedClassifier, project: Project) -> None:
    artifact(project.folder / "m.safetensors", quantized, num_classes=4_000_000_000)
    answer = project.run(*command, *(["m.safetensors"] if len(command) == 1 else []))
    assert answer.code == 2
    assert "states 4,000,000,000 classes, too many for such a file" in answer.err


def test_files_of_the_narrowest_weights_are_read(quantized: QuantizedClassifier, tmp_path: Path) -> None:
    """At one bit per weight a file is as short as it can be."""
    save_artifact(tmp_path / "m.safetensors", quantized, {}, arch="resnet20")
    assert load_artifact(tmp_path / "m.safetensors").fingerprint()
    save_artifact(
        tmp_path / "wide.safetensors", of_one_bit(200_000), {}, arch="resnet20"
    )  # 12.8 million weights, 1.6 MB
    assert load_artifact(tmp_path / "wide.safetensors").num_classes == 200_000


def test_a_state_dict_of_rows_that_it_does_not_store_is_refused(tmp_path: Path) -> None:
    tensors = dict(build_architecture("resnet20", Options()).module.state_dict())
    tensors["fc.weight"] = torch.zeros(1, 1).expand(4_000_000_000, 64)
    tensors["fc.bias"] = torch.zeros(1).expand(4_000_000_000)
    torch.save(tensors, tmp_path / "m.pt")
    assert (tmp_path / "m.pt").stat().st_size < 2_000_000
    with pytest.raises(FileFormatError, match="4,000,000,000 classes"):
        load_model(tmp_path / "m.pt", arch="resnet20")


def test_a_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(1_000_000)}, tmp_path / "m.pt")
    with (
        zipfile.ZipFile(tmp_path / "m.pt") as old,
        zipfile.ZipFile(tmp_path / "n.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for part in old.infolist():
            new.writestr(part.filename, old.read(part))
    assert torch.load(tmp_path / "n.pt", weights_only=True)["fc.weight"].shape == (1_000_000,)
    with pytest.raises(FileFormatError, match="compressed"):
        load_model(tmp_path / "n.pt", arch="resnet20")


def test_too_many_classes_on_the_command_line_are_bad_input(project: Project) -> None:
    for classes in ("4e12", "1" + 40 * "0"):
        answer = project.run("inspect", "resnet20", "--classes", classes)
        assert (answer.code, "--classes" in answer.err or "at most 67,108,864" in answer.err) == (2, True)


def test_too_little_memory_is_said() -> None:
    with pytest.raises(InputError, match="not enough memory for this"), memory_errors("this"):
        torch.empty(10**15)
    with pytest.raises(InputError, match="not enough memory for this"), memory_errors("this"):
        np.empty(10**15)
    with pytest.raises(RuntimeError, match="other"), memory_errors("this"):
        raise RuntimeError("something other")


@pytest.mark.parametrize("arch", ARCHS)
def test_no_tensor_of_a_network_is_longer_than_its_file(
    arch: str, quantized: QuantizedClassifier, tmp_path: Path
) -> None:
    """The head of these has 64 and more values for each class."""
    with pytest.raises(ArquantError, match=r"asks for a tensor of shape \(100000, \d+\)"):
        load_model(artifact(tmp_path / "a.safetensors", quantized, arch=arch, num_classes=100_000))


@pytest.mark.parametrize("shape", [[3, 60_000, 60_000], [3, 10**6, 10**6]])
def test_an_exported_file_cannot_ask_for_huge_images(shape: list[int], tmp_path: Path) -> None:
    stated = ["n", *shape]
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)],
        "means",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, stated)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(FileFormatError, match="too large for such a file"):
        load_model(tmp_path / "m.onnx")
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"]))
    facts = Facts("m", 3, (shape[0], shape[1], shape[2]), (0.0, 1.0), "0" * 64)
    helper.set_model_props(model, {KEY: facts.to_json()})
    onnx.save(model, tmp_path / "ours.onnx")
    with pytest.raises(FileFormatError, match="too large for such a file"):
        load_model(tmp_path / "ours.onnx")


@pytest.mark.parametrize("arch", PLACES)
def test_a_file_sends_nobody_elsewhere(
    arch: str, quantized: QuantizedClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arquant.models.hubs.import_timm", lambda: pytest.fail("timm was asked"))
    monkeypatch.setattr("arquant.models.hubs.import_torchvision", lambda: pytest.fail("torchvision was asked"))
    for path in (
        artifact(tmp_path / "a.safetensors", quantized, arch=arch),
        weights(tmp_path / "w.safetensors", build_architecture("resnet20", Options()), arch=arch),
    ):
        for given in (None, *({"timm:resnet18"} - {arch})):
            with pytest.raises(ArquantError):
                load_model(path, arch=given)
        with pytest.raises(InputError, match=r"place of its own choice.*--arch"):
            load_model(path)
    assert network_layers(arch) is None


@pytest.mark.parametrize("arch", ["timm:resnet18", "timm:resnet18.a1_in1k", "torchvision:resnet18"])
def test_a_network_of_an_installed_package_needs_no_consent(
    arch: str, quantized: QuantizedClassifier, tmp_path: Path
) -> None:
    with pytest.raises(ArquantError) as refused:
        load_model(artifact(tmp_path / "a.safetensors", quantized, arch=arch))
    assert "--arch" not in str(refused.value)


def test_with_consent_the_place_is_asked(
    quantized: QuantizedClassifier, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = f"timm:local-dir:{project.folder}/nowhere"
    artifact(project.folder / "m.safetensors", quantized, arch=arch)
    words = ["certify", "m.safetensors", "sample", "--sigma", "0.5"]
    answer = project.run(*words)
    assert (answer.code, f"add --arch {arch}" in answer.err) == (2, True)
    answer = project.run(*words, "--arch", arch)
    assert (answer.code, "timm cannot build" in answer.err) == (2, True)


def test_an_archive_of_images_must_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arquant.loading.datasets import load_data

    np.savez_compressed(
        tmp_path / "d.npz", images=np.zeros((1000, 3, 32, 32), np.uint8), labels=np.zeros(1000, np.int64)
    )
    assert len(load_data(f"npz:{tmp_path}/d.npz", "certify", num_classes=None)) == 1000
    monkeypatch.setattr("arquant.loading.datasets.available_bytes", lambda: 10**6)
    with pytest.raises(FileFormatError, match=r"3,0.* bytes, more than there is memory for"):
        load_data(f"npz:{tmp_path}/d.npz", "certify", num_classes=None)
