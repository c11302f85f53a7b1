import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import arquant.engines.choice as choice
from arquant.classifier import Classifier
from arquant.engines.base import Engine
from arquant.engines.choice import default_batch, make_engine, resolve_device
from arquant.engines.files import load_file_classifier
from arquant.engines.openvino import OpenVinoEngine
from arquant.errors import InputError, MismatchError
from arquant.exporting import export_model
from arquant.quantization import quantize
from arquant.smoothing import Smoothed
from tests.networks_to_lower import quantized


def linear() -> Classifier:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    return Classifier(network, num_classes=3, input_shape=(3, 4, 4), name="linear")


class Sleepy(Engine):
    """An engine of known speed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(batch=2, input_shape=(1, 1, 1), input_kind="levels")
        self.seconds = seconds

    def labels_of(self, batch: np.ndarray) -> Any:
        time.sleep(self.seconds)
        return np.zeros(2, np.int64)

    def describe(self) -> dict[str, Any]:
        return {"engine": f"sleepy {self.seconds}", "precision": "float32"}


def test_auto_on_cpu_is_openvino_without_measuring() -> None:
    engine = make_engine(linear(), input_kind="levels", device="cpu", threads=1)
    facts = engine.describe()
    assert (facts["engine"], facts["batch"], facts["threads"], facts["device"]) == ("openvino", 128, 1, "cpu")
    engine.close()


def test_auto_falls_back_to_torch_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opaque(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("no such operation")

    built: list[str] = []
    monkeypatch.setattr("arquant.engines.choice.TorchEngine", lambda *_, **__: built.append("torch") or Sleepy(0.0))
    with caplog.at_level(logging.WARNING, "arquant"):
        make_engine(Classifier(Opaque(), num_classes=3, input_shape=(3, 4, 4)), input_kind="levels", device="cpu")
    assert built == ["torch"]
    assert "OpenVINO cannot convert" in caplog.text


class Moody(nn.Module):
    """Answers 0 for dark images and 1 for bright ones, by a decision in Python."""

    def forward(self, x: Tensor) -> Tensor:
        rows = [torch.tensor([1.0, 0.0] if float(row.mean()) < 0.5 else [0.0, 1.0]) for row in x]
        return torch.stack(rows) + 0.01 * x.mean((1, 2, 3))[:, None]


@pytest.mark.parametrize("batch", [1, 2, 8, 32])
@pytest.mark.parametrize("kind", ["openvino", "onnxruntime"])
def test_a_graph_that_lost_a_decision_is_not_used(kind: str, batch: int, caplog: pytest.LogCaptureFixture) -> None:
    moody = Classifier(Moody(), num_classes=2, input_shape=(3, 4, 4), name="moody")
    said = rf"{kind} (answers otherwise than|cannot run) model 'moody'.* use --engine torch"
    with pytest.raises(InputError, match=said):
        make_engine(moody, kind=kind, input_kind="unit", batch=batch)
    if (kind, batch) == ("openvino", 8):
        with caplog.at_level(logging.WARNING, "arquant"):
            engine = make_engine(moody, input_kind="unit", batch=batch, device="cpu")
        assert engine.describe()["engine"] == "torch"
        assert "answers otherwise" in caplog.text
        engine.close()


class MoodyLayer(nn.Module):
    """A linear network whose answer is turned round for bright images, by a decision in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.layer(x.flatten(1))
        return torch.stack([row if float(image.mean()) < 0.5 else -row for row, image in zip(rows, x, strict=True)])


@pytest.mark.parametrize("kind", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_nor_is_that_of_a_quantized_network(batch: int, kind: str) -> None:
    torch.manual_seed(0)
    moody = Classifier(MoodyLayer(), num_classes=3, input_shape=(3, 4, 4), name="moody")
    made = quantize(moody, 8, np.random.default_rng(0).integers(0, 256, (16, 3, 4, 4), dtype=np.uint8), sigma=0.25)
    said = rf"{kind} (answers otherwise than|cannot run) model .*moody.* use --engine torch"
    with pytest.raises(InputError, match=said):
        make_engine(made, kind=kind, input_kind="unit", batch=batch)


def test_a_file_that_openvino_compiles_wrongly_for_several_threads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = load_file_classifier(export_model(linear(), tmp_path / "linear.onnx").path)
    for threads in (1, 2):
        make_engine(file, kind="openvino", input_kind="levels", threads=threads).close()
    right = OpenVinoEngine.labels_of

    def wrong(self: OpenVinoEngine, batch: np.ndarray) -> Any:
        return (right(self, batch) + (self.threads > 1)) % 3

    monkeypatch.setattr(OpenVinoEngine, "labels_of", wrong)
    make_engine(file, kind="openvino", input_kind="levels", threads=1).close()
    with pytest.raises(InputError, match="compiled the file wrongly for several threads; use --threads 1"):
        make_engine(file, kind="openvino", input_kind="levels", threads=2)


def test_an_engine_knows_the_weights_that_it_was_made_for() -> None:
    model = linear()
    engine = make_engine(model, kind="torch", input_kind="levels")
    assert engine.fingerprint == model.fingerprint()
    Smoothed(model, 0.5, engine=engine)
    with torch.no_grad():
        model.module[1].weight.mul_(0.5)
    with pytest.raises(MismatchError, match="made for another model than 'linear', or for other weights"):
        Smoothed(model, 0.5, engine=engine)
    engine.close()


@pytest.mark.parametrize(("torch_seconds", "chosen"), [(0.001, "sleepy 0.001"), (0.01, "sleepy 0.004")])
def test_many_votes_are_measured_once(monkeypatch: pytest.MonkeyPatch, torch_seconds: float, chosen: str) -> None:
    built: list[str] = []

    def build(_: object, kind: str, **__: object) -> Engine:
        built.append(kind)
        return Sleepy(torch_seconds if kind == "torch" else 0.004)

    monkeypatch.setattr(choice, "_build", build)
    monkeypatch.setattr(choice, "_measured", {})
    for _ in range(2):
        engine = make_engine(linear(), input_kind="levels", device="cpu", votes=10**7)
        assert engine.describe()["engine"] == chosen
        engine.close()
    assert len(choice._measured) == 1


def test_faster_compares_throughput() -> None:
    quick, slow = Sleepy(0.001), Sleepy(0.01)
    assert choice.faster(quick, slow)
    assert not choice.faster(slow, quick)


def test_default_batch_shrinks_with_the_image() -> None:
    assert [default_batch((3, side, side)) for side in (8, 32, 64, 224)] == [128, 128, 32, 16]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "tensorrt"}, "tensorrt"),
        ({"batch": 0}, "at least one image"),
        ({"threads": 0}, "at least 1"),
        ({"kind": "openvino", "device": "cuda"}, "runs on cpu"),
        ({"device": "nonsense"}, "not known"),
        ({"device": "meta"}, "cannot be used here"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_engine(linear(), input_kind="levels", **options)


def test_cpu_engines_resolve_auto_to_cpu() -> None:
    assert resolve_device("auto", "openvino") == "cpu"


@pytest.mark.parametrize("kind", ["auto", "torch", "openvino"])
def test_bfloat16_is_refused_for_integers(kind: str) -> None:
    with pytest.raises(InputError, match="is quantized"):
        make_engine(quantized("vit", per_channel=False), kind=kind, input_kind="levels", precision="bfloat16")
