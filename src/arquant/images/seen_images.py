"""Image sets and what a model has seen (`arquant.base.seen`): the record of some images, and whether others are in a record."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import ArquantError
from arquant.base.seen import Digests, Seen, Use
from arquant.images.cifar10 import load_cifar10
from arquant.images.imageset import ImageSet
from arquant.images.photos import Photos
from arquant.images.sample import load_sample

_CIFAR10 = ("sample", "cifar10")
"""data sets in which an image has the same role, if it is in both"""


def seen_images(**used: ImageSet) -> Seen:
    """Return the record of images by use; photos on demand that were not read so far are read.

    The name of the role `calibrate` also stands for a part of it, since its images are for nothing else; of another role, where
    that would take away images that may be certified, only for all of them.
    """
    return Seen({use: _use(images) for use, images in used.items()})


def image_hashes(images: ImageSet) -> Digests:
    """Return the first 8 bytes of the hash of each image."""
    return _shortened(images.image_digests())


def known_hashes(images: ImageSet) -> Digests:
    """Return the same, but of photos on demand only for those that this process has read."""
    photos = images.images
    return _shortened(photos.read_so_far().digests()) if isinstance(photos, Photos) else image_hashes(images)


def _shortened(digests: Iterator[bytes]) -> Digests:
    return np.array([int.from_bytes(digest[:8], "little") for digest in digests], dtype=np.uint64)


def found_in(seen: Seen, images: ImageSet) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Return the positions of the images that a record has, by use; uses without any are left out."""
    hashes = image_hashes(images) if seen.uses else np.empty(0, np.uint64)
    for name, use in seen.uses.items():
        found = np.isin(hashes, use.digests)
        for data, role in use.roles:
            found |= _of_role(data, role, images, hashes)
        if found.any():
            yield name, np.flatnonzero(found)


def undecided(seen: Seen, images: ImageSet) -> list[str]:
    """List the roles in a record, such as "cifar10 (calibrate)", that these images may have without our knowing."""
    roles = sorted({role for use in seen.uses.values() for role in use.roles})
    return [f"{data} ({role})" for data, role in roles if not _says(images, data) and _role_hashes(data, role) is None]


def _use(images: ImageSet) -> Use:
    part = images.role
    if part is not None and (part.name == "calibrate" or len(images) == part.images):
        return Use(frozenset([(part.data, part.name)]))
    return Use(digests=np.unique(image_hashes(images)))


def _says(images: ImageSet, data: str) -> bool:
    """Tell whether the images' own role shows that they have this role in a data set."""
    return images.role is not None and {images.role.data, data} <= set(_CIFAR10)


def _of_role(data: str, role: str, images: ImageSet, hashes: Digests) -> NDArray[np.bool_]:
    """Tell which images have a role in a data set; False where nothing here tells."""
    if _says(images, data):
        return np.full(len(images), images.role is not None and images.role.name == role)
    known = _role_hashes(data, role)
    return np.zeros(len(images), bool) if known is None else np.isin(hashes, known)


def _role_hashes(data: str, role: str) -> Digests | None:
    """Return the hashes of all images of a role; None if they are not on this machine, or the data set is unknown."""
    try:
        if data == "sample" or (data == "cifar10" and role in ("search", "certify")):
            return image_hashes(load_sample(role))  # which holds the same images, and is always here
        return image_hashes(load_cifar10(role)) if data == "cifar10" else None
    except ArquantError:
        return None
