import time
from pathlib import Path

import pytest

from arquant.base.errors import FileFormatError
from arquant.base.plain_yaml import MOST_BYTES, read_settings
from arquant.base.run_folder import read_config
from tests.support.command_line import InProcess, Project

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
SWEETS = "policy: &p {conv1: w3a3}\nmodel_options: *p\n"


def written(folder: Path, text: str) -> Path:
    (folder / "config.yaml").write_text(text)
    return folder / "config.yaml"


def test_plain_settings_are_read(tmp_path: Path) -> None:
    text = "a: 1\nb: [1.5, x, null]\nc: {d: true, e: {}}\nday: 2026-11-18\nf: 1e-3\ng: 'w: &x'\nh: '*y'\n"
    assert read_settings(written(tmp_path, text)) == {
        "a": 1, "b": [1.5, "x", None], "c": {"d": True, "e": {}}, "day": "2026-11-18", "f": "1e-3", "g": "w: &x", "h": "*y",
    }  # fmt: skip


@pytest.mark.parametrize(("text", "said"), [
    (LAUGHS, "aliases"), (SWEETS, "aliases"), ("a: &x 1\n", "anchors"), ("a: &x\n  b: *x\n", "aliases"),
    ("<<: &d {a: 1}\n", "anchors"), ("? &k key\n: 1\n", "anchors"),
    ("- 1\n", "does not hold options"), ("", "does not hold options"), ("a: [1\n", "cannot be read"),
    ("1: 2\n", "1 is not the name"), ("a: {null: 2}\n", "None is not the name"), ("? [a]\n: 1\n", "cannot be read"),
    ("a: !!binary aGk=\n", "bytes"), ("a: !!set {x, y}\n", "set"), ("a: !!timestamp 2026-11-18\n", "date"),
    ("a: [!!omap [x: 1]]\n", "tuple"), ("a: !!python/name:os.system\n", "cannot be read"),
    ("a: !!int ''\n", "cannot be read"), ("a: !!bool maybe\n", "cannot be read"), ("a: !!float x\n", "cannot be read"),
    ("a: " + "9" * 5000, "cannot be read"), ("a: " + "[" * 20_000, "cannot be read"), ("a: \0", "cannot be read"),
    ("a: 0x" + "f" * 9000, "36000 bits"),
    ("a: 1" + ":59" * 1000 + ".5", "cannot be read"), ("a: " + "x" * MOST_BYTES, "longer than"),
])  # fmt: skip
def test_anything_else_is_refused_at_once(text: str, said: str, tmp_path: Path) -> None:
    began = time.process_time()
    for read in (read_settings, lambda path: read_config(path.parent)):
        with pytest.raises(FileFormatError, match=said):
            read(written(tmp_path, text))
    assert time.process_time() - began < 20  # a fraction of a second on an idle machine; minutes for nested aliases


@pytest.mark.parametrize("setting", [
    "model: {a: 1}", "model: 3", "data: [sample]", "model_options: 5", "split: 0.5", "seed: x", "seed: true", "seed: 0.5",
    "tables: x", "command: [search]", "images: 5", "certify: {}",
])  # fmt: skip
def test_settings_of_a_run_are_of_their_kinds(setting: str, tmp_path: Path) -> None:
    written(tmp_path, f"{setting}\n")
    with pytest.raises(FileFormatError, match=f"{setting.partition(':')[0]} cannot be"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", [LAUGHS, SWEETS])
def test_no_command_follows_aliases(text: str, project: Project, cli: InProcess) -> None:
    folder = project.folder / "laughs"
    folder.mkdir(exist_ok=True)
    written(folder, text)
    (folder / "policy.json").write_text("{}")
    answer = project.run("check", "laughs")
    assert (answer.code, "config.yaml" in answer.err, "aliases" in answer.err) == (2, True, True)
    for words, code in ((["report", "laughs"], 0), (["finetune", "laughs"], 2), (["watch", "laughs"], 2)):
        answer = cli(*words)
        assert (answer.code, "aliases" in answer.err) == (code, True), words
    answer = cli("certify", "toy:colours", "npz:data.npz", "--sigma", "0.5", "--config", "laughs/config.yaml")
    assert (answer.code, "aliases" in answer.err) == (2, True)
