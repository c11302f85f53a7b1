"""Where PyTorch's exporter fails, the message names the operation, the place and the way round, in one line."""

from pathlib import Path

import pytest
import torch

from arquant.base.errors import InputError
from arquant.engines.export_errors import export_refusal
from arquant.engines.exporting import export_model
from arquant.models.classifier import Classifier


class Pooled(torch.nn.Module):
    """Pools 8x8 pixels to 3x3, which ONNX has no operation for."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(27, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.nn.functional.adaptive_max_pool2d(x, (3, 3)).flatten(1))


class Transformed(torch.nn.Module):
    """Has complex values within."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.fft.rfft2(x).abs().mean((2, 3)))


@pytest.mark.parametrize(("network", "operation"), [(Pooled(), "adaptive_max_pool2d"), (Transformed(), "fft_rfft2")])
def test_the_operation_is_named_and_nothing_is_printed(
    network: torch.nn.Module, operation: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    classifier = Classifier(network, num_classes=2, input_shape=(3, 8, 8), name="own")
    with pytest.raises(InputError) as caught:
        export_model(classifier, tmp_path / "model.onnx")
    message = str(caught.value)
    assert operation in message
    assert "'own'" in message
    assert "--engine torch" in message
    assert "\n" not in message
    assert "feel free" not in message
    assert capfd.readouterr().out == ""  # the exporter prints its graph there, past Python


def test_graphs_and_stacks_are_left_out_but_for_the_place() -> None:
    error = RuntimeError(
        "Unsupported: export of operator some_pool, input size not accessible. Please feel free to request support  "
        "[Caused by the value '7 defined in (%7 : Float(*, 2, strides=[8, 4]))\n"
        "    (node defined in /venv/lib/torch/nn/functional.py(1769): relu\n/nets/own.py(126): forward\n"
        "/nets/main.py(3): <module>\n)\n    Inputs:\n    )  (type 'Tensor')"
    )
    message = export_refusal("own", error)
    assert "some_pool, input size not accessible (after /nets/own.py, line 126); every" in message
    assert "Tensor" not in message
    assert "strides" not in message


def test_an_error_of_several_lines_is_joined() -> None:
    message = export_refusal(
        "own", TypeError("'NoneType' object is not subscriptable \n(Occurred when translating col2im).")
    )
    assert "not subscriptable (Occurred when translating col2im); every other command" in message


def test_an_error_without_words_has_a_name() -> None:
    assert "to ONNX: NotImplementedError;" in export_refusal("own", NotImplementedError())
