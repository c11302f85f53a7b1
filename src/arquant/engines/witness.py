"""A few votes of a run, drawn while they are counted: at its end the network is asked for them again, one image at a time.

Probes are not the run. A network may know them by what no run has (an image twice in a batch), or be honest whenever it is
probed and otherwise between. Nobody can know which votes are drawn.
"""

import random

import numpy as np
import numpy.typing as npt

MOST = 64
"""votes that are kept, of as many batches; a fault in a tenth of all batches escapes with a probability of 0.001"""


class Witness:
    """Keeps one image and its label from each of a few batches: a uniform sample of the batches of a run."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
        self._batches = 0
        self._kept: list[tuple[np.ndarray, int]] = []

    def see(self, images: np.ndarray, labels: npt.NDArray[np.int64]) -> None:
        """Look at a batch and its labels."""
        self._batches += 1
        place = self._random.randrange(self._batches)
        if self._batches > MOST and place >= MOST:
            return
        row = self._random.randrange(len(labels))
        kept = (images[row].copy(), int(labels[row]))
        if self._batches <= MOST:
            self._kept.append(kept)
        else:
            self._kept[place] = kept

    def take(self) -> tuple[np.ndarray, npt.NDArray[np.int64]]:
        """Return the images and labels that were kept, and begin anew."""
        kept, self._kept, self._batches = self._kept, [], 0
        return np.array([image for image, _ in kept]), np.array([label for _, label in kept], np.int64)
