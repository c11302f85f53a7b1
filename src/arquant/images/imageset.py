"""Labelled images, in memory or in files: one frozen set, its selections and splits, and the proof that two share no image."""

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import InputError, MismatchError
from arquant.images.photos import Photos, image_digest

Images = NDArray[np.uint8] | NDArray[np.float32]

log = logging.getLogger("arquant")

SELECTIONS = (
    "every:20 (positions 0, 20, 40, ...), first:500, most:500 (up to 500, evenly spaced) or 0-499 (with both ends)"
)
ALL = f"most:{10**18 - 1}"
"""selects all images, also of a run that has a selection of its own"""


@dataclass(frozen=True)
class RoleOf:
    """A role of a data set that says itself which images have it: `images` is how many there are."""

    data: str
    name: str
    images: int


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N labelled images of one shape.

    Attributes:
        images: (N, C, H, W), uint8 levels 0..255 or float32 in unit space [0, 1]; or photos that are decoded on demand,
            which index like such an array.
        labels: int64 (N,), each in 0..num_classes-1.
        indices: int64 (N,), the dataset index of each image: distinct, not negative. It addresses the image's noise
            and is the `idx` of every file.
        name: how the set was asked for, for messages and reports.
        num_classes: how many classes the labels are drawn from.
        class_names: one per class, or empty if unknown.
        role: what all of these images, or those that they were taken from, are for in their data set; None if unknown.
        fit: how photos of other sizes were brought to this one (`arquant.models.photo_fit`); None for other images.
    """

    images: Images | Photos = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    indices: NDArray[np.int64] = field(repr=False)
    name: str
    num_classes: int
    class_names: tuple[str, ...] = ()
    role: RoleOf | None = None
    fit: str | None = None

    def __post_init__(self) -> None:
        images, count = self.images, len(self.images)
        if images.ndim != 4 or images.dtype not in (np.uint8, np.float32):
            raise InputError(
                f"{self.name}: images must be uint8 or float32 of shape (N, C, H, W), "
                f"got {images.dtype} of shape {images.shape}"
            )
        if images.size == 0:
            raise InputError(f"{self.name}: there are no images (shape {images.shape})")
        for what, array in (("labels", self.labels), ("indices", self.indices)):
            if array.shape != (count,) or array.dtype != np.int64:
                raise InputError(
                    f"{self.name}: {what} must be int64 of shape ({count},), one per image, "
                    f"got {array.dtype} of shape {array.shape}"
                )
        self._check_values()

    def _check_values(self) -> None:
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= self.num_classes))
        if len(wrong):
            position = int(wrong[0])
            raise InputError(
                f"{self.name}: label {self.labels[position]} of image {position} is outside "
                f"0..{self.num_classes - 1} ({len(wrong)} of {len(self)} labels are)"
            )
        if self.indices.min() < 0 or len(np.unique(self.indices)) != len(self):
            raise InputError(f"{self.name}: dataset indices must be distinct and not negative")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise InputError(f"{self.name}: {len(self.class_names)} class names for {self.num_classes} classes")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (C, H, W) of one image."""
        return self.images.shape[1], self.images.shape[2], self.images.shape[3]

    def take(self, positions: Sequence[int] | NDArray[np.int64], *, name: str | None = None) -> "ImageSet":
        """Return the images at `positions` of this set, in that order; their dataset indices stay.

        A few of many photos on demand are decoded once and for all.
        """
        chosen = np.asarray(positions, dtype=np.int64)
        images: Images | Photos
        if isinstance(self.images, Photos):
            photos = self.images.take(chosen)
            images = photos[:] if photos.is_small and not self.images.is_small else photos
        else:
            images = self.images[chosen]
        return replace(
            self,
            images=images,
            labels=self.labels[chosen],
            indices=self.indices[chosen],
            name=self.name if name is None else name,
        )

    def select(self, selection: str | None) -> "ImageSet":
        """Return the images that `--images` asks for: `every:20`, `first:500`, `most:500`, `0-499`; all if None."""
        return self if selection is None else self.take(selected(selection, self.labels, name=self.name))

    def named_as(self, names: tuple[str, ...]) -> "ImageSet":
        """Return the set with its classes in the order of `names`; one that does not know its names is left as it is.

        Raises:
            MismatchError: the set has other classes.
        """
        if not names or not self.class_names or self.class_names == names:
            return self
        if sorted(names) != sorted(self.class_names):
            strange, absent = sorted({*self.class_names} - {*names}), sorted({*names} - {*self.class_names})
            if strange and absent:
                how = f"{_few(strange)} instead of {_few(absent)}; name its folders as those of the training images"
            elif strange:
                how = f"{_few(strange)} as well; take those folders away"
            else:
                how = f"not {_few(absent)}; an empty folder stands for a class without images"
            raise MismatchError(f"{self.name} has other classes than the model was trained on: {how}")
        number = np.array([names.index(name) for name in self.class_names])
        return replace(self, labels=number[self.labels], class_names=names)

    def record(self) -> dict[str, Any]:
        """Return what is needed, beside the files, to read the same images again, as plain data."""
        found = {"name": self.name, "images": len(self), "shape": list(self.shape)}
        names = {"class_names": list(self.class_names)} if self.class_names else {}
        return {**found, **names, **({} if self.fit is None else {"fit": self.fit})}

    def fingerprint(self) -> str:
        """Return a SHA-256 of pixels, labels and dataset indices; equal sets have equal ones, whatever their names."""
        digest = hashlib.sha256(f"{self.images.dtype.str} {self.images.shape}".encode())
        for image in self.images:
            digest.update(np.ascontiguousarray(image).data)
        for array in (self.labels, self.indices):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def identity(self) -> str:
        """Return the fingerprint; of many photos on demand, one made of names and sizes of their files instead of pixels."""
        if not isinstance(self.images, Photos) or self.images.is_small:
            return self.fingerprint()
        digest = hashlib.sha256(self.images.listing_digest().encode())
        for array in (self.labels, self.indices):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def image_digests(self) -> Iterator[bytes]:
        """Hash shape and pixels of each image; an 8-bit image and its float copy (levels / 255) hash alike."""
        if isinstance(self.images, Photos):
            yield from self.images.digests()
            return
        for image in self.images:
            yield image_digest(_canonical(image))


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _canonical(image: Images) -> Images:
    if image.dtype == np.uint8:
        return image
    levels = np.rint(image * np.float32(255))
    on_grid = bool((np.abs(image - levels / np.float32(255)) <= 1e-6).all())
    return levels.astype(np.uint8) if on_grid else image


def selected(selection: str | None, labels: NDArray[np.int64], *, name: str) -> Sequence[int]:
    """Return the positions that `selection` names; warn if they are all of one class, where the images are not."""
    chosen = range(len(labels)) if selection is None else positions_of(selection, len(labels), name=name)
    if len(chosen) > 1 and len(set(labels[chosen].tolist())) == 1 and (labels != labels[0]).any():
        log.warning(
            "--images %s takes %s images of %s of one class only, since they are sorted by class: use most:%s or every:%s",
            selection, f"{len(chosen):,}", name, len(chosen), max(1, len(labels) // len(chosen)),
        )  # fmt: skip
    return chosen


def positions_of(selection: str, count: int, *, name: str) -> Sequence[int]:
    """Return the positions within `count` images that `selection` names; raise InputError if one is not there."""
    match = re.fullmatch(r"(?:(every|first|most):(\d{1,18})|(\d{1,18})-(\d{1,18}))", selection.strip(), re.ASCII)
    if match is None:
        raise InputError(f"cannot read the image selection {selection!r}; valid are {SELECTIONS}")
    rule, number, first, last = match.groups()
    if rule is None:
        chosen = range(int(first), int(last) + 1)
        fits = len(chosen) > 0 and chosen[-1] < count
    elif rule == "most" and int(number) > 0:
        return evenly(min(int(number), count), count)
    else:
        fits = 0 < int(number) <= count
        chosen = range(0, count, max(int(number), 1)) if rule == "every" else range(int(number))
    if not fits:
        raise InputError(f"image selection {selection!r} does not fit {name}, which has the positions 0-{count - 1}")
    return chosen


def evenly(wanted: int, count: int) -> list[int]:
    """Return `wanted` of `count` positions, evenly spaced, since sets are often sorted by class."""
    spaced: list[int] = np.linspace(0, count - 1, wanted).round().astype(np.int64).tolist()
    return spaced


def split(image_set: ImageSet, percent: Sequence[float], seed: int) -> tuple[ImageSet, ...]:
    """Cut a set into disjoint parts of the given percentages, the same for the same images and seed on every machine.

    Images are ordered by SHA-256(seed, pixels), so the order depends on neither their positions nor any generator, and
    identical images always land in the same part. Within a part the original order is kept.
    """
    if len(percent) < 2 or min(percent) <= 0 or not abs(sum(percent) - 100) <= 1e-9:  # NaN is not above 1e-9 either
        raise InputError(f"a split needs two or more positive percentages that sum to 100, got {list(percent)}")
    keys = [hashlib.sha256(f"{seed} ".encode() + digest).digest() for digest in image_set.image_digests()]
    order = sorted(range(len(keys)), key=lambda position: (keys[position], position))
    cuts = [0]
    for share in np.cumsum(percent)[:-1]:
        cut = max(cuts[-1], round(len(order) * float(share) / 100))
        while 0 < cut < len(order) and keys[order[cut]] == keys[order[cut - 1]]:
            cut += 1
        cuts.append(cut)
    cuts.append(len(order))
    parts = [sorted(order[low:high]) for low, high in pairwise(cuts)]
    if not all(parts):
        raise InputError(
            f"{image_set.name}: splitting {len(image_set)} images into {','.join(f'{p:g}' for p in percent)} % "
            f"leaves a part empty (sizes {[len(part) for part in parts]}); give more distinct images"
        )
    label = f"split {','.join(f'{p:g}' for p in percent)} seed {seed}"
    free = replace(image_set, role=None)  # each part has another use than the whole
    return tuple(free.take(part, name=f"{free.name} ({label}, part {i})") for i, part in enumerate(parts, start=1))


def check_disjoint(*sets: ImageSet) -> None:
    """Refuse an image (by its pixels) that two sets hold: certificates must not rest on images the search saw.

    Many photos on demand are compared when they are read; of several such sets, the largest.
    """
    large = [each.images for each in sets if isinstance(each.images, Photos) and not each.images.is_small]
    later = max(large, key=len, default=None)
    seen: dict[bytes, tuple[int, int]] = {}
    for number, image_set in enumerate(sets):
        if image_set.images is later:
            continue
        for index, digest in zip(image_set.indices, image_set.image_digests(), strict=True):
            earlier, other = seen.setdefault(digest, (number, int(index)))
            if earlier != number:
                raise MismatchError(
                    f"image {other} of {sets[earlier].name} and image {index} of {image_set.name} are the same; "
                    "sets for calibration, search and certification must not share images (use --split, or remove it)"
                )
    if later is not None:
        later.refuse({digest: f"image {index} of {sets[number].name}" for digest, (number, index) in seen.items()})
