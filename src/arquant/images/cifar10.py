"""CIFAR-10 as six verified `.bin` files: where they are, how they are read, and which images fill which role."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import FileFormatError, InputError
from arquant.images.imageset import ImageSet, RoleOf

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Batch:
    """One `.bin` file: `images` records of 1 label byte and 3,072 pixel bytes (channel, row, column)."""

    name: str
    sha1: str
    images: int = 10_000

    @property
    def file(self) -> str:
        """Return the file name in the official archive and in the cache."""
        return f"{self.name}.bin"

    @property
    def size_bytes(self) -> int:
        """Return the exact length of the file."""
        return self.images * RECORD


TRAINING = (
    Batch("data_batch_1", "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
    Batch("data_batch_2", "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
    Batch("data_batch_3", "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
    Batch("data_batch_4", "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
    Batch("data_batch_5", "26e2849e66a845b7f1e4614ae70f4889ae604628"),
)
TEST = (Batch("test_batch", "67eb016db431130d61cd03c7ad570b013799c88c"),)

# Role -> training or test images, and which of them: indices that leave one of these remainders modulo the last number.
# Test indices 0 mod 20 are the 500 that the literature certifies.
ROLES: dict[str, tuple[str, tuple[int, ...], int]] = {
    "calibrate": ("training", (0,), 1),
    "search": ("test", (10,), 20),
    "certify": ("test", (0,), 20),
    "development": ("test", (5, 15), 20),
}


def cifar10_directory() -> Path:
    """Return the folder of the six files: `$ARQUANT_CACHE/cifar10`, or `~/.cache/arquant/cifar10`."""
    cache = os.environ.get("ARQUANT_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "arquant") / "cifar10"


def load_cifar10(role: str, directory: str | Path | None = None) -> ImageSet:
    """Load the images of one role, from files whose SHA-1 is checked at every reading.

    `indices` are 0..49999 for the training images (calibrate) and 0..9999 for the test images (all other roles).
    """
    if role not in ROLES:
        raise InputError(f"cifar10 has no role {role!r}; it has {', '.join(ROLES)}")
    subset, remainders, modulus = ROLES[role]
    batches = TRAINING if subset == "training" else TEST
    folder = _folder_of(Path(directory) if directory else cifar10_directory(), batches)
    indices = np.arange(sum(batch.images for batch in batches), dtype=np.int64)
    indices = indices[np.isin(indices % modulus, remainders)]
    images = np.empty((len(indices), *SHAPE), dtype=np.uint8)
    labels = np.empty(len(indices), dtype=np.int64)
    first = filled = 0
    for batch in batches:
        records = read_batch(folder / batch.file, batch)
        rows = indices[(indices >= first) & (indices < first + batch.images)] - first
        images[filled : filled + len(rows)].reshape(len(rows), PIXELS)[:] = records[rows, 1:]
        labels[filled : filled + len(rows)] = records[rows, 0]
        first, filled = first + batch.images, filled + len(rows)
    whole = RoleOf("cifar10", role, len(indices))
    return ImageSet(images, labels, indices, f"cifar10 ({role})", len(CLASS_NAMES), CLASS_NAMES, whole)


def read_batch(path: Path, batch: Batch) -> NDArray[np.uint8]:
    """Return the records (images, 3073) of a `.bin` file; refuse it unless length and SHA-1 are the published ones."""
    advice = "delete it and run `arquant data cifar10`"
    try:
        size = path.stat().st_size
        if size != batch.size_bytes:
            raise FileFormatError(f"{path} has {size:,} bytes instead of {batch.size_bytes:,}; {advice}")
        records = np.fromfile(path, dtype=np.uint8)
    except FileNotFoundError:
        raise InputError(f"{path} is not there: run `arquant data cifar10`, or name the folder: cifar10:DIR") from None
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error}; {advice}") from error
    sha1 = hashlib.sha1(records.data, usedforsecurity=False).hexdigest()
    if sha1 != batch.sha1:
        raise FileFormatError(f"{path} is corrupted: its SHA-1 is {sha1}, not {batch.sha1}; {advice}")
    return records.reshape(batch.images, RECORD)


def _folder_of(directory: Path, batches: tuple[Batch, ...]) -> Path:
    """Return `directory`, or the subfolder that unpacking the official archive there has made."""
    unpacked = directory / "cifar-10-batches-bin"
    return unpacked if not os.path.exists(directory / batches[0].file) and os.path.isdir(unpacked) else directory
