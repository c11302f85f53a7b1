import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import arquant.engines.choice as choice
from arquant.base.errors import InputError, MismatchError
from arquant.certification.smoothing import Smoothed
from arquant.engines.base import NO_CLASS, Engine
from arquant.engines.choice import ENGINES, default_batch, make_engine, resolve_device
from arquant.models.classifier import Classifier
from tests.support.networks_to_lower import quantized


def linear() -> Classifier:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    return Classifier(network, num_classes=3, input_shape=(3, 4, 4), name="linear")


class Timed(Engine):
    """An engine of known speed, by a clock that nothing else moves."""

    now = 0.0
    clock = staticmethod(lambda: Timed.now)

    def __init__(self, seconds: float) -> None:
        super().__init__(batch=2, input_shape=(1, 1, 1), input_kind="levels")
        self.seconds = seconds

    def labels_of(self, batch: np.ndarray) -> Any:
        Timed.now += self.seconds
        return np.zeros(2, np.int64)

    def describe(self) -> dict[str, Any]:
        return {"engine": f"timed {self.seconds}", "precision": "float32"}


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
    monkeypatch.setitem(ENGINES, "torch", lambda *_, **__: built.append("torch") or Timed(0.0))
    with caplog.at_level(logging.WARNING, "arquant"):
        make_engine(Classifier(Opaque(), num_classes=3, input_shape=(3, 4, 4)), input_kind="levels", device="cpu")
    assert built == ["torch"]
    assert "OpenVINO cannot convert" in caplog.text


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


@pytest.mark.parametrize(("torch_seconds", "chosen"), [(0.001, "timed 0.001"), (0.01, "timed 0.004")])
def test_many_votes_are_measured_once(monkeypatch: pytest.MonkeyPatch, torch_seconds: float, chosen: str) -> None:
    for kind, seconds in (("torch", torch_seconds), ("openvino", 0.004)):
        monkeypatch.setitem(ENGINES, kind, lambda *_, seconds=seconds, **__: Timed(seconds))
    monkeypatch.setattr(choice, "_measured", {})
    for _ in range(2):
        engine = make_engine(linear(), input_kind="levels", device="cpu", votes=10**7)
        assert engine.describe()["engine"] == chosen
        engine.close()
    assert len(choice._measured) == 1


def test_faster_compares_throughput() -> None:
    quick, slow = Timed(0.001), Timed(0.01)
    assert quick.images_per_second() == pytest.approx(2000)
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


class Logarithm(nn.Module):
    """NaN for images that are negative on average."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x.mean((1, 2, 3)))[:, None] * torch.arange(1.0, 4.0)


@pytest.mark.parametrize("kind", ["torch", "openvino", "onnxruntime"])
def test_nan_is_no_class_in_any_engine(kind: str) -> None:
    classifier = Classifier(Logarithm(), num_classes=3, input_shape=(1, 2, 2))
    engine = make_engine(classifier, kind=kind, batch=4, input_kind="unit", threads=1)
    batch = np.array([0.5, -0.5, 3.0, -1.0], np.float32).reshape(4, 1, 1, 1).repeat(2, 2).repeat(2, 3)
    assert engine.labels_of(batch).tolist() == [0, NO_CLASS, 2, NO_CLASS]
    engine.close()
