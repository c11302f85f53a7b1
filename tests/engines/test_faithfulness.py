"""Graphs that are another function than their network's are found out before they vote."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.engines.choice import make_engine
from arquant.engines.exporting import export_model
from arquant.engines.files import load_file_classifier
from arquant.engines.openvino import OpenVinoEngine
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import quantize
from tests.support.networks_to_lower import float_classifier


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


@pytest.mark.parametrize("kind", ["openvino", "onnxruntime"])
def test_nor_is_one_of_other_numbers_where_all_images_have_one_answer(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = float_classifier("resnet")
    with torch.no_grad():
        next(m for m in reversed(list(classifier.modules())) if isinstance(m, nn.Linear)).bias[3] += 3.0
    made = quantize(classifier, 8, np.random.default_rng(0).integers(0, 256, (16, 3, 8, 8), dtype=np.uint8), sigma=0.25)
    engine = make_engine(made, kind=kind, input_kind="levels", batch=8)
    right = type(engine).logits_of
    engine.close()
    for factor, refused in ((0.95, False), (0.8, True)):
        monkeypatch.setattr(type(engine), "logits_of", lambda self, batch, by=factor: by * right(self, batch))
        if refused:
            with pytest.raises(InputError, match=rf"{kind} computes other logits than model .*, by 20% of the largest"):
                make_engine(made, kind=kind, input_kind="levels", batch=8)
        else:
            make_engine(made, kind=kind, input_kind="levels", batch=8).close()


def test_a_file_that_openvino_compiles_wrongly_for_several_threads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = load_file_classifier(export_model(float_classifier("resnet"), tmp_path / "model.onnx").path)
    for threads in (1, 2):
        make_engine(file, kind="openvino", input_kind="levels", threads=threads).close()
    right = OpenVinoEngine.labels_of

    def wrong(self: OpenVinoEngine, batch: np.ndarray) -> Any:
        return (right(self, batch) + (self.threads > 1)) % 10

    monkeypatch.setattr(OpenVinoEngine, "labels_of", wrong)
    make_engine(file, kind="openvino", input_kind="levels", threads=1).close()
    with pytest.raises(InputError, match="compiled the file wrongly for several threads; use --threads 1"):
        make_engine(file, kind="openvino", input_kind="levels", threads=2)
