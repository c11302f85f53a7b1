"""Training from other weights: what fits is kept, the rest begins anew, and both are said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import arquant
from arquant.base.errors import InputError, MismatchError
from arquant.loading.initial_weights import find_start
from arquant.loading.models import load_model
from arquant.models.checkpoints import load_fitting, read_checkpoint
from arquant.models.optional import import_torchvision

WEIGHTS = Path(__file__).parents[3] / "shared" / "data" / "weights"
RESNET = "resnet20:sigma=0.5"
NEW_HEAD = ("fc.weight", "fc.bias")


@pytest.fixture(scope="module")
def shipped() -> dict[str, torch.Tensor]:
    return dict(load_model(RESNET).module.state_dict())


@pytest.fixture
def four_classes(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    path = tmp_path / "four.npz"
    np.savez(path, images=rng.integers(0, 256, (16, 3, 32, 32), dtype=np.uint8), labels=np.arange(16) % 4)
    return f"npz:{path}"


def start_of(init: str | Path, model: str = "resnet20", **options: Any) -> Any:
    return find_start(model, "sample", str(init), options)


def test_a_head_of_other_classes_begins_anew(shipped: dict[str, torch.Tensor]) -> None:
    start = start_of(RESNET, num_classes=4)
    found, random = start.classifier.module.state_dict(), load_model("resnet20", num_classes=4, weights_required=False)
    assert start.fresh == NEW_HEAD
    assert all(torch.equal(found[name], shipped[name]) for name in shipped if name not in NEW_HEAD)
    assert all(torch.equal(found[name], random.module.state_dict()[name]) for name in NEW_HEAD)
    assert start.remark() == f"kept from {RESNET}: 99.9% of the parameters; begun anew: fc.weight, fc.bias"
    assert start.seen == load_model(RESNET).seen


def test_weights_that_fit_altogether_need_no_remark(shipped: dict[str, torch.Tensor]) -> None:
    start = start_of(RESNET)
    assert (start.fresh, start.remark()) == ((), None)
    assert start.classifier.fingerprint() == load_model(RESNET).fingerprint()
    assert start.history[-1]["fingerprint"] == start.classifier.fingerprint()


def test_a_backbone_in_half_precision_is_widened(shipped: dict[str, torch.Tensor], tmp_path: Path) -> None:
    file = tmp_path / "backbone.safetensors"
    halves = {f"module.{name}": value.half() for name, value in shipped.items() if name not in NEW_HEAD and value.ndim}
    save_file({**halves, "module.extra.weight": torch.zeros(2)}, file)
    start = start_of(file)
    kept = start.classifier.module.state_dict()["conv1.weight"]
    assert kept.dtype == torch.float32
    assert torch.equal(kept, shipped["conv1.weight"].half().float())
    assert start.fresh == NEW_HEAD
    assert "not used: module.extra.weight" in start.remark()


def test_a_variance_beyond_half_precision_becomes_its_largest_number(
    shipped: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file, wide = tmp_path / "half.safetensors", {name: value.clone() for name, value in shipped.items() if value.ndim}
    wide["bn1.running_var"][3] = 1e6
    save_file({name: value.half() for name, value in wide.items()}, file)
    start = start_of(file)
    assert float(start.classifier.module.state_dict()["bn1.running_var"][3]) == 65504
    assert start.remark().endswith("cut off at float16's end: bn1.running_var")
    wide["bn1.weight"][0] = 1e6
    save_file({name: value.half() for name, value in wide.items()}, file)
    with pytest.raises(InputError, match=r"bn1\.weight holds 1 NaN or infinite"):
        start_of(file)


def test_fewer_than_half_of_the_parameters_are_refused(shipped: dict[str, torch.Tensor], tmp_path: Path) -> None:
    file, network = tmp_path / "part.safetensors", load_model("resnet20", weights_required=False)
    before = network.fingerprint()
    save_file({name: value for name, value in shipped.items() if not name.startswith("layer3")}, file)
    with pytest.raises(MismatchError, match=r"layer3\.0\.conv1\.weight.*, 2\d% of the parameters fit; half"):
        load_fitting(network.module, read_checkpoint(file), arch="resnet20")
    assert network.fingerprint() == before
    with pytest.raises(MismatchError, match="does not fit resnet20"):
        start_of(file)


def test_the_normalisation_that_weights_belong_to_comes_with_them(
    shipped: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file = tmp_path / "normalised.safetensors"
    inside = {"0.mean": torch.tensor([0.5, 0.5, 0.5]), "0.std": torch.tensor([0.25, 0.25, 0.25])}
    save_file({**{f"1.{name}": value for name, value in shipped.items()}, **inside}, file)
    assert start_of(file).classifier.mean.flatten().tolist() == [0.5, 0.5, 0.5]
    stated = start_of(file, mean=[0.125], std=[1.0]).classifier
    assert stated.mean.flatten().tolist() == [0.125, 0.125, 0.125]


def test_two_sets_of_weights_are_refused() -> None:
    with pytest.raises(InputError, match="both name weights"):
        start_of(RESNET, model="resnet20:sigma=1.0")


def test_a_bare_network_has_no_weights_to_start_from() -> None:
    with pytest.raises(InputError, match="'resnet20' is a network without weights"):
        start_of("resnet20")


def test_public_weights_of_a_hub_lose_their_head(monkeypatch: pytest.MonkeyPatch) -> None:
    models = import_torchvision().models
    public = models.resnet18(num_classes=1000).state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: public)
    start = start_of("torchvision:resnet18", "torchvision:resnet18", num_classes=10, input_shape=(3, 32, 32))
    assert start.fresh == NEW_HEAD
    assert torch.equal(start.classifier.module.conv1.weight, public["conv1.weight"])


def test_public_weights_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no net")

    import_torchvision()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(
        InputError, match=r"torchvision:resnet18 cannot be had \(OSError: no net\); pass a state-dict file"
    ):
        start_of("torchvision:resnet18", "torchvision:resnet18", num_classes=10)


def test_the_average_in_a_checkpoint_is_what_it_loads_as(tmp_path: Path) -> None:
    arquant.train("resnet20", "sample", out=tmp_path, images="first:16", sigma=0.25, steps=2, batch=8, ema=0.9)
    result = load_model(tmp_path).fingerprint()
    assert load_model(tmp_path / "training.safetensors", arch="resnet20").fingerprint() == result
    assert start_of(tmp_path / "training.safetensors").classifier.fingerprint() == result


def test_a_run_goes_on_from_another_and_says_so(four_classes: str, tmp_path: Path) -> None:
    base, out, notes = tmp_path / "base", tmp_path / "on", []
    quick = {"sigma": 0.25, "steps": 2, "batch": 8}
    arquant.train("resnet20", "sample", out=base, images="first:16", **quick)
    options = {**quick, "init": str(base), "preset": "transfer", "lr": 0.01, "backbone_lr": 0.0}
    record = arquant.train("resnet20", four_classes, out=out, note=notes.append, **options)
    assert record["begun_anew"] == list(NEW_HEAD)
    assert len(record["history"]) == 1
    assert notes == [f"kept from {base}: 99.9% of the parameters; begun anew: fc.weight, fc.bias"]
    first, second = (load_model(folder).module for folder in (base, out))
    assert torch.equal(first.conv1.weight, second.conv1.weight), "the backbone learns at rate 0"
    with pytest.raises(InputError, match=r"distill 1 follows .* fc\.weight begins anew"):
        arquant.train("resnet20", four_classes, out=tmp_path / "none", distill=1.0, **options)


def test_training_on_some_of_the_images(four_classes: str, tmp_path: Path) -> None:
    options = {"sigma": 0.25, "steps": 1, "batch": 8, "classes": 4}
    record = arquant.train("resnet20", four_classes, out=tmp_path / "some", train_images=12, **options)
    assert (record["images"], record["recipe"]["images"]) == (12, 12)
    assert json.loads((tmp_path / "some" / "training.json").read_text())["images"] == 12
    with pytest.raises(InputError, match="17 training images were asked for"):
        arquant.train("resnet20", four_classes, out=tmp_path / "many", train_images=17, **options)


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="needs the weights of ../shared")
@pytest.mark.parametrize(
    ("model", "file", "head"),
    [
        ("mobilenetv2", "mobilenetv2_imagenet_backbone", ("classifier.1.weight", "classifier.1.bias")),
        ("resnet50", "resnet50_v1_imagenet_fp16", NEW_HEAD),
    ],
)
def test_public_weights_lose_their_head_only(model: str, file: str, head: tuple[str, ...]) -> None:
    start = start_of(
        WEIGHTS / f"{file}.safetensors", model, num_classes=10, mean=[0.5], std=[0.5], input_shape=(3, 64, 64)
    )
    assert start.fresh == head
