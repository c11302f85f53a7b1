"""The examples run as they stand, in seconds, and say what they should."""

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.photo_folders import photo_folder, save_photo

FOLDER = Path(__file__).parents[1] / "examples"


def run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", [name, *arguments])
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, with the examples' folder importable, as it is for a script in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))


def test_examples_are_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")}
    assert set(lengths) == {
        "own_model.py", "certify_only.py", "custom_reward.py", "serve_prediction.py", "torchvision_imagenet.py",
        "timm_photos.py", "hugging_face.py",
    }  # fmt: skip
    assert max(lengths.values()) < 60, lengths


def test_own_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("own_model.py", monkeypatch, capsys).splitlines()
    assert [line.split(":")[0] for line in lines] == ["float"] * 5 + ["4-bit"] * 5
    assert all(re.search(r"\(\d+ of 500 votes\)$", line) for line in lines)


def test_certify_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("certify_only.py", monkeypatch, capsys, "--n", "100", "--images", "first:2")
    assert said.count("\nimage ") == 2
    assert "false with probability at most 0.001" in said
    assert Path("runs/certify-only/certificates.tsv").exists()


def test_custom_reward(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("custom_reward.py", monkeypatch, capsys, "--trials", "2")
    assert "reward enough: " in said
    assert "on 5 images that the search never saw" in said


def test_serve_prediction(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("secrets.randbits", lambda bits: seeds.append(bits) or len(seeds))  # type: ignore[func-returns-value]
    answers = run("serve_prediction.py", monkeypatch, capsys, "--n", "64").splitlines()
    assert len(answers) == 3
    assert all(re.fullmatch(r"Answer\(klass=(None|\d), radius=[\d.]+, confidence=0\.999\)", line) for line in answers)
    assert seeds == [128] * 3, "a fresh seed of 128 bits for every answer"


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision_with_random_weights(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With random weights: none can be downloaded here. The public ones take the same path through `load_model`."""
    save_photo(Path("photos/a.png"), 60, 48)
    save_photo(Path("photos/b.png"), 48, 60, seed=1)
    options = ("photos", "--network", "squeezenet1_1", "--random-weights", "--size", "48", "--n", "32")
    first, *answers = run("torchvision_imagenet.py", monkeypatch, capsys, *options).splitlines()
    assert re.fullmatch(r"8 bits: \d\.\d % of the bit operations, weights of [\d,]+ bytes", first)
    assert [line.split(": ")[:2] for line in answers] == [
        [name, f"photos/{photo}.png"] for name in ("float", "8 bits") for photo in "ab"
    ]
    assert all(line.endswith(" of 32 votes)") for line in answers)


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_timm_photos_with_random_weights(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    photo_folder(Path("photos/train"), ["cat", "dog"], 4, size=(40, 36))
    photo_folder(Path("photos/test"), ["cat", "dog"], 2, size=(40, 36), first_seed=100)
    small = ("--random-weights", "--network", "resnet10t", "--size", "32", "--steps", "1", "--batch", "4", "--n", "32")
    said = run("timm_photos.py", monkeypatch, capsys, "photos", *small)
    assert re.search(r"^4 bits: ACR \d\.\d{3}, right for \d+% of 4 photos$", said, re.MULTILINE)
    assert "4 bits minus float, paired by photo: " in said
    assert Path("runs/photos/report.html").exists()


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_hugging_face_with_random_weights(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A network made from its configuration: no checkpoint can be downloaded here."""
    save_photo(Path("photo.png"), 48, 40)
    first, answer = run("hugging_face.py", monkeypatch, capsys, "photo.png", "--n", "32").splitlines()
    assert first == "small ViT: 18 layers can be quantized, input (3, 32, 32)"
    assert re.fullmatch(r"photo\.png: (no answer|LABEL_\d, within [\d.]+) \(\d+ of 32 votes\)", answer)
