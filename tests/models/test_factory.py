"""Models of the user's own code."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from arquant.base.errors import InputError, MismatchError
from arquant.loading.models import load_model
from arquant.models.factory import is_factory

SOURCE = """
import torch
from torch import nn
from arquant.models.classifier import Classifier

class Net(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.fc = nn.Linear(12, classes)
    def forward(self, x):
        return self.fc(x.flatten(1))

class Shop:
    make = staticmethod(Net)

ready = Net(6)
number = 3

def classifier():
    return Classifier(Net(), num_classes=4, input_shape=(3, 2, 2), mean=(0.5,), std=(0.5,))
def nothing(): return 3
def broken(): raise KeyError("weights")
def needs(argument): return Net(argument)
def tuple_net():
    net = Net(); net.register_forward_hook(lambda m, i, o: (o, o)); return net
def odd_net():
    net = Net(); net.register_forward_hook(lambda m, i, o: (0, o)); return net
def softmax_net():
    net = Net(); net.register_forward_hook(lambda m, i, o: o.softmax(1)); return net
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a module of the user's in it, which is not on the import path."""
    (tmp_path / "my_models_of_test_factory.py").write_text(SOURCE)
    (tmp_path / "bad_of_test_factory.py").write_text("import numpy\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    for name in ("my_models_of_test_factory", "bad_of_test_factory"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def spec(name: str) -> str:
    return f"my_models_of_test_factory:{name}"


@pytest.mark.parametrize(("name", "classes"), [("Net", 4), ("Shop.make", 4), ("ready", 6)])
def test_bare_module(name: str, classes: int) -> None:
    path = list(sys.path)
    model = load_model(spec(name), input_shape=(3, 2, 2))
    assert (model.num_classes, model.input_shape, model.name) == (classes, (3, 2, 2), spec(name))
    assert sys.path == path
    x = torch.rand(5, 3, 2, 2)
    torch.testing.assert_close(model(x), model.module(x), msg="a factory's module normalises itself")


def test_random_weights_are_always_the_same() -> None:
    first = load_model(spec("Net"), input_shape=(3, 2, 2))
    assert load_model(spec("Net"), input_shape=(3, 2, 2)).fingerprint() == first.fingerprint()


def test_options_apply_to_a_bare_module() -> None:
    model = load_model(spec("Net"), input_shape=(3, 2, 2), num_classes=4, mean=[0.5], std=[0.25], bounds=(0, 2))
    x = torch.rand(5, 3, 2, 2)
    torch.testing.assert_close(model(x), model.module((x - 0.5) / 0.25))
    assert model.bounds == (0.0, 2.0)


def test_classifier_is_taken_as_it_is() -> None:
    model = load_model(spec("classifier"), num_classes=4)
    assert (model.num_classes, model.input_shape, float(model.mean[0])) == (4, (3, 2, 2), 0.5)
    with pytest.raises(InputError, match="its own normalisation"):
        load_model(spec("classifier"), mean=[0.5])
    with pytest.raises(MismatchError, match="--classes 4, not 5"):
        load_model(spec("classifier"), num_classes=5)
    with pytest.raises(MismatchError, match="--bounds"):
        load_model(spec("classifier"), bounds=(0, 255))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Net", {}, "--input 3,32,32"),
        ("Net", {"input_shape": (3, 4, 4)}, r"does not accept images of shape \(3, 4, 4\)"),
        ("Net", {"input_shape": (3, 2, 2), "num_classes": 5}, r"expected logits of shape \(2, 5\)"),
        ("odd_net", {"input_shape": (3, 2, 2)}, "returned tuple for 2 images"),
        ("nothing", {}, "returned a int"),
        ("number", {}, "is a int; name a function"),
        ("broken", {}, "KeyError: 'weights'"),
        ("needs", {}, "without arguments: TypeError"),
        ("absent", {}, "cannot find 'absent'"),
        ("Shop.absent", {}, "cannot find 'Shop.absent'"),
    ],
)
def test_what_goes_wrong_is_said(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(spec(name), **options)  # type: ignore[arg-type]


def test_modules_that_cannot_be_imported() -> None:
    with pytest.raises(InputError, match=r"No module named 'absent_package'.*current folder"):
        load_model("absent_package.models:net")
    with pytest.raises(InputError, match=r"bad_of_test_factory.*ZeroDivisionError"):
        load_model("bad_of_test_factory:net")
    with pytest.raises(InputError, match="did you mean timm:resnet18"):
        load_model("tim:resnet18")


def test_state_dict_of_a_factory(folder: Path) -> None:
    weights = {"module.fc.weight": torch.ones(4, 12), "module.fc.bias": torch.arange(4.0)}
    torch.save({"state_dict": weights}, folder / "weights.pt")
    model = load_model("weights.pt", arch=spec("Net"), input_shape=(3, 2, 2))
    assert model(torch.zeros(1, 3, 2, 2)).tolist() == [[0.0, 1.0, 2.0, 3.0]]
    inside = load_model("weights.pt", arch=spec("classifier"))
    assert inside(torch.full((1, 3, 2, 2), 0.5)).tolist() == [[0.0, 1.0, 2.0, 3.0]]


@pytest.mark.parametrize("text", ["a:b", "a.b.c:d", "a_1.b:c.d", "Pkg:F"])
def test_is_factory(text: str) -> None:
    assert is_factory(text)


@pytest.mark.parametrize("text", ["a", "a:", ":b", "a:b:c", "a/b:c", "1a:b", "a b:c", "resnet20:sigma=0.5", "a..b:c"])
def test_is_not_a_factory(text: str) -> None:
    assert not is_factory(text)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tuple_net", {}, "returns a tuple"),
        ("softmax_net", {}, "returns probabilities"),
        ("Net", {"mean": (0.5,)}, "mean was stated without std"),
        ("Net", {"mean": (116.0,), "std": (60.0,)}, "mean 116 lies outside the pixel values 0..1"),
    ],
)
def test_what_is_hardly_meant_is_warned_of(
    name: str, options: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_model(spec(name), input_shape=(3, 2, 2), **options).num_classes == 4
    assert said in caplog.text
    caplog.clear()
    load_model(spec("Net"), input_shape=(3, 2, 2), mean=(116.0,), std=(60.0,), bounds=(0, 255))
    assert not caplog.records
