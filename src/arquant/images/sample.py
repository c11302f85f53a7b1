"""The shipped sample of CIFAR-10: 2,000 calibrate, 500 search and 500 certify images, lossless, verified when read.

Each role is one lossless WebP picture, a mosaic of 32 x 32 tiles read row by row; `sample.json` beside it holds the
labels, the dataset indices and the fingerprint of the resulting image set. `scripts/make_sample.py` made the files.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.base.files import read_json
from arquant.images.cifar10 import CLASS_NAMES
from arquant.images.imageset import ImageSet, RoleOf

SCHEMA = "arquant.sample"
VERSION = 1
FOLDER = Path(__file__).parent / "embedded"
ROLES = ("calibrate", "search", "certify")
TILE = 32
COLUMNS = 25


def load_sample(role: str, folder: Path = FOLDER) -> ImageSet:
    """Load the sample's images of one role; raise FileFormatError if pixels, labels or indices have changed."""
    if role not in ROLES:
        raise InputError(f"the sample has no role {role!r}; it has {', '.join(ROLES)} (the full cifar10 has more)")
    try:
        entry = _read_index(folder / "sample.json")[role]
        labels = np.asarray(entry["labels"], dtype=np.int64)
        indices = np.asarray(entry["indices"], dtype=np.int64)
        images = untile(_read_picture(folder / f"{role}.webp", len(labels)))
        whole = RoleOf("sample", role, len(labels))
        image_set = ImageSet(images, labels, indices, f"sample ({role})", len(CLASS_NAMES), CLASS_NAMES, whole)
        if image_set.fingerprint() != entry["fingerprint"]:
            raise FileFormatError("the fingerprint of its images, labels and indices is not the recorded one")
    except (ArquantError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"the sample of CIFAR-10 in {folder} is damaged ({role}: {error}); reinstall arquant"
        ) from error
    return image_set


def tile(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Arrange images (N, 3, 32, 32), N a multiple of 25, in one picture (rows * 32, 25 * 32, 3)."""
    grid = images.reshape(-1, COLUMNS, 3, TILE, TILE).transpose(0, 3, 1, 4, 2)
    return np.ascontiguousarray(grid).reshape(-1, COLUMNS * TILE, 3)


def untile(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `tile`."""
    grid = picture.reshape(-1, TILE, COLUMNS, TILE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(grid).reshape(-1, 3, TILE, TILE)


def _read_index(path: Path) -> dict[str, Any]:
    roles = read_json(path, SCHEMA, VERSION).get("roles")
    if not isinstance(roles, dict):
        raise FileFormatError(f"{path.name} has no roles")
    return roles


def _read_picture(path: Path, count: int) -> NDArray[np.uint8]:
    size = (COLUMNS * TILE, count // COLUMNS * TILE)
    try:
        with Image.open(path, formats=["WEBP"]) as image:
            if image.size != size or image.mode != "RGB":
                raise FileFormatError(f"{path.name} is {image.mode} of size {image.size}, not RGB of {size}")
            return np.asarray(image)
    except FileFormatError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of exceptions on damaged files.
        if not features.check("webp"):
            raise FileFormatError("this build of Pillow cannot read WebP; install the official wheel") from error
        raise FileFormatError(f"cannot read {path.name}: {error}") from error
