"""The classifier: bounds and normalisation inside, what `check` refuses, what the fingerprint depends on."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import quantize


def linear(**options: Any) -> Classifier:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    return Classifier(module, **{"num_classes": 4, "input_shape": (3, 2, 2), **options})


def test_normalisation_is_inside_and_in_the_units_of_the_bounds() -> None:
    plain, byte = linear(mean=(0.5, 0.4, 0.3), std=(0.2,) * 3), linear(
        mean=(127.5, 102.0, 76.5), std=(51.0,) * 3, bounds=(0, 255)
    )  # fmt: skip
    unit = torch.rand(5, 3, 2, 2)
    normalised = (unit - torch.tensor([0.5, 0.4, 0.3]).reshape(3, 1, 1)) / 0.2
    torch.testing.assert_close(plain(plain.from_unit(unit)), plain.module(normalised))
    torch.testing.assert_close(byte(byte.from_unit(unit)), plain(unit), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"num_classes": 1}, "num_classes=1"),
        ({"input_shape": (3, 2)}, r"\(3, 2\)"),
        ({"bounds": (1, 0)}, r"\(1, 0\)"),
        ({"mean": (0.5, 0.5)}, "mean has 2 values for 3 channels"),
        ({"std": (1.0, 0.0, 1.0)}, "std must be positive"),
    ],
)
def test_what_cannot_be_a_classifier(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        linear(**wrong)


class Answering(nn.Module):
    """Returns whatever it is told to."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (torch.zeros(2, 5), r"returned \(2, 5\) for 2 images, expected logits of shape \(2, 4\); .* state --classes 5"),
        (torch.zeros(8), r"returned \(8,\).*; wrap the model"),
        ((None, torch.zeros(2, 4)), r"returned tuple.*class Logits\(nn.Module\)"),
        ({"a": torch.zeros(2, 4), "b": torch.zeros(2, 4)}, "returned dict"),
        (torch.full((2, 4), float("nan")), "NaN or infinite logits"),
        (RuntimeError("too small"), r"does not accept images of shape \(3, 2, 2\).*too small"),
    ],
)
def test_check_refuses_what_is_no_logits(answer: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        Classifier(Answering(answer), num_classes=4, input_shape=(3, 2, 2)).check()


@pytest.mark.parametrize(
    "answer",
    [
        (torch.eye(4)[:2], None),
        [torch.eye(4)[:2], torch.zeros(2, 4)],
        {"logits": torch.eye(4)[:2], "hidden": torch.zeros(2, 9)},
        {"answer": torch.eye(4)[:2], "map": torch.zeros(2, 4, 4)},
        SimpleNamespace(logits=torch.eye(4)[:2], loss=None),
    ],
)
def test_plain_logits_are_found_in_what_a_network_returns(answer: Any) -> None:
    classifier = Classifier(Answering(answer), num_classes=4, input_shape=(3, 2, 2))
    assert torch.equal(classifier(torch.zeros(2, 3, 2, 2)), torch.eye(4)[:2])
    assert torch.equal(classifier.train()(torch.zeros(2, 3, 2, 2)), torch.eye(4)[:2])


def test_check_refuses_nan_weights_and_keeps_the_mode() -> None:
    model = linear()
    model.train().check()
    assert model.training
    with torch.no_grad():
        model.module[1].bias[2] = float("inf")  # type: ignore[index]
    with pytest.raises(InputError, match=r"module\.1\.bias holds 1 NaN or infinite values of 4"):
        model.check()


def test_the_fingerprint_is_that_of_the_function() -> None:
    first = linear().fingerprint()
    assert linear(name="another name").fingerprint() == first
    changed = linear()
    with torch.no_grad():
        changed.module[1].weight[0, 0] += 1e-6  # type: ignore[index]
    others = [changed, linear(mean=(0.5,)), linear(std=(2.0,)), linear(bounds=(0, 255)), linear(input_shape=(12, 1, 1))]
    assert len({first, *(other.fingerprint() for other in others)}) == 6


def test_the_fingerprint_holds_no_address_of_this_process() -> None:
    class Applied(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.function(x))

        def extra_repr(self) -> str:
            return repr(self.function)

    def made() -> Classifier:
        torch.manual_seed(0)
        network = nn.Sequential(Applied(lambda x: x.flatten(1)[:, :4]), nn.Linear(4, 4))
        return Classifier(network, num_classes=4, input_shape=(3, 2, 2))

    first, second = made(), made()
    assert repr(first.module) != repr(second.module)
    assert first.fingerprint() == second.fingerprint()
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 2, 2), dtype=np.uint8)
    assert len({quantize(each, 4, images, sigma=0.25).fingerprint() for each in (first, second)}) == 1


class Scaled(nn.Module):
    """A network whose function depends on what its text and its weights do not show."""

    def __init__(self, scale: float, shift: float = 0.0, offsets: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.scale, self.offsets = scale, list(offsets)
        self.register_buffer("shift", torch.tensor([shift]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x.flatten(1)[:, :4] + self.get_buffer("shift") + sum(self.offsets)


class Squared(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 2


def test_the_fingerprint_sees_a_users_code_and_attributes() -> None:
    def of(module: nn.Module) -> str:
        return Classifier(nn.Sequential(module), num_classes=4, input_shape=(3, 2, 2)).fingerprint()

    variants = [Scaled(1.0), Scaled(-1.0), Scaled(1.0, 0.5), Scaled(1.0, offsets=(1.0,)), Squared(1.0)]
    assert of(Scaled(1.0)) == of(Scaled(1.0))
    assert len({of(module) for module in variants}) == len(variants)


class Normalised(nn.Module):
    """Keeps its numbers, and what it applies, as plain attributes."""

    def __init__(self, mean: float, function: Any = torch.relu) -> None:
        super().__init__()
        self.mean, self.function = torch.tensor([mean]), function

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.function(x - self.mean))


def test_the_fingerprint_sees_tensors_functions_and_what_torch_does_not_print() -> None:
    def of(make: Callable[[], nn.Module]) -> str:
        torch.manual_seed(0)
        return Classifier(nn.Sequential(make()), num_classes=4, input_shape=(3, 2, 2)).fingerprint()

    variants: list[Callable[[], nn.Module]] = [
        lambda: Normalised(0.0), lambda: Normalised(0.5), lambda: Normalised(0.0, torch.tanh),
        lambda: nn.MultiheadAttention(16, 2), lambda: nn.MultiheadAttention(16, 4),
        lambda: nn.TransformerEncoderLayer(16, 2), lambda: nn.TransformerEncoderLayer(16, 2, norm_first=True),
        lambda: nn.TransformerEncoderLayer(16, 2, activation=nn.functional.gelu),
    ]  # fmt: skip
    assert [of(make) for make in variants] == (found := [of(make) for make in variants])
    assert len(set(found)) == len(variants)


def test_the_fingerprint_sees_an_edited_forward() -> None:
    def made(body: str) -> nn.Module:
        names: dict[str, Any] = {"nn": nn, "__name__": "mine"}
        exec(f"class Net(nn.Module):\n    def forward(self, x):\n        return {body}", names)
        return names["Net"]()  # type: ignore[no-any-return]

    prints = [
        Classifier(made(body), num_classes=4, input_shape=(3, 2, 2)).fingerprint()
        for body in ("x.flatten(1)[:, :4]", "x.flatten(1)[:, :4]", "-x.flatten(1)[:, :4]")
    ]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("what", ["mean", "std"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_normalisation_must_be_finite(what: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{what} must be finite"):
        linear(**{what: (value,)})


class Batchwise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)).flatten(1)[:, :4]


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :4] + torch.randn(len(x), 4)


def test_check_refuses_answers_that_depend_on_the_batch() -> None:
    with pytest.raises(InputError, match="another image stands beside it"):
        Classifier(Batchwise(), num_classes=4, input_shape=(3, 2, 2)).check()
    Classifier(Random(), num_classes=4, input_shape=(3, 2, 2)).check()


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_check_refuses_networks_that_pytorch_has_quantized() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    quantized = torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, torch.qint8)
    with pytest.raises(InputError, match=r"1\.\S+ is no tensor but a \w+, as in networks that PyTorch has quantized"):
        Classifier(quantized, num_classes=4, input_shape=(3, 2, 2)).check()


class Viewing(nn.Module):
    """Works for contiguous images only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(x.view(x.size(0), -1))


def test_the_layout_is_one_that_the_network_takes() -> None:
    assert Classifier(Viewing(), num_classes=4, input_shape=(3, 4, 4)).memory_format == torch.contiguous_format
    flat = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(64, 4))
    assert Classifier(flat, num_classes=4, input_shape=(3, 4, 4)).memory_format == torch.channels_last


def test_a_layout_in_which_training_crashes_is_not_taken() -> None:
    def strided(channels: int, kernel: int = 1) -> Classifier:
        layers = (nn.Conv2d(3, channels, 1), nn.Conv2d(channels, 4, kernel, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return Classifier(nn.Sequential(*layers), num_classes=4, input_shape=(3, 8, 8))

    assert strided(12).memory_format == torch.contiguous_format
    assert strided(16).memory_format == torch.channels_last
    assert strided(12, kernel=3).memory_format == torch.channels_last


def test_narrow_strided_shortcuts_train_without_a_crash() -> None:
    program = """
import torch
from torch import nn
from arquant import Classifier
layers = nn.Conv2d(3, 12, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
model = Classifier(nn.Sequential(*layers), num_classes=12, input_shape=(3, 64, 64))
model.to(memory_format=model.memory_format)
for _ in range(8):
    model(torch.rand(8, 3, 64, 64).contiguous(memory_format=model.memory_format)).square().sum().backward()
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_weights_of_another_precision_are_named() -> None:
    halved = Classifier(Viewing().half(), num_classes=4, input_shape=(3, 4, 4))
    with pytest.raises(InputError, match=r"its weights are float16: give it in float32 \(model\.float\(\)\)"):
        halved.check()
