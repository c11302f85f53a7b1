"""The script that turns a training checkpoint into a shipped file."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from arquant.loading.models import load_model
from arquant.models.architectures.registry import build_architecture
from arquant.models.checkpoints import read_checkpoint
from arquant.models.options import Options
from arquant.models.weights import WeightsInfo

IDENTITY = {"recipe": {"sigma": 0.5, "epochs": 2.0, "batch": 100, "milestones": []}, "images": 1050, "data": "abc"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "publish_weights.py"
    spec = importlib.util.spec_from_file_location("publish_weights", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def header(step: int, *, nested: bool) -> dict[str, str]:
    """Of a checkpoint as `arquant.training.loop` writes it (nested), and as its first version did."""
    common: dict[str, Any] = {"step": step, "seconds": 12.5}
    if nested:
        state = {**common, "identity": IDENTITY, "summary": {"loss": 1.25}}
        return {"schema": "arquant.training", "version": "1", "state": json.dumps(state)}
    return {
        "schema": "arquant.training",
        "version": "1",
        "identity": json.dumps(IDENTITY),
        **{key: str(value) for key, value in common.items()},
    }


def write(path: Path, metadata: dict[str, str]) -> str:
    classifier = build_architecture("resnet20", Options())
    tensors = {f"model.{name}": value for name, value in classifier.state_dict().items()}
    save_file({**tensors, "momentum.0": torch.zeros(100_000)}, path, metadata)
    return classifier.fingerprint()


@pytest.mark.parametrize("nested", [True, False])
def test_publish(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], nested: bool) -> None:
    checkpoint, out = tmp_path / "checkpoint.safetensors", tmp_path / "weights" / "resnet20-sigma0.5.safetensors"
    fingerprint = write(checkpoint, header(20, nested=nested))
    facts = {"loss": 9.0, "accuracy": 0.7, "init": "resnet20:sigma=1.0", "command": "arquant train --out /here"}
    (tmp_path / "training.json").write_text(json.dumps(facts))
    script.main([str(checkpoint), str(out)])
    assert "resnet20-sigma0.5.safetensors" in capsys.readouterr().out
    assert load_model(out).fingerprint() == fingerprint
    info = WeightsInfo.parse(read_checkpoint(out).metadata, out)
    assert (info.arch, info.sigma, info.num_classes) == ("resnet20", 0.5, 10)
    assert info.training["steps"] == 20
    assert info.training["accuracy"] == 0.7
    assert info.training["init"] == "resnet20:sigma=1.0"
    assert "command" not in info.training
    assert info.training["loss"] == (1.25 if nested else 9.0)
    assert not any(name.startswith(("momentum", "model")) for name in load_file(out))
    assert out.stat().st_size < 1_200_000


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (header(19, nested=True), "at step 19 of 20; publish finished runs only"),
        ({"schema": "other"}, "not a training checkpoint"),
        ({"schema": "arquant.training", "state": "{"}, "header of .* is damaged"),
    ],
)
def test_refusals(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, str], message: str
) -> None:
    checkpoint, out = tmp_path / "checkpoint.safetensors", tmp_path / "out.safetensors"
    write(checkpoint, metadata)
    with pytest.raises(SystemExit) as stop:
        script.main([str(checkpoint), str(out)])
    assert stop.value.code == 2
    assert re.search(message, capsys.readouterr().err)
    assert not out.exists()
