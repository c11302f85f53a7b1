"""Pictures to classify, named as people name them: files, folders, arrays; nobody has to know their classes."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from arquant.base.errors import InputError
from arquant.images.folder import EXTENSIONS, pictures_of
from arquant.images.imageset import Images, ImageSet
from arquant.images.photos import Photos
from arquant.loading.datasets import SPELLINGS, from_arrays, read_npz
from arquant.models.classifier import Classifier
from arquant.models.photo_fit import COVER

UNKNOWN = "pictures without labels"
"""the name of a set of images whose labels, all 0, mean nothing"""


def is_pictures(word: str) -> bool:
    """Tell whether `word` names pictures without labels: a file, a folder, or an npz archive that has none."""
    kind, _, rest = word.partition(":")
    if word in ("sample", "cifar10"):
        return False
    if kind == "folder" and rest:
        folder = _path(rest)
        return folder.is_dir() and not any(part.is_dir() and part.name[:1] != "." for part in folder.iterdir())
    if kind == "npz" and rest:
        return _path(rest).is_file() and read_npz(_path(rest))[1] is None
    return _path(word).exists()


def load_pictures(words: Sequence[str], classifier: Classifier) -> tuple[ImageSet, tuple[str, ...]]:
    """Return the pictures that `words` name, as the model's input and in that order, and what to call each.

    Args:
        words: picture files; folders, of which all pictures below are taken; npz archives, of which `images` is.

    Raises:
        InputError: a word names none of these.
    """
    parts: list[Images] = []
    names: list[str] = []
    for word in words:
        path = _path(word.removeprefix("folder:").removeprefix("npz:"))
        if not path.exists():
            raise InputError(f"there is no file or folder {str(path)!r} to classify; DATA is one word: {SPELLINGS}")
        if path.suffix == ".npz":
            pixels = _arrays(path, classifier)
            names += [f"{path}[{place}]" for place in range(len(pixels))]
        else:
            files = pictures_of(path) if path.is_dir() else [str(path)]
            pixels = _decoded(files, classifier)
            names += files
        parts.append(pixels)
    if len({part.dtype for part in parts}) > 1:
        raise InputError("pictures and arrays of floats cannot be classified together; name them one after the other")
    images: Images = np.concatenate(parts)  # type: ignore[assignment]  # all of one type, as was checked
    count = len(names)
    found = ImageSet(images, np.zeros(count, np.int64), np.arange(count), UNKNOWN, classifier.num_classes)
    return replace(found, class_names=classifier.class_names), tuple(names)


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))


def _decoded(files: Sequence[str], classifier: Classifier) -> Images:
    for file in files:
        if Path(file).suffix.lower() not in EXTENSIONS:
            raise InputError(f"{file} is no picture; known are {', '.join(sorted(EXTENSIONS))} and .npz")
    photos = Photos((Path(), files), classifier.input_shape, classifier.fit or COVER, np.arange(len(files)))
    photos.announce()
    return photos[:]


def _arrays(path: Path, classifier: Classifier) -> Images:
    images, _ = read_npz(path)
    found = from_arrays(images, np.zeros(len(images), np.int64), str(path), bounds=classifier.bounds, num_classes=2)
    if found.shape != classifier.input_shape:
        raise InputError(f"{path} has images of shape {found.shape}, the model takes {classifier.input_shape}")
    return found.images[:]
