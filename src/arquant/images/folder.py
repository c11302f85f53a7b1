"""`folder:DIR`: one folder per class, sorted by name; every picture below it as 8-bit RGB of one size."""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from arquant.base.errors import InputError
from arquant.images.decoding import opened
from arquant.images.imageset import ImageSet, selected
from arquant.images.photos import Photos
from arquant.models.photo_fit import COVER, check_fit

log = logging.getLogger("arquant")

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"})


def load_folder(
    directory: Path,
    *,
    size: tuple[int, int, int] | None = None,
    images: str | None = None,
    fit: str = COVER,
    on_demand: bool = False,
) -> ImageSet:
    """Return the pictures of a folder in the order (class name, path); the place in that order is the dataset index.

    Files and folders whose names begin with a dot are not looked at. A picture that cannot be read is refused, never left
    out; other files are left out, which is said.
    More than 2,000, or 128 MB when decoded, are decoded when they are asked for, and refused then.

    Args:
        size: (C, H, W), C = 3 or 1, that pictures of other sizes are brought to (bilinear, antialiased); without it all
            must have the same width and height.
        images: a selection of positions; other files are not read.
        fit: how pictures are brought to `size`, as `arquant.models.photo_fit` says.
        on_demand: decode on demand even a few pictures; training takes its random crops from whole ones.
    """
    check_fit(fit)
    if size is not None and (size[0] not in (1, 3) or min(size) < 1):
        raise InputError(f"folder:{directory}: pictures can be read as (3, H, W) or (1, H, W), not {size}")
    name = f"folder:{directory}"
    classes, files, of_class, left_out = _list_files(directory)
    _note_left_out(directory, left_out)
    labels = np.array(of_class, dtype=np.int64)
    numbers = np.array(selected(images, labels, name=name), dtype=np.int64)
    if size is None:
        width, height = _common_size(directory, [files[number] for number in numbers])
        shape, how = (3, height, width), None
    else:
        shape, how = (size[0], size[1], size[2]), fit
    photos = Photos((directory, files), shape, how, numbers)
    photos.announce()
    pixels = photos[:] if photos.is_small and not on_demand else photos
    return ImageSet(pixels, labels[numbers], numbers, name, len(classes), classes, fit=how)


def class_names(directory: Path) -> tuple[str, ...]:
    """Return the names of a folder's classes in the order of their numbers; no picture is opened."""
    return _list_files(directory)[0]


def pictures_of(directory: Path) -> list[str]:
    """Return the paths of all pictures below a folder, with the folder, in the order of their names; classes play no part.

    Raises:
        InputError: there are none, or the folder cannot be listed.
    """
    left_out: Counter[str] = Counter()
    try:
        found = sorted(_pictures_below(directory, "", left_out), key=lambda path: path.split(os.sep))
    except OSError as error:
        raise InputError(f"cannot list the folder {error.filename or directory}: {error.strerror or error}") from error
    if not found:
        raise InputError(f"the folder {directory} has no pictures ({', '.join(sorted(EXTENSIONS))})")
    _note_left_out(directory, left_out)
    return [str(directory / path) for path in found]


def files_of(images: ImageSet) -> tuple[str, ...]:
    """Return the file of each image of a set that `load_folder` read, with the folder; empty for other sets."""
    kind, _, place = images.name.partition(":")
    if kind != "folder" or images.fit is None:
        return ()
    files = _list_files(Path(place))[1]
    return tuple(str(Path(place) / files[index]) for index in images.indices)


def _common_size(directory: Path, files: Sequence[str]) -> tuple[int, int]:
    """Return width and height of the pictures, if all have the same; only their headers are read."""
    first: tuple[int, int] | None = None
    for file in files:
        with opened(directory / file) as picture:
            size = picture.size
        first = first or size
        if size != first:
            one = Path(files[0]).name
            raise InputError(
                f"{directory / file} is {size[0]} x {size[1]} pixels, {one} is {first[0]} x {first[1]}; bring all to one "
                "size or state the model's (--input 3,H,W)"
            )
    assert first is not None
    return first


def _note_left_out(directory: Path, left_out: Counter[str]) -> None:
    """Tell the user, as a log entry, which files of a folder are not looked at."""
    if left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in left_out.most_common(5))
        log.info("%s: left out %s; pictures are %s", directory, kinds, ", ".join(sorted(EXTENSIONS)))


def _list_files(directory: Path) -> tuple[tuple[str, ...], list[str], list[int], Counter[str]]:
    """Return the names of the classes, the pictures' paths in order, the class of each, and what is left out."""
    files: list[str] = []
    labels: list[int] = []
    left_out: Counter[str] = Counter()
    try:
        inside = sorted(p for p in directory.iterdir() if not p.name.startswith("."))
        folders = [p for p in inside if p.is_dir()]
        loose = [p.suffix.lower() for p in inside if not p.is_dir() and p.suffix.lower() in EXTENSIONS]
        left_out.update(f"{kind} outside of class folders" for kind in loose)
        for label, folder in enumerate(folders):
            found = sorted(_pictures_below(directory, folder.name, left_out), key=lambda path: path.split(os.sep))
            files += found
            labels += [label] * len(found)
    except OSError as error:
        place = error.filename or directory
        raise InputError(f"cannot list the folder {place}: {error.strerror or error} (folder:DIR)") from error
    if len(folders) < 2 or not files:
        raise InputError(
            f"{directory} has {len(folders)} class folders and {len(files)} pictures in them; "
            f"folder:DIR needs one folder per class with files of {', '.join(sorted(EXTENSIONS))}"
        )
    return tuple(folder.name for folder in folders), files, labels, left_out


def _pictures_below(root: Path, folder: str, left_out: Counter[str]) -> Iterator[str]:
    """Yield the paths of the pictures below a folder; count other files, by their endings, and linked folders."""
    with os.scandir(root / folder) as entries:
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _pictures_below(root, path, left_out)
            elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS:
                if not entry.is_file():
                    raise InputError(
                        f"{root / path} is no file, or a link to one that is not there; repair or remove it"
                    )
                yield path
            else:
                left_out[
                    "linked folder" if entry.is_dir() else os.path.splitext(entry.name)[1].lower() or entry.name
                ] += 1
