"""Run folders from strangers: what leads out of them is neither read nor written."""

import json
import os
import shutil
from pathlib import Path

import pytest

from arquant.base.errors import FileFormatError
from arquant.base.own_files import own_file
from arquant.base.run_folder import earlier_place, find_above
from arquant.quantization.policy import Policy
from tests.support.command_line import InProcess, Project

QUICK = ["--sigma", "0.5", "--n", "64", "--n0", "10", "--engine", "torch", "--batch", "16"]


@pytest.mark.parametrize("names", [
    ("../other",), ("/etc/passwd",), ("link",), ("linked", "inside"), ("in", "..", "..", "other"), ("loop",), ("pipe",),
    ("a\0b",), ("broken",),
])  # fmt: skip
def test_what_leads_out_or_is_no_file_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "in").mkdir(parents=True)
    (tmp_path / "other").write_text("x")
    (folder / "link").symlink_to(tmp_path / "other")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    (folder / "broken").symlink_to(tmp_path / "not there yet")
    os.mkfifo(folder / "pipe")
    with pytest.raises(FileFormatError):
        own_file(folder, *names)


def test_files_inside_may_be_absent_or_linked_and_the_folder_be_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "file").write_text("x")
    (folder / "link").symlink_to("in/file")
    (tmp_path / "elsewhere").symlink_to(folder)
    for place in (folder, tmp_path / "elsewhere"):
        for names in (("in", "file"), ("link",), ("in",), ("absent",), ("absent", "too")):
            assert own_file(place, *names) == place.joinpath(*names)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished certificates."""
    project = Project(tmp_path_factory.mktemp("sound"))
    assert project.run("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "run").code == 0
    return project.folder / "run"


@pytest.fixture
def run(sound: Path, project: Project) -> Path:
    folder = project.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    return folder


def moved_out(folder: Path, name: str) -> Path:
    """Move a file of a folder elsewhere, and leave a link to it."""
    outside = folder.parent / f"outside-{name}"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    return outside


@pytest.mark.parametrize("name", ["certificates.tsv", "certificates.json"])
def test_certificates_through_a_link_are_neither_read_nor_continued(name: str, run: Path, cli: InProcess) -> None:
    shutil.copytree(run, run.parent / "twin", dirs_exist_ok=True)
    outside = moved_out(run, name)
    before = outside.read_bytes()
    for words in (
        ["metrics", "run"], ["compare", "twin", "run"], ["certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "run"],
    ):  # fmt: skip
        answer = cli(*words)
        assert (answer.code, "leads out of" in answer.err) == (2, True), words
    answer = cli("check", "run")
    assert (answer.code, "leads out of" in answer.out + answer.err) == (3, True)
    assert outside.read_bytes() == before


def test_a_link_to_a_file_that_is_not_there_yet_makes_none(project: Project) -> None:
    folder = project.folder / "new"
    folder.mkdir()
    (folder / "certificates.tsv").symlink_to(project.folder / "planted.tsv")
    answer = project.run("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "new")
    assert (answer.code, "leads out of" in answer.err) == (2, True)
    assert not (project.folder / "planted.tsv").exists()


@pytest.mark.parametrize("name", ["config.yaml", "journal.jsonl", "summary.json", "policy.json", "model.safetensors"])
def test_other_files_of_a_run_are_not_followed_either(name: str, run: Path, cli: InProcess) -> None:
    (run.parent / "secret").write_text("the secret")
    (run / name).symlink_to(run.parent / "secret")
    for words in (["check", "run"], ["watch", "run"], ["report", "run"], ["finetune", "run"]):
        answer = cli(*words)
        assert "the secret" not in answer.out + answer.err
        assert answer.code in (0, 2, 3)
    assert (run.parent / "secret").read_text() == "the secret"


@pytest.mark.parametrize("name", ["config.yaml", "certificates.tsv", "certificates.json"])
def test_a_pipe_does_not_hang_a_command(name: str, run: Path, project: Project) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    answer = project.run("check", "run")
    assert answer.code in (2, 3)
    assert "not a regular file" in answer.out + answer.err


@pytest.mark.parametrize("place", ["points", "controls"])
def test_folders_of_a_run_are_not_followed_out_of_it(place: str, run: Path, cli: InProcess) -> None:
    shutil.copytree(run, run.parent / "elsewhere", dirs_exist_ok=True)
    (run / place).mkdir()
    (run / place / "float").symlink_to(run.parent / "elsewhere")
    for command in ("check", "report"):
        answer = cli(command, "run")
        assert (answer.code, "leads out of" in answer.err) == (2, True)


def test_a_lock_through_a_link_makes_no_file(tmp_path: Path) -> None:
    from arquant.base.file_lock import in_use

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "planted")
    with pytest.raises(FileFormatError, match="leads out of"), in_use(tmp_path / "run"):
        pass
    assert not (tmp_path / "planted").exists()


def test_a_policy_is_written_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("x")
    for name in ("policy.json", "policy.json.tmp", "policy.json.part"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    Policy({"conv1": "w3a3"}).save(tmp_path / "run" / "policy.json")
    assert (tmp_path / "precious").read_text() == "x"
    assert Policy.load(tmp_path / "run" / "policy.json")["conv1"].w == 3


def test_names_that_a_file_of_the_run_states_stay_inside(tmp_path: Path) -> None:
    """The tables of a budget are named in `config.yaml`, the model that certificates are of in their sidecar."""
    with pytest.raises(FileFormatError, match="leads out of"):
        find_above(tmp_path, "/etc/passwd")
    with pytest.raises(FileFormatError, match="leads out of"):
        find_above(tmp_path, "../secret.json")
    with pytest.raises(FileFormatError, match="leads out of"):
        earlier_place(tmp_path, "../../../../planted")
    assert earlier_place(tmp_path, json.dumps("0123")[1:-1]) == tmp_path / "earlier" / "0123"
