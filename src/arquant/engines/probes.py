"""Images by which an engine is tested before and after it votes, and the batches in which it meets them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arquant.engines.base import BUFFER_TYPES
from arquant.images.imageset import ImageSet
from arquant.noise.source import Noise, NoiseSource, noise_key

ORDINARY = 10
"""probes that are images of the run under its noise"""
_LARGER = 4
"""times the run's noise, in a probe that is far from what an engine meets in the run"""

Layout = npt.NDArray[np.int64]
"""which probe stands at each row of a batch"""


@dataclass(frozen=True, eq=False)
class Probes:
    """Images as an engine's buffers hold them: first ORDINARY ones, then a clean, a black and a white one without noise, black
    and white with noise, and two whose noise is larger than the run's.
    """

    images: np.ndarray
    noise: Noise

    def __len__(self) -> int:
        return len(self.images)


def make_probes(images: ImageSet, noise: Noise, *, seed: int) -> Probes:
    """Probes of a run: its own images, spread over the set, with its own noise, drawn under a key that nothing else uses."""
    source = NoiseSource(noise, noise_key(seed, "probe"), images.shape)
    spread = images.images[np.linspace(0, len(images) - 1, ORDINARY).round().astype(int)]
    black = np.zeros(images.shape, np.uint8)
    noisy = [_noisy(source, image, sample) for sample, image in enumerate([*spread, black, black + 255])]
    clean = [_clean(image, noise) for image in (spread[0], black, black + 255)]
    far = [clean[row] + _LARGER * (noisy[sample].astype(np.float32) - clean[row]) for row, sample in ((0, 0), (2, 11))]
    if noise.kind == "grid":
        limits = np.iinfo(np.int16)
        far = [np.rint(image).clip(limits.min, limits.max) for image in far]
    kind = BUFFER_TYPES["levels" if noise.kind == "grid" else "unit"]
    return Probes(np.stack([*noisy[:ORDINARY], *clean, *noisy[ORDINARY:], *far]).astype(kind), noise)


def _noisy(source: NoiseSource, image: np.ndarray, sample: int) -> np.ndarray:
    kind = BUFFER_TYPES["levels" if source.noise.kind == "grid" else "unit"]
    out = np.empty((1, *image.shape), kind)
    source.add(image, 0, sample, 1, out)  # of one chunk, which is drawn as a whole
    noisy: np.ndarray = out[0]
    return noisy


def _clean(image: np.ndarray, noise: Noise) -> np.ndarray:
    levels = image.astype(np.float32) * np.float32(1 if image.dtype == np.uint8 else 255)
    clean: np.ndarray = np.rint(levels) if noise.kind == "grid" else levels / 255
    return clean


def layouts(probes: int, batch: int) -> list[Layout]:
    """Batches in which each probe meets different companions at different rows; the first ones hold all probes.

    Then: all in reverse order, the ordinary ones only, one image in all rows, single images among others that are all
    black, all white or far out.
    """
    everything = np.arange(probes)
    mixed = [*_cycled(everything, batch), *_cycled(everything[::-1], batch), *_cycled(everything[:ORDINARY], batch)]
    alike = [np.full(batch, probe) for probe in (0, 1, ORDINARY)]
    lonely = []
    for turn, companion in enumerate((ORDINARY + 1, ORDINARY + 2, probes - 1)):
        rows = np.full(batch, companion)
        rows[[0, batch // 2, batch - 1]] = np.roll((2, 3, 4), turn)
        lonely.append(rows)
    return [*mixed, *alike, *lonely]


def _cycled(order: Layout, batch: int) -> list[Layout]:
    """Return the probes in this order, again and again until the last batch is full."""
    count = -(-len(order) // batch)
    return list(np.resize(order, (count, batch)))
