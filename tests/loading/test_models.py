"""Every spelling of MODEL, and the errors of those that are none."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from arquant.base.errors import InputError, MismatchError
from arquant.loading.models import as_classifier, has_weights, load_model
from arquant.models.architectures.registry import build_architecture
from arquant.models.classifier import Classifier
from arquant.models.options import Options
from arquant.models.weights import save_weights


def fake_reader(monkeypatch: pytest.MonkeyPatch, function: str, calls: list[Any]) -> None:
    """Stand in for a function `module.name` that reads a kind of file, recording its calls."""

    def load(*arguments: object, **options: object) -> Classifier:
        calls.append((arguments, options))
        return build_architecture("resnet20", Options())

    monkeypatch.setattr(f"arquant.{function}", load)


def test_bare_names_need_permission() -> None:
    model = load_model("resnet20", weights_required=False)
    assert (model.name, model.num_classes, model.input_shape, model.training) == ("resnet20", 10, (3, 32, 32), False)
    with pytest.raises(InputError, match=r"'resnet20' is a network without weights.*FILE.pt --arch resnet20"):
        load_model("resnet20")


def test_a_network_alone_has_no_weights(tmp_path: Path) -> None:
    alone = ("resnet20", "timm:resnet18", "torchvision:resnet18", "package.module:factory")
    assert not any(has_weights(spec) for spec in alone)
    assert all(has_weights(spec) for spec in ("resnet20:sigma=0.5", "weights.pt", str(tmp_path), tmp_path))


def test_a_classifier_is_taken_as_it_is_but_checked() -> None:
    model = load_model("resnet20", weights_required=False)
    assert as_classifier(model) is model
    assert as_classifier("resnet20", weights_required=False).fingerprint() == model.fingerprint()
    with pytest.raises(InputError, match="mean: model 'resnet20' is a Classifier"):
        as_classifier(model, mean=(0.5, 0.5, 0.5))
    with pytest.raises(InputError, match=r"got a CifarResNet; wrap a module: arquant\.Classifier"):
        as_classifier(model.module)  # type: ignore[arg-type]
    with torch.no_grad():
        model.module.fc.weight[0] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        as_classifier(model)


def test_options_of_a_name() -> None:
    model = load_model(
        "resnet20", weights_required=False, num_classes=100, input_shape=[3, 64, 64], mean=[0.5], bounds=(0, 255)
    )
    assert (model.num_classes, model.input_shape, model.bounds) == (100, (3, 64, 64), (0.0, 255.0))
    assert model.mean.flatten().tolist() == [0.5] * 3
    with pytest.raises(InputError, match=r"does not accept images of shape \(1, 32, 32\)"):
        load_model("resnet20", weights_required=False, input_shape=(1, 32, 32), mean=[0.5], std=[0.5])
    with pytest.raises(InputError, match="at least 2 classes, got 1"):
        load_model("resnet20", weights_required=False, num_classes=1)
    with pytest.raises(InputError, match=r"input shape .* got \(3, 32\)"):
        load_model("resnet20", weights_required=False, input_shape=(3, 32))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet2O", "did you mean .*resnet20.*timm:NAME, torchvision:NAME or package.module:factory"),
        ("vit-tiny", "did you mean .*vit_tiny"),
        ("mobilnet", "did you mean .*mobilenet"),
        ("nonsense", "unknown model 'nonsense': A model is a name"),
        ("resnet20:sigma=7", "no weights are shipped for 'resnet20:sigma=7'"),
        ("", "unknown model|no model.safetensors"),
        ("runs/absent.safetensors", "no file runs/absent.safetensors"),
        ("absent.onnx", "no file absent.onnx"),
    ],
)
def test_unknown_spellings(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(spec)


def test_arch_goes_with_files_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--arch names the network of a state-dict file; 'resnet20' is not a file"):
        load_model("resnet20", arch="resnet20")
    path = tmp_path / "weights.pt"
    torch.save(build_architecture("resnet20", Options()).module.state_dict(), path)
    with pytest.raises(InputError, match=r"name its network with --arch: resnet20, .*timm:NAME"):
        load_model(path)
    with pytest.raises(InputError, match=r"unknown model 'resnet2': did you mean .*resnet20"):
        load_model(path, arch="resnet2")


def test_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"has no model.safetensors"):
        load_model(tmp_path)
    classifier = build_architecture("resnet20", Options())
    save_weights(tmp_path / "model.safetensors", classifier, arch="resnet20")
    assert load_model(str(tmp_path)).fingerprint() == classifier.fingerprint()
    monkeypatch.chdir(tmp_path.parent)
    assert load_model(tmp_path.name).name == tmp_path.name


def test_a_search_with_several_budgets_names_its_models(tmp_path):
    point = tmp_path / "points" / "bops-3bit"
    point.mkdir(parents=True)
    (point / "model.safetensors").touch()
    with pytest.raises(InputError, match=r"name one of .*bops-3bit"):
        load_model(str(tmp_path))


def test_a_folder_does_not_hide_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resnet20").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_model("resnet20", weights_required=False).name == "resnet20"
    with pytest.raises(InputError, match="folder resnet20 has no"):
        load_model("./resnet20")


def test_artifacts_go_to_their_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    fake_reader(monkeypatch, "loading.models.load_artifact", calls)
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(1)}, path, {"schema": "arquant.artifact", "version": "1"})
    assert load_model(tmp_path).name == str(tmp_path)
    assert load_model(path, num_classes=10).num_classes == 10
    assert [arguments for arguments, _ in calls] == [(path,), (path,)]
    with pytest.raises(InputError, match="its own normalisation"):
        load_model(path, mean=[0.5])
    with pytest.raises(MismatchError, match=r"--input \(3, 32, 32\), not \(3, 8, 8\)"):
        load_model(path, input_shape=(3, 8, 8))


@pytest.mark.parametrize("name", ["model.onnx", "model.xml"])
def test_engine_files_go_to_their_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls: list[Any] = []
    fake_reader(monkeypatch, "engines.files.load_file_classifier", calls)
    path = tmp_path / name
    path.write_bytes(b"x")
    assert load_model(path, num_classes=10, mean=[0.5]).name == str(path)
    [(arguments, options)] = calls
    assert arguments == (path,)
    expected = {"mean": (0.5,), "std": None, "bounds": (0.0, 1.0), "input_shape": None, "num_classes": 10}
    assert options == expected


def test_training_checkpoints_load(tmp_path: Path) -> None:
    classifier = build_architecture("resnet20", Options())
    tensors = {f"model.{name}": value for name, value in classifier.state_dict().items()}
    path = tmp_path / "checkpoint.safetensors"
    save_file({**tensors, "momentum.0": torch.ones(3)}, path, {"schema": "arquant.training", "version": "1"})
    assert load_model(path, arch="resnet20").fingerprint() == classifier.fingerprint()


def test_importing_is_light() -> None:
    code = "import sys, arquant.loading.models; print([m for m in ('timm', 'torchvision') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_options_that_contradict_a_file_of_weights_are_refused() -> None:
    own = load_model("resnet20:sigma=0.5")
    same = [round(float(value), 4) for value in own.mean.flatten()]
    assert load_model("resnet20:sigma=0.5", mean=same, input_shape=(3, 32, 32)).fingerprint() == own.fingerprint()
    for options, said in (
        ({"mean": (0.1, 0.2, 0.3)}, "not 0.1,0.2,0.3; leave it out"),
        ({"std": (0.5,)}, "has --std"),
        ({"input_shape": (3, 64, 64)}, "leave out --input"),
    ):
        with pytest.raises(MismatchError, match=said):
            load_model("resnet20:sigma=0.5", **options)
