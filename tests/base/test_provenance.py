import errno
import os
import subprocess
from pathlib import Path

import pytest
from safetensors import SafetensorError

from arquant.base import files, provenance
from arquant.base.files import in_one_move


def test_the_commit_is_that_of_our_own_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(package / "provenance.py"))
    assert provenance.provenance()["commit"] is None, "no checkout at all"
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "the user's own project")
    assert provenance.provenance()["commit"] is None, "installed within somebody's checkout"
    git("add", ".")
    git("commit", "-q", "-m", "ours")
    assert provenance.provenance()["commit"] == git("rev-parse", "HEAD").strip()[:12]
    (package / "provenance.py").write_text("# changed")
    assert provenance.provenance()["commit"].endswith("+changes")


@pytest.mark.parametrize("program", ["/opt/bin/arquant", "/opt/lib/arquant/__main__.py"])
def test_the_command_is_told_as_one_types_it(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr("sys.argv", [program, "certify", "--budget", "bops<=3bit"])
    assert provenance.command_line() == "arquant certify --budget 'bops<=3bit'"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    files.write_json(path, {"a": 1})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        files.write_json(path, {"b": {("no", "key"): 2}})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_what_the_umask_allows(tmp_path: Path) -> None:
    path, before = tmp_path / "model", os.umask(0o027)
    try:
        with files.in_one_move(path) as scratch:
            scratch.unlink()
            scratch.touch(0o600)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_full_disk_is_an_error_of_the_system_whoever_writes(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    target.write_text("before")
    with pytest.raises(OSError, match="cannot write") as caught, in_one_move(target):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert target.read_text() == "before"
    with pytest.raises(SafetensorError, match="header"), in_one_move(target):
        raise SafetensorError("invalid header")
