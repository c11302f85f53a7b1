"""Photos in files as an array of uint8 (N, C, H, W) that is decoded, by several threads, where it is looked at."""

import hashlib
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from arquant.base.errors import InputError, MismatchError
from arquant.images.crops import random_box
from arquant.images.decoding import Pixels, colours, fitted, opened, part_of, pixels_of, remarks
from arquant.models.photo_fit import fit_text

FEW, SMALL = 2_000, 128 * 2**20
"""photos, and bytes of decoded pixels: a set of no more is read at once where that tells something earlier"""
_AHEAD = 64
"""photos that a pass over all of them decodes at a time"""

log = logging.getLogger("arquant")
Item = TypeVar("Item")


def image_digest(image: NDArray[np.uint8] | NDArray[np.float32]) -> bytes:
    """Return the SHA-256 of shape and pixels of an image (C, H, W)."""
    return hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()


@dataclass
class Hashes:
    """What is known of the photos of a folder: the hash of each that was read, and hashes that none may have."""

    digests: NDArray[np.uint8]
    """(N, 32)"""
    known: NDArray[np.bool_]
    refused: dict[bytes, str] = field(default_factory=dict)
    """by hash, which image of another set has it"""
    noted: set[str] = field(default_factory=set)
    """kinds of remarks that the user has had"""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Photos:
    """Photos in files that look like an array of uint8 (N, C, H, W); what is indexed is decoded then, and not kept.

    The hash of a photo is made when it is first read. Damaged files are refused then too.

    Args:
        files: the folder, and the paths of the photos below it.
        shape: (C, H, W), C = 3 or 1, that each is brought to.
        fit: how (`arquant.models.photo_fit`); None refuses photos of another size than the first.
        numbers: which of the files are the photos, in their order.
        hashes: what is known of the files so far.
    """

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(
        self,
        files: tuple[Path, Sequence[str]],
        shape: tuple[int, int, int],
        fit: str | None,
        numbers: NDArray[np.int64],
        hashes: Hashes | None = None,
    ) -> None:
        self._files, self._image_shape, self.fit, self.numbers = files, shape, fit, numbers
        count = len(files[1])
        self._hashes = hashes or Hashes(np.zeros((count, 32), np.uint8), np.zeros(count, bool))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (N, C, H, W)."""
        return (len(self), *self._image_shape)

    @property
    def size(self) -> int:
        """Return the number of values."""
        return math.prod(self.shape)

    @property
    def is_small(self) -> bool:
        """Tell whether these are at most FEW photos that, decoded, take no more than SMALL bytes."""
        return len(self) <= FEW and self.size <= SMALL

    def __getitem__(self, where: int | np.integer | slice | NDArray[np.integer]) -> Pixels:
        """Decode one photo (C, H, W), or several (n, C, H, W)."""
        chosen: int | list[int] = self.numbers[where].tolist()
        return self._read(chosen) if isinstance(chosen, int) else self._stacked(self._read, chosen)

    def __iter__(self) -> Iterator[Pixels]:
        for start in range(0, len(self), _AHEAD):
            yield from self[start : start + _AHEAD]

    def take(self, positions: NDArray[np.int64]) -> "Photos":
        """Return some of the photos, in that order; what is known of one set is known of the other."""
        return Photos(self._files, self._image_shape, self.fit, self.numbers[positions], self._hashes)

    def crops(self, positions: NDArray[np.int64], share: float, seeds: Sequence[int]) -> Pixels:
        """Decode a random part of each photo, as `random_box` chooses it for the photo's own seed, at the photos' shape."""
        addressed = list(zip(self.numbers[positions].tolist(), seeds, strict=True))
        return self._stacked(lambda photo: self._crop(photo[0], share, photo[1]), addressed)

    def digests(self) -> Iterator[bytes]:
        """Return the hash of each photo; those that were not read so far are read."""
        for start in range(0, len(self), _AHEAD):
            chosen = self.numbers[start : start + _AHEAD]
            missing = chosen[~self._hashes.known[chosen]]
            for _ in _pool().map(self._read, missing.tolist()):
                pass
            yield from (self._hashes.digests[number].tobytes() for number in chosen)

    def read_so_far(self) -> "Photos":
        """Return those of the photos that were read, by this process."""
        return self.take(np.flatnonzero(self._hashes.known[self.numbers]))

    def refuse(self, digests: Mapping[bytes, str]) -> None:
        """Raise a MismatchError as soon as a photo with one of these hashes is read; the texts say where else it is."""
        self._hashes.refused.update(digests)

    def listing_digest(self) -> str:
        """Return a SHA-256 of names and sizes of the files and of how they are read; nothing is decoded for it."""
        root, names = self._files
        digest = hashlib.sha256(repr((self._image_shape, self.fit)).encode())
        for number in self.numbers:
            name = names[number]
            digest.update(f"{name}\0{os.stat(root / name).st_size}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def announce(self) -> None:
        """Tell the user, as a log entry, what is done to photos such as the first one; nothing if it is taken as it is."""
        (_, height, width), fit = self._image_shape, self.fit
        with opened(self._path(int(self.numbers[0]))) as image:
            before = image.size
        if fit not in (None, "exact") and before != (width, height):
            log.info("photos %s (--fit %s)", fit_text(fit, before, (width, height)), fit)

    def _path(self, number: int) -> Path:
        root, names = self._files
        return root / names[number]

    def _stacked(self, read: Callable[[Item], Pixels], wanted: Sequence[Item]) -> Pixels:
        pixels = np.empty((len(wanted), *self._image_shape), np.uint8)
        for row, picture in enumerate(_pool().map(read, wanted)):
            pixels[row] = picture
        return pixels

    def _read(self, number: int) -> Pixels:
        """Return one photo of the folder as models see it."""
        path = self._path(number)
        with opened(path) as image:
            pixels = self._whole(number, path, colours(image, self._image_shape[0]))
            self._note(path, remarks(image, *self._image_shape[:0:-1]))
            return pixels

    def _crop(self, number: int, share: float, seed: int) -> Pixels:
        channels, height, width = self._image_shape
        path = self._path(number)
        with opened(path) as image:
            picture = colours(image, channels)
            if not self._hashes.known[number]:
                self._whole(number, path, picture)
            self._check_allowed(number, path)
            box, mirrored = random_box(picture.size, (width, height), share, seed)
            return pixels_of(part_of(picture, box, mirrored=mirrored, width=width, height=height))

    def _whole(self, number: int, path: Path, picture: Image) -> Pixels:
        _, height, width = self._image_shape
        if self.fit is None and picture.size != (width, height):
            raise InputError(
                f"{path} is {picture.width} x {picture.height} pixels, {self._path(0).name} is {width} x {height}; bring "
                "all to one size or state the model's (--input 3,H,W)"
            )
        pixels = pixels_of(fitted(picture, self.fit or "exact", path, width=width, height=height))
        if not self._hashes.known[number]:
            self._hashes.digests[number] = np.frombuffer(image_digest(pixels), np.uint8)
            self._hashes.known[number] = True
        self._check_allowed(number, path)
        return pixels

    def _check_allowed(self, number: int, path: Path) -> None:
        hashes = self._hashes
        if hashes.refused and (other := hashes.refused.get(hashes.digests[number].tobytes())) is not None:
            raise MismatchError(
                f"{path} and {other} are the same image; sets for calibration, search and certification must not share "
                "images (use --split, or remove it)"
            )

    def _note(self, path: Path, found: Mapping[str, str]) -> None:
        """Tell the user of each kind of remark once."""
        with self._hashes.lock:
            new = [kind for kind in found if kind not in self._hashes.noted]
            self._hashes.noted.update(new)
        for kind in new:
            log.info("%s %s (said once)", path, found[kind])


@cache
def _pool() -> ThreadPoolExecutor:
    from arquant.base.threads import available_cores  # here, since it needs torch

    return ThreadPoolExecutor(available_cores(), "decode")
