"""State-dict files as other people save them."""

import argparse
import contextlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from arquant.base.errors import ArquantError, FileFormatError, InputError, MismatchError
from arquant.loading.models import load_model
from arquant.models.architectures.resnet_cifar import CifarResNet
from arquant.models.checkpoints import Normalisation, head_classes, load_into, read_checkpoint
from arquant.models.classifier import CIFAR10_MEAN, CIFAR10_STD
from tests.support.damage import FUZZ

IMAGE = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(3)
    return CifarResNet(20).eval()


class NormalizeLayer(nn.Module):
    """As in the smoothing repositories whose normalisation is part of the state-dict."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("means", torch.tensor(mean))
        self.register_buffer("sds", torch.tensor(std))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.means.view(-1, 1, 1)) / self.sds.view(-1, 1, 1)


def prefixed(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in module.state_dict().items()}


def expected_logits(module: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    with torch.no_grad():
        return nn.Sequential(NormalizeLayer(mean, std), module).eval()(IMAGE)


def logits(path: Path, **options: Any) -> Tensor:
    with torch.no_grad():
        return load_model(path, **options)(IMAGE)


@pytest.mark.parametrize("prefix", ["", "module.", "1.", "1.module.", "module.1.", "model.", "_orig_mod.module."])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: weights,
        lambda weights: {"state_dict": weights, "epoch": 90, "optimizer": {"state": {}, "param_groups": []}},
        lambda weights: {"net": weights, "acc": 71.2},
        lambda weights: {"model": {"state_dict": weights}},
    ],
    ids=["plain", "state_dict", "net", "nested"],
)
def test_wrappers_and_prefixes(network: nn.Module, tmp_path: Path, prefix: str, wrap: Callable[[Any], Any]) -> None:
    path = tmp_path / "checkpoint.pth.tar"
    torch.save(wrap(prefixed(network, prefix)), path)
    assert torch.equal(logits(path, arch="cifar_resnet20"), expected_logits(network, CIFAR10_MEAN, CIFAR10_STD))


def test_the_files_own_architecture_is_used(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth.tar"
    torch.save({"epoch": 90, "arch": "cifar_resnet20", "state_dict": prefixed(network, "1.")}, path)
    assert torch.equal(logits(path), expected_logits(network, CIFAR10_MEAN, CIFAR10_STD))
    torch.save({"arch": "cifar_wrn40", "state_dict": prefixed(network, "1.")}, path)
    with pytest.raises(InputError, match="--arch"):
        load_model(path)


@pytest.mark.parametrize("names", [("0.means", "0.sds"), ("normalize.mean", "normalize.std"), ("mu", "sigma")])
def test_stored_normalisation_is_used(network: nn.Module, tmp_path: Path, names: tuple[str, str]) -> None:
    mean, std = (0.5, 0.4, 0.3), (0.25, 0.5, 0.125)
    path = tmp_path / "weights.safetensors"
    prefix = "1.module." if names[0].startswith("0") else "model."
    tensors = {names[0]: torch.tensor(mean), names[1]: torch.tensor(std).view(1, 3, 1, 1)}
    save_file({**prefixed(network, prefix), **tensors}, path)
    torch.testing.assert_close(logits(path, arch="resnet20"), expected_logits(network, mean, std))
    stated = logits(path, arch="resnet20", mean=CIFAR10_MEAN, std=CIFAR10_STD)
    torch.testing.assert_close(stated, expected_logits(network, CIFAR10_MEAN, CIFAR10_STD))


def test_stored_mean_without_a_deviation_only_centres(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({**prefixed(network, "1."), "0.means": torch.tensor([0.5, 0.4, 0.3])}, path)
    torch.testing.assert_close(
        logits(path, arch="resnet20"), expected_logits(network, (0.5, 0.4, 0.3), (1.0, 1.0, 1.0))
    )


def test_load_into_returns_the_normalisation(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(prefixed(network, "1."), path)
    assert load_into(CifarResNet(20), read_checkpoint(path), arch="resnet20") is None
    save_file({**prefixed(network, "1."), "0.mean": torch.tensor([0.5]), "0.std": torch.tensor([0.25])}, path)
    assert load_into(CifarResNet(20), read_checkpoint(path), arch="resnet20") == Normalisation((0.5,), (0.25,))


def test_number_of_classes_comes_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    module = CifarResNet(20, 100)
    torch.save(module.state_dict(), path)
    assert head_classes(module, read_checkpoint(path)) == 100
    assert load_model(path, arch="resnet20").num_classes == 100
    with pytest.raises(MismatchError, match=r"fc.weight is \(100, 64\), not \(10, 64\).*--classes"):
        load_model(path, arch="resnet20", num_classes=10)


def test_old_files_have_no_batch_counters(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    kept = {name: value for name, value in network.state_dict().items() if "num_batches" not in name}
    torch.save(kept, path)
    assert torch.equal(logits(path, arch="resnet20"), expected_logits(network, CIFAR10_MEAN, CIFAR10_STD))


def test_half_precision_weights_become_float(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({n: v.half() if v.is_floating_point() else v for n, v in network.state_dict().items()}, path)
    assert {value.dtype for value in load_model(path, arch="resnet20").parameters()} == {torch.float32}


def test_names_that_do_not_fit(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    weights = network.state_dict()
    torch.save({**{n: v for n, v in weights.items() if not n.startswith("fc")}, "head.scale": torch.ones(1)}, path)
    with pytest.raises(
        MismatchError, match=r"2 of \d+ missing \(fc.weight, fc.bias\); 1 unexpected \(head.scale\).*--arch"
    ):
        load_model(path, arch="resnet20")
    with pytest.raises(MismatchError, match=r"missing \(.*, \.\.\.\)"):
        load_model(path, arch="resnet110")
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(MismatchError, match="no weight of resnet20; its names are like a"):
        load_model(path, arch="resnet20")


def test_two_networks_in_one_file(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({**prefixed(network, "student."), **prefixed(network, "teacher.")}, path)
    with pytest.raises(MismatchError, match=r"several networks \(student\., teacher\.\)"):
        load_model(path, arch="resnet20")


def test_nan_weights_are_refused(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    weights["layer2.1.conv1.weight"][0, 0] = torch.nan
    torch.save(weights, path)
    with pytest.raises(InputError, match=r"layer2.1.conv1.weight holds 9 NaN"):
        load_model(path, arch="resnet20")


@pytest.mark.parametrize("value", [torch.ones(10, dtype=torch.int8), torch.ones(10, dtype=torch.complex64)])
def test_weights_of_another_kind_are_refused(network: nn.Module, tmp_path: Path, value: Tensor) -> None:
    path = tmp_path / "weights.pt"
    torch.save({**network.state_dict(), "fc.bias": value}, path)
    with pytest.raises(FileFormatError, match=rf"fc.bias is a tensor of {value.dtype}"):
        load_model(path, arch="resnet20")


def test_sparse_weights_are_refused(network: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({**network.state_dict(), "fc.bias": torch.ones(10).to_sparse()}, path)
    with pytest.raises(FileFormatError, match=r"fc.bias"):
        load_model(path, arch="resnet20")


class Attack:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (eval, ("1/0",))


def scripted() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("m/constants.pkl", b"\x80\x02).")
        archive.writestr("m/data.pkl", b"\x80\x02).")
    return buffer.getvalue()


@pytest.mark.parametrize("content", [Attack(), argparse.Namespace(lr=0.1), nn.Linear(2, 2)])
def test_pickled_objects_are_never_loaded(tmp_path: Path, content: object) -> None:
    path = tmp_path / "model.pt"
    torch.save({"state_dict": {"conv1.weight": torch.ones(1)}, "args": content}, path)
    with pytest.raises(FileFormatError, match="save the weights alone"):
        load_model(path, arch="resnet20")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a file of torch", scripted()])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("model.pt", "model.safetensors"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=name):
            load_model(path, arch="resnet20")


def test_files_without_a_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(torch.ones(3), path)
    with pytest.raises(FileFormatError, match="holds a Tensor, not a state-dict"):
        load_model(path, arch="resnet20")
    torch.save({"epoch": 3}, path)
    with pytest.raises(FileFormatError, match="no tensors"):
        load_model(path, arch="resnet20")
    with pytest.raises(InputError, match="no file"):
        load_model(tmp_path / "absent.pt", arch="resnet20")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@FUZZ
@given(data=st.data())
def test_fuzzed_torch_files_give_clear_errors(data: st.DataObject, folder: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"state_dict": nn.Linear(3, 2).state_dict()}, buffer)
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "model.pt"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with contextlib.suppress(ArquantError):
        load_into(nn.Linear(3, 2), read_checkpoint(path), arch="linear")


@pytest.mark.parametrize("size", [0, 1000])
def test_a_torch_file_that_ends_early_is_said_so_in_one_line(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(100, 20).state_dict(), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FileFormatError, match=r"model.pt is not an intact torch file \(\w+: .{10}") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
