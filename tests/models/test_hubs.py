"""timm and torchvision by name. Nothing is downloaded: the hubs are made unreachable."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from arquant.base.errors import InputError, MissingExtraError
from arquant.loading.models import load_model
from arquant.models import optional
from arquant.models.optional import hub_mode, import_timm, import_torchvision


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError("no network in tests")

    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.hub._hub_dir", str(tmp_path))


def test_timm_brings_its_configuration() -> None:
    model = load_model("timm:test_vit", weights_required=False)
    config = import_timm().data.resolve_model_data_config(model.module)
    assert model.input_shape == config["input_size"]
    assert model.mean.flatten().tolist() == pytest.approx(config["mean"])
    assert model.std.flatten().tolist() == pytest.approx(config["std"])
    assert (model.num_classes, model.bounds) == (1000, (0.0, 1.0))
    assert load_model("timm:test_vit", weights_required=False).fingerprint() == model.fingerprint()


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_timm_at_another_size(name: str) -> None:
    model = load_model(f"timm:{name}", weights_required=False, input_shape=(3, 64, 64), num_classes=7)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)
    grey = load_model(f"timm:{name}", weights_required=False, input_shape=(1, 64, 64), mean=[0.5], std=[0.5])
    assert grey(torch.zeros(1, 1, 64, 64)).shape == (1, 1000)


def test_timm_networks_that_take_the_side_of_a_square_alone() -> None:
    model = load_model("timm:efficientvit_m0", weights_required=False, input_shape=(3, 192, 192), num_classes=3)
    assert model(torch.zeros(1, 3, 192, 192)).shape == (1, 3)


def test_torchvision_brings_its_configuration() -> None:
    model = load_model("torchvision:squeezenet1_1", weights_required=False, num_classes=12)
    assert (model.num_classes, model.input_shape) == (12, (3, 224, 224))
    assert model.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    same = load_model("torchvision:squeezenet1_1", weights_required=False, num_classes=12)
    assert same.fingerprint() == model.fingerprint()


@pytest.mark.filterwarnings("ignore:auxiliary heads")
def test_a_network_without_its_weights_is_the_function_that_it_is_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision turns `transform_input` on, and takes auxiliary heads out, only where it loads its own weights."""
    models = import_torchvision().models
    bare = load_model("torchvision:googlenet", weights_required=False, input_shape=(3, 64, 64))
    state = bare.module.state_dict()
    monkeypatch.setattr(type(models.get_model_weights("googlenet").DEFAULT), "get_state_dict", lambda *_, **__: state)
    whole = load_model("torchvision:googlenet", input_shape=(3, 64, 64))
    assert whole.fingerprint() == bare.fingerprint()
    assert bare.module.transform_input


def test_state_dict_of_a_hub_network(tmp_path: Path) -> None:
    network = import_timm().create_model("test_resnet", num_classes=5)
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": {f"module.{name}": value for name, value in network.state_dict().items()}}, path)
    model = load_model(path, arch="timm:test_resnet")
    assert model.num_classes == 5
    assert all(torch.equal(value, model.module.state_dict()[name]) for name, value in network.state_dict().items())


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("spec", ["timm:test_vit", "torchvision:squeezenet1_1", "timm:hf-hub:some/model"])
def test_unreachable_hubs_say_how_to_go_on(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    with pytest.raises(InputError, match=rf"public weights of {spec} cannot be had .*FILE.safetensors --arch {spec}"):
        load_model(spec)
    assert sum(waited) < 1, "retries must not keep the user waiting"


@pytest.mark.usefixtures("no_network")
def test_hub_mode_is_restored() -> None:
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    with hub_mode():
        assert constants.HF_HUB_OFFLINE
    assert before == constants.HF_HUB_OFFLINE


def test_other_classes_than_the_public_weights_have() -> None:
    with pytest.raises(InputError, match=r"1000 classes, not 10; .*--classes 10"):
        load_model("torchvision:resnet18", num_classes=10)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("timm:resnet5o", "did you mean .*timm:resnet50"),
        ("timm:zzzzzzzzzz", r"timm knows \d+"),
        ("torchvision:resnet51", "did you mean .*torchvision:resnet50"),
        ("torchvision:fasterrcnn_resnet50_fpn", "torchvision has no model"),
    ],
)
def test_unknown_names(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(spec)


@pytest.mark.parametrize(("package", "extra"), [("timm", "timm"), ("torchvision", "vision")])
def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch, package: str, extra: str) -> None:
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=rf"arquant\[{extra}\]"):
        load_model(f"{package}:resnet18")


def test_operators_are_declared_only_where_they_are_missing() -> None:
    import_torchvision()
    declared = len(optional._libraries)
    optional._define_torchvision_operators()
    assert optional._has_operator("nms")
    assert len(optional._libraries) == declared <= 1
