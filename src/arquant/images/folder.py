"""`folder:DIR`: one folder per class, sorted by name; every picture below it as 8-bit RGB of one size."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arquant.base.errors import FileFormatError, InputError
from arquant.images.imageset import ImageSet, positions_of

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"})


def load_folder(directory: Path, *, size: tuple[int, int, int] | None = None, images: str | None = None) -> ImageSet:
    """Load the pictures of a folder in the order (class name, path); the place in that order is the dataset index.

    Files and folders whose names begin with a dot are not looked at. What cannot be read is refused, never left out.
    Without `size` all must have the same width and height. With `size` (C, H, W), C = 3 or 1, each is resized
    (bilinear, antialiased) until it just covers H x W, and the centre is kept. `images` selects positions before
    anything is read.
    """
    if size is not None and (size[0] not in (1, 3) or min(size) < 1):
        raise InputError(f"folder:{directory}: pictures can be read as (3, H, W) or (1, H, W), not {size}")
    classes, files = _list_files(directory)
    name = f"folder:{directory}"
    chosen = range(len(files)) if images is None else positions_of(images, len(files), name=name)
    first = _read_picture(files[chosen[0]][0], size)
    pixels = np.empty((len(chosen), *first.shape), dtype=np.uint8)
    for row, position in enumerate(chosen):
        path = files[position][0]
        picture = _read_picture(path, size)
        if picture.shape != first.shape:
            raise InputError(
                f"{path} is {picture.shape[2]} x {picture.shape[1]} pixels, {files[chosen[0]][0].name} is "
                f"{first.shape[2]} x {first.shape[1]}; bring all to one size or state the model's (--input 3,H,W)"
            )
        pixels[row] = picture
    labels = np.array([files[position][1] for position in chosen], dtype=np.int64)
    return ImageSet(pixels, labels, np.array(chosen, dtype=np.int64), name, len(classes), classes)


def _list_files(directory: Path) -> tuple[tuple[str, ...], list[tuple[Path, int]]]:
    try:
        folders = sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith("."))
        files = [(path, label) for label, folder in enumerate(folders) for path in sorted(_pictures_below(folder))]
    except OSError as error:
        place = error.filename or directory
        raise InputError(f"cannot list the folder {place}: {error.strerror or error} (folder:DIR)") from error
    if len(folders) < 2 or not files:
        raise InputError(
            f"{directory} has {len(folders)} class folders and {len(files)} pictures in them; "
            f"folder:DIR needs one folder per class with files of {', '.join(sorted(EXTENSIONS))}"
        )
    return tuple(folder.name for folder in folders), files


def _pictures_below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            if path.suffix.lower() in EXTENSIONS:
                if not path.is_file():
                    raise InputError(f"{path} is no file, or a link to one that is not there; repair or remove it")
                yield path


def _raise(error: OSError) -> NoReturn:
    raise error


def _read_picture(path: Path, size: tuple[int, int, int] | None) -> NDArray[np.uint8]:
    """Return one picture as uint8 (C, H, W)."""
    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise FileFormatError(f"{path} has more than 8 bits per channel ({image.mode}); convert it to 8 bits")
            picture = image.convert("L" if size is not None and size[0] == 1 else "RGB")
            if size is not None:
                picture = _cover(picture, height=size[1], width=size[2])
            pixels = np.asarray(picture)
    except FileFormatError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of exceptions on damaged files.
        raise FileFormatError(f"cannot read the picture {path}: {error}; repair or remove it") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _cover(picture: Image.Image, *, height: int, width: int) -> Image.Image:
    if picture.size == (width, height):
        return picture
    scale = max(width / picture.width, height / picture.height)
    wide, high = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
    picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = (wide - width) // 2, (high - height) // 2
    return picture.crop((left, top, left + width, top + height))
