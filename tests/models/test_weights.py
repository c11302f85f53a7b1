"""Our own weights files: round trip, header, shipped ones, and damage."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from arquant.base.errors import ArquantError, FileFormatError, InputError, MismatchError
from arquant.loading.models import load_model
from arquant.models import weights
from arquant.models.architectures.registry import ARCHITECTURES, Architecture, build_architecture
from arquant.models.checkpoints import read_checkpoint
from arquant.models.classifier import CIFAR10_MEAN, CIFAR10_STD, Classifier
from arquant.models.options import Options
from arquant.models.weights import WeightsInfo, save_weights, shipped_file, shipped_models
from tests.support.damage import FUZZ
from tests.support.small_search import CLASSES, SHAPE, SIGMA, small_module

TINY_SHAPE = (1, 2, 2)


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    """A network small enough to fuzz its file."""
    with pytest.MonkeyPatch.context() as patch:
        build = lambda classes, shape: nn.Sequential(nn.Flatten(), nn.Linear(4, classes))  # noqa: E731
        patch.setitem(ARCHITECTURES, "tiny", Architecture(build, 3, TINY_SHAPE, (0.5,), (0.25,)))
        yield


def make(path: Path, **options: Any) -> Classifier:
    classifier = build_architecture("tiny", Options(**options)).eval()
    save_weights(path, classifier, arch="tiny", sigma=0.5, training={"epochs": 64, "data": "abc"})
    return classifier


def rewrite(path: Path, **changes: str | None) -> None:
    metadata = {**read_checkpoint(path).metadata, **changes}
    save_file(load_file(path), path, {key: value for key, value in metadata.items() if value is not None})


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    classifier = make(path, num_classes=5)
    loaded = load_model(path)
    assert loaded.fingerprint() == classifier.fingerprint()
    assert loaded.name == str(path)
    assert not loaded.training
    assert load_model(tmp_path).fingerprint() == classifier.fingerprint()
    assert load_model(str(path), arch="tiny").num_classes == 5
    assert not list(tmp_path.glob("*.part"))


def test_header(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    classifier = build_architecture("resnet20", Options())
    save_weights(path, classifier, arch="cifar_resnet20", sigma=0.25, training={"epochs": 3})
    metadata = read_checkpoint(path).metadata
    assert (metadata["schema"], metadata["version"], metadata["arch"]) == ("arquant.weights", "1", "resnet20")
    assert json.loads(metadata["mean"]) == list(CIFAR10_MEAN)
    info = WeightsInfo.parse(metadata, path)
    assert info == WeightsInfo(
        "resnet20", 10, (3, 32, 32), CIFAR10_MEAN, CIFAR10_STD, sigma=0.25, training={"epochs": 3}
    )


def test_class_names_and_the_fit_of_photos_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    classifier = make(path, num_classes=3)
    assert not {"class_names", "fit"} & read_checkpoint(path).metadata.keys(), "what is unknown is not written"
    before, (classifier.class_names, classifier.fit) = classifier.fingerprint(), (("ä", "b", "c"), "256")
    save_weights(path, classifier, arch="tiny")
    loaded = load_model(path)
    assert (loaded.class_names, loaded.fit) == (("ä", "b", "c"), "256")
    assert loaded.fingerprint() == before
    assert load_model(path, fit="256").fit == "256"
    with pytest.raises(MismatchError, match="fitted by '256', not 'cover'"):
        load_model(path, fit="cover")


def test_bounds_are_kept_and_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    classifier = make(path, bounds=(-1.0, 3.0))
    assert json.loads(read_checkpoint(path).metadata["mean"]) == [1.0]
    pixels = torch.rand(4, *TINY_SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = classifier(4 * pixels - 1)
        torch.testing.assert_close(load_model(path)(pixels), expected)
        torch.testing.assert_close(load_model(path, bounds=(0.0, 255.0))(255 * pixels), expected)


def test_options_that_disagree_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    with pytest.raises(MismatchError, match="holds a tiny, not 'resnet20'"):
        load_model(path, arch="resnet20")
    with pytest.raises(MismatchError, match="has 3 classes, not 4"):
        load_model(path, num_classes=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2"}, "version '2'"),
        ({"arch": "resnet21"}, "'resnet21'"),
        ({"mean": None}, "mean"),
        ({"mean": "[0.5"}, "damaged"),
        ({"input_shape": "[1, 2]"}, "damaged"),
        ({"num_classes": "1e999"}, "damaged"),
        ({"num_classes": "4000000000000"}, "4000000000000 rows"),
        ({"input_shape": "[1, 1000000, 1000000]"}, "input shape"),
        ({"bounds": "[1, 1]"}, "bounds"),
        ({"fit": "crop"}, "valid are cover"),
        ({"class_names": '["a"]'}, "1 class names"),
        ({"std": "[0]"}, "std"),
        ({"mean": "[NaN]"}, "mean must be finite"),
        ({"mean": "[1, 2]"}, "2 values for 1 channels"),
        ({"seen": "[1]"}, "the images that it has seen is damaged"),
        ({"seen": "{"}, "damaged"),
        ({"training": '{"history": 3}'}, "damaged"),
    ],
)
def test_damaged_headers(tmp_path: Path, changes: dict[str, str | None], message: str) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    rewrite(path, **changes)
    with pytest.raises(ArquantError, match=message):
        load_model(path)


def test_a_file_that_does_not_say_what_to_build_is_not_written(tmp_path: Path) -> None:
    classifier = build_architecture("tiny", Options())
    with pytest.raises(InputError, match=r"'weights\.pt' does not say which network"):
        save_weights(tmp_path / "model.safetensors", classifier, arch="weights.pt")


def test_weights_of_a_users_own_module_need_nothing_else(tmp_path: Path) -> None:
    module = small_module()
    classifier = Classifier(module, num_classes=CLASSES, input_shape=SHAPE, mean=[0.4], std=[0.3], bounds=(0, 255))
    path = tmp_path / "model.safetensors"
    save_weights(path, classifier, arch="tests.support.small_search:small_module", sigma=SIGMA)
    with pytest.raises(InputError, match="add --arch tests"):
        load_model(path)
    loaded = load_model(path, bounds=(0.0, 255.0), arch="tests.support.small_search:small_module")
    images = 255 * torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loaded(images), classifier.eval()(images), rtol=1e-4, atol=1e-5)
    assert loaded.arch == "tests.support.small_search:small_module"
    with pytest.raises(MismatchError, match="not 'resnet20'"):
        load_model(path, arch="resnet20")


def test_shipped_models_are_found_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "FOLDER", tmp_path)
    for sigma in ("1.0", "0.25", "0.5"):
        make(tmp_path / f"tiny-sigma{sigma}.safetensors")
    (tmp_path / "notes.safetensors").write_bytes(b"")
    assert shipped_models() == ("tiny:sigma=0.25", "tiny:sigma=0.5", "tiny:sigma=1.0")
    assert shipped_file("tiny", "sigma=.50") == tmp_path / "tiny-sigma0.5.safetensors"
    assert shipped_file("tiny", "sigma=1") == tmp_path / "tiny-sigma1.0.safetensors"
    assert shipped_file("tiny", "sigma=0.3") is shipped_file("tiny", "sigma=x") is shipped_file("tiny", "n=1") is None
    assert load_model("tiny:sigma=0.5").name == "tiny:sigma=0.5"
    for spec in ("tiny:sigma=0.3", "tiny:0.5", "tiny"):
        with pytest.raises(InputError, match=r"tiny:sigma=0.25, tiny:sigma=0.5"):
            load_model(spec)


def test_every_shipped_model_loads() -> None:
    for spec in shipped_models():
        classifier = load_model(spec)
        path = shipped_file(*spec.split(":"))
        assert path is not None
        info = WeightsInfo.parse(read_checkpoint(path).metadata, path)
        assert spec == f"{info.arch}:sigma={info.sigma}"
        assert info.training["recipe"]["sigma"] == info.sigma
        assert classifier.input_shape == info.input_shape
        started = info.training.get("init") is not None
        assert [record["recipe"]["epochs"] for record in info.training.get("history", [])][:1] == [64.0] * started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def intact(folder: Path) -> bytes:
    make(folder / "intact.safetensors")
    return (folder / "intact.safetensors").read_bytes()


@FUZZ
@given(data=st.data())
def test_fuzzed_safetensors_give_clear_errors(data: st.DataObject, intact: bytes, folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(intact)
    kind = data.draw(st.sampled_from(["truncate", "flip", "replace", "swap", "extend"]))
    place = data.draw(st.integers(0, len(content) - 1))
    if kind == "truncate":
        del content[place:]
    elif kind == "flip":
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "replace":
        patch = data.draw(st.binary(min_size=1, max_size=8))
        content[place : place + len(patch)] = patch
    elif kind == "swap":
        content = content[place:] + content[:place]
    else:
        content += data.draw(st.binary(min_size=1, max_size=16))
    path.write_bytes(content)
    with contextlib.suppress(ArquantError):
        load_model(path)


def test_truncation_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(FileFormatError, match=r"model.safetensors is not an intact safetensors file"):
        load_model(path)
