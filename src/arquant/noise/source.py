"""Addressed noise: sample j of image i under a key is the same for any batch, order, process, machine or resume.

The bits are NumPy's Philox4x64-10 through `random_raw`, a stream that NumPy promises never to change. NumPy's
counter has four 64-bit words, word 0 the least significant; the generator adds 1 to it *before* it makes each block of
four outputs. The chunk of samples 64 c .. 64 c + 63 of image i starts from counter (0, c, i, stream), so word 0 counts
the blocks of the chunk and no two chunks, images or streams can meet. The streams:

- 0, the main one. `gaussian`, `uniform` and `laplace` take one word per value. `grid` takes 16 bits per value, four
  values per word, lowest bits first: the leading bits of the value's 64-bit uniform U. They decide 97 to 99 % of the
  levels (see `noise_table`).
- 1: the other 48 bits of U (the upper 48 of a word) for the undecided values, in the order in which they occur.
- 2: the other 48 bits for the decided ones, word k for value k; read only where the real number is wanted.

All kinds are inverse CDFs. U stands for the midpoint u = (U + 1/2) / 2^64 of the open interval (0, 1), evaluated on its
smaller side (u or 1 - u, float64), so the tails are symmetric and reach 2^-65: 9.16 sigma for the normal, 44.4 scales
for the Laplace distribution.

Exactness: given ideal bits, a `grid` sample of d values is within total variation d (reach + 1) 2^-64 of the rounded
Gaussian (`NoiseSource.total_variation`): 1.9e-13 per image for 3 x 32 x 32 at sigma 0.5, 1.9e-11 for 3 x 224 x 224 at
sigma 1. Its integers involve no floating point and never change. The other kinds are float32 values, each within
rounding (relative 2^-24) of the quantile of u; they may differ in the last bit where SciPy's ndtri or NumPy's log do.
"""

import math
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from arquant.base.errors import InputError
from arquant.certificates.bounds import check_sigma
from arquant.noise.keys import PURPOSES, NoiseKey, fresh_seed, noise_key
from arquant.noise.table import UNDECIDED, GridTable, grid_table

__all__ = [
    "BANK_BYTES",
    "CHUNK",
    "KINDS",
    "MAX_GRID_SIGMA",
    "PURPOSES",
    "Noise",
    "NoiseKey",
    "NoiseSource",
    "fresh_seed",
    "noise_key",
]

CHUNK = 64
"""samples that are drawn together; the unit of addressing"""
KINDS = ("grid", "gaussian", "uniform", "laplace")
MAX_GRID_SIGMA = 13.9
"""beyond it, 255 sigma max|z| + 255 would pass 32767, the largest 16-bit level"""
BANK_BYTES = 1 << 26
"""how much noise a shared source keeps; what exceeds it is drawn again"""

_SHAREABLE = ("search", "shortlist")
_BLOCK = 1 << 15  # values per step, so that temporaries stay in the cache and memory flat for large images;
_REAL_BLOCK = (
    1 << 13
)  # arrays of 8 bytes per value: larger ones go back to the system each time, which doubles the cost
_MAIN, _UNDECIDED_BITS, _DECIDED_BITS = range(3)

Array = NDArray[Any]


@dataclass(frozen=True)
class Noise:
    """The noise added to each value of an image; `sigma` is its standard deviation in units of the pixel range."""

    kind: str
    sigma: float

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"noise must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not isinstance(self.sigma, (int, float, np.integer, np.floating)):
            raise InputError(f"sigma must be a positive number, got {self.sigma!r}")
        check_sigma(self.sigma)
        if self.kind == "grid" and self.sigma > MAX_GRID_SIGMA:
            raise InputError(
                f"sigma {self.sigma:g} is {self.sigma:g} times the range from black to white: check its units first "
                f"({self.sigma:g} grey levels are sigma {self.sigma / 255:.4g}). Grid noise has 16-bit levels, which hold "
                f"sigma up to {MAX_GRID_SIGMA}; larger noise is gaussian"
            )
        object.__setattr__(self, "sigma", float(self.sigma))

    @property
    def norm(self) -> str:
        """Return the norm in which radii under this noise are certified."""
        return "l2" if self.kind in ("grid", "gaussian") else "l1"


class NoiseSource:
    """The noise of every image and sample under one key, for images of one shape (C, H, W).

    Drawn arrays are read-only; the last chunk is kept, so that batches may cut chunks anywhere. `shared` gives all
    images the noise of image 0 and keeps it (up to BANK_BYTES): for scores of `search` and `shortlist` only, since
    certificates need independent images. Sources may be used from several threads, and pickled.
    """

    def __init__(self, noise: Noise, key: NoiseKey, shape: tuple[int, ...], *, shared: bool = False) -> None:
        if not shape or any(operator.index(side) < 1 for side in shape):
            raise InputError(f"the shape of an image must be positive, like (3, 32, 32), got {shape}")
        if shared and key.purpose not in _SHAREABLE:
            raise InputError(
                f"one noise bank for all images is for {' and '.join(_SHAREABLE)} only, got purpose {key.purpose!r}"
            )
        self.noise = noise
        self.key = key
        self.shape = tuple(operator.index(side) for side in shape)
        self.shared = shared
        self._kept: dict[tuple[str, int, int], Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    @property
    def total_variation(self) -> float | None:
        """Bound on the distance of a `grid` sample (one image) from the exact law, given ideal bits; else None."""
        if self.noise.kind != "grid":
            return None
        return math.prod(self.shape) * grid_table(self.noise.sigma).total_variation

    def integers(self, image_index: int, chunk: int) -> NDArray[np.int16]:
        """Return grid noise in levels (1/255 of the pixel range): int16 (64, C, H, W), the samples of one chunk."""
        if self.noise.kind != "grid":
            raise InputError(f"only grid noise is made of integers, this is {self.noise.kind}")
        return self._chunk("levels", image_index, chunk, self._draw_levels)

    def unit(self, image_index: int, chunk: int) -> NDArray[np.float32]:
        """Return noise in units of the pixel range: float32 (64, C, H, W), the samples of one chunk.

        For `grid` it is the real number before rounding: rint(255 e), in float64, equals `integers` in every value.
        """
        return self._chunk("unit", image_index, chunk, self._draw_unit)

    def add(self, image: Array, image_index: int, first_sample: int, count: int, out: Array) -> None:
        """Write the noisy copies `first_sample` .. `first_sample + count - 1` of an image, of one chunk, into `out`.

        Args:
            image: (C, H, W), uint8, or floats in units of the pixel range.
            image_index: of the image in its dataset; it addresses the noise.
            first_sample: from 0; together with `count` within samples 64 c .. 64 c + 63.
            count: number of copies, at least 1.
            out: (count, C, H, W). For grid noise int16: the level 255 x + e rounded to an integer, not clipped. Else
                float32: x + e in units of the pixel range, not clipped.
        """
        chunk, start = divmod(operator.index(first_sample), CHUNK)
        stop = start + operator.index(count)
        if not start < stop <= CHUNK:
            raise InputError(
                f"samples {first_sample} to {first_sample + count - 1} are not one or more of one chunk of {CHUNK}"
            )
        self._check(image, count, out)
        if self.noise.kind != "grid":
            unit = 255 if image.dtype == np.uint8 else 1
            pixels = np.divide(image, unit, dtype=np.float32, casting="same_kind")
            np.add(self.unit(image_index, chunk)[start:stop], pixels, out=out)
        elif image.dtype == np.uint8:
            np.add(self.integers(image_index, chunk)[start:stop], image.astype(np.int16), out=out)
        else:
            scaled = 255 * image.astype(np.float64)
            if np.abs(scaled).max() + grid_table(self.noise.sigma).reach > np.iinfo(np.int16).max:
                raise InputError(
                    f"image {image_index} has values up to {np.abs(image).max()}: too large for 16-bit levels"
                )
            real = self._chunk("real", image_index, chunk, self._draw_real)
            np.rint(real[start:stop] + scaled, out=out, casting="unsafe")

    def _check(self, image: Array, count: int, out: Array) -> None:
        if image.shape != self.shape:
            raise InputError(f"the noise is for images of shape {self.shape}, got {image.shape}")
        if image.dtype != np.uint8 and image.dtype.kind != "f":
            raise InputError(f"images must be uint8, or floats in units of the pixel range, got {image.dtype}")
        if image.dtype.kind == "f" and not np.isfinite(image).all():
            raise InputError("an image to add noise to has a NaN or an infinite value")
        wanted = np.int16 if self.noise.kind == "grid" else np.float32
        if out.shape != (count, *self.shape) or out.dtype != wanted:
            raise InputError(
                f"out must be {np.dtype(wanted).name} {(count, *self.shape)}, got {out.dtype.name} {out.shape}"
            )

    def _chunk(self, form: str, image_index: int, chunk: int, draw: Callable[[int, int], Array]) -> Array:
        image_index, chunk = operator.index(image_index), operator.index(chunk)
        if not (0 <= image_index < 1 << 64 and 0 <= chunk < 1 << 64):
            raise InputError(f"image index and chunk must be at least 0, got {image_index} and {chunk}")
        address = (form, 0 if self.shared else image_index, chunk)
        drawn = self._kept.get(address)
        if drawn is None:
            drawn = draw(address[1], chunk).reshape(CHUNK, *self.shape)
            drawn.setflags(write=False)
            kept = dict(self._kept)  # replaced as a whole, never edited: other threads may be reading it
            limit = BANK_BYTES if self.shared else 0
            while kept and sum(array.nbytes for array in kept.values()) + drawn.nbytes > limit:
                kept.popitem()  # the newest goes, so that a bank read in order keeps its beginning
            self._kept = {**kept, address: drawn}
        return drawn

    def _stream(self, image_index: int, chunk: int, stream: int) -> np.random.Philox:
        counter = np.array([0, chunk, image_index, stream], dtype=np.uint64)
        return np.random.Philox(key=np.array(self.key.words, dtype=np.uint64), counter=counter)

    def _blocks(self, length: int) -> Iterator[slice]:
        size = CHUNK * math.prod(self.shape)
        return (slice(start, min(start + length, size)) for start in range(0, size, length))

    def _draw_levels(self, image_index: int, chunk: int) -> Array:
        main, rest = (self._stream(image_index, chunk, stream) for stream in (_MAIN, _UNDECIDED_BITS))
        levels = np.empty(CHUNK * math.prod(self.shape), dtype=np.int16)
        for block in self._blocks(_BLOCK):
            _fill_levels(grid_table(self.noise.sigma), main, rest, levels[block])
        return levels

    def _draw_real(self, image_index: int, chunk: int) -> Array:
        """Return 255 times the grid noise before rounding, float64; rint of it is the level."""
        streams = (_MAIN, _UNDECIDED_BITS, _DECIDED_BITS)
        main, rest, others = (self._stream(image_index, chunk, stream) for stream in streams)
        real = np.empty(CHUNK * math.prod(self.shape))
        for block in self._blocks(_REAL_BLOCK):
            part = real[block]
            level = np.empty(part.size, dtype=np.int16)
            leading, undecided, decisive = _fill_levels(grid_table(self.noise.sigma), main, rest, level)
            words = _join(leading, others.random_raw(part.size))
            words[undecided] = decisive
            np.multiply(_quantile("gaussian", words), 255 * self.noise.sigma, out=part)
            # ndtri is off by some 1e-16, which may carry a value over the edge that the exact table drew
            astray = np.flatnonzero(np.rint(part) != level)
            centre = level[astray].astype(np.float64)
            part[astray] = np.nextafter(centre + np.copysign(0.5, part[astray] - centre), centre)
        return real

    def _draw_unit(self, image_index: int, chunk: int) -> Array:
        if self.noise.kind == "grid":
            return _rounding_alike(self._chunk("real", image_index, chunk, self._draw_real))
        main = self._stream(image_index, chunk, _MAIN)
        unit = np.empty(CHUNK * math.prod(self.shape), dtype=np.float32)
        for block in self._blocks(_REAL_BLOCK):
            part = unit[block]
            part[:] = self.noise.sigma * _quantile(self.noise.kind, main.random_raw(part.size))
        return unit


def _fill_levels(
    table: GridTable, main: np.random.Philox, rest: np.random.Philox, levels: NDArray[np.int16]
) -> tuple[NDArray[np.uint16], NDArray[np.intp], NDArray[np.uint64]]:
    """Draw into `levels`; return the leading bits, which values they left undecided, and the 64-bit words of those."""
    leading = _sixteen_bits(main, levels.size)
    np.take(table.guide, leading, out=levels, mode="wrap")  # no index is out of range, and the default mode copies
    undecided = np.flatnonzero(levels == UNDECIDED)
    decisive = _join(leading[undecided], rest.random_raw(undecided.size))
    levels[undecided] = table.levels(decisive)
    return leading, undecided, decisive


def _sixteen_bits(stream: np.random.Philox, count: int) -> NDArray[np.uint16]:
    """Return the next `count` (a multiple of 4) 16-bit values of a stream, the lowest bits of each word first."""
    words = stream.random_raw(count // 4)
    return (words if sys.byteorder == "little" else words.byteswap()).view("<u2")


def _join(leading: NDArray[np.uint16], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64-bit uniforms made of sixteen leading bits and the upper 48 bits of `words`."""
    return (leading.astype(np.uint64) << np.uint64(48)) | (words >> np.uint64(16))


def _quantile(kind: str, words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the quantile, at (word + 1/2) / 2^64, of the distribution with mean 0 and standard deviation 1."""
    upper = words.view(np.int64) >> 63  # -1 in the upper half, else 0
    smaller = (words.view(np.int64) ^ upper).astype(np.float64)
    smaller += 0.5
    smaller *= 2.0**-64
    if kind == "gaussian":
        lower = ndtri(smaller)
    elif kind == "uniform":
        lower = math.sqrt(3) * (2 * smaller - 1)
    else:
        lower = math.sqrt(0.5) * np.log(2 * smaller)
    return lower * (upper | 1)


def _rounding_alike(real: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return `real` / 255 in float32, moved by one float32 step where the conversion would change rint(real)."""
    unit = (real / 255).astype(np.float32)
    astray = np.rint(255 * unit.astype(np.float64)) != np.rint(real)
    unit[astray] = np.nextafter(unit[astray], (np.rint(real[astray]) / 255).astype(np.float32))
    return unit
