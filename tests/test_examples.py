"""The examples run as they stand, in seconds, and say what they should."""

import re
import runpy
from pathlib import Path

import pytest

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
    assert set(lengths) == {"own_model.py", "certify_only.py", "custom_reward.py", "serve_prediction.py"}
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
