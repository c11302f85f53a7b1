"""What an engine is measured by: the network itself, in PyTorch's eager mode, one image at a time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from arquant.base.errors import InputError
from arquant.base.threads import torch_threads
from arquant.engines.base import GraphEngine, InputKind
from arquant.engines.torch import LabelsFromPixels
from arquant.models.classifier import Classifier
from arquant.models.network_state import Luck, State, state_of

Logits = npt.NDArray[np.float32]
_NUDGE = 1e-6
"""relative change of the pixels, as large as the rounding of float32"""


class EagerReference:
    """A copy of the network in eager mode, called with one image at a time and always with the same luck.

    So a network that draws at random is a fixed function here too.
    """

    def __init__(self, classifier: Classifier, input_kind: InputKind) -> None:
        self._classes, self._name = classifier.num_classes, classifier.name
        self._device = classifier.mean.device
        self._network = LabelsFromPixels(classifier.snapshot(), input_kind).eval()
        self._luck = Luck(self._network)

    def logits_of(self, images: np.ndarray) -> Logits:
        """Logits of images, one at a time, with the same luck for each."""
        found = []
        for image in images:
            with self._luck.again():
                found.append(self._alone(image))
        return np.stack(found)

    def state_after(self, image: np.ndarray) -> State:
        """Return what the network keeps after a call with this image."""
        self.logits_of(image[None])
        return state_of(self._network)

    def draws(self, image: np.ndarray) -> bool:
        """Tell whether a call draws at random."""
        return self._luck.is_tried_by(lambda: self._alone(image))

    def samples(self, image: np.ndarray, count: int) -> Logits:
        """Logits of one image, called again and again, with new luck each time."""
        return np.stack([self._alone(image) for _ in range(count)])

    def nudged(self, image: np.ndarray, count: int) -> Logits:
        """Logits of an image whose pixels are changed in their last digits, `count` times."""
        rng = np.random.default_rng(0)
        factors = 1 + _NUDGE * rng.standard_normal((count, *image.shape))
        return self.logits_of((image * factors).astype(np.float32))

    def _alone(self, image: np.ndarray) -> npt.NDArray[np.float32]:
        pixels = torch.from_numpy(np.ascontiguousarray(image)).to(self._device)[None]
        with torch.no_grad(), torch_threads(1):  # a single small image is not worth more
            try:
                logits = self._network.logits(pixels)
            except Exception:  # of a network that needs several images, whose answer is then that for twins
                logits = self._network.logits(torch.cat([pixels, pixels]))
        if logits.numel() == self._classes:
            logits = logits.reshape(1, self._classes)
        if logits.shape[1:] != (self._classes,):
            raise InputError(
                f"model {self._name!r} gives {tuple(logits.shape)} for one image, not {self._classes} logits"
            )
        return logits[0].float().cpu().numpy()


class FileReference:
    """A file, run by an engine of the same kind with one thread, one image at a time if the file takes that."""

    def __init__(self, classifier: Classifier, engine: GraphEngine) -> None:
        make: Callable[..., GraphEngine] = type(engine)
        options = {"input_kind": engine.input_kind, "threads": 1}
        try:
            self._engine = make(classifier, batch=1, **options)
        except InputError:  # the file has a fixed number of images
            self._engine = make(classifier, batch=engine.batch, **options)

    def logits_of(self, images: np.ndarray) -> Logits:
        """Logits of images, one at a time; in a batch of more, the image fills it."""
        shape = (self._engine.batch, *images.shape[1:])
        return np.stack([self._engine.logits_of(np.broadcast_to(image, shape).copy())[0] for image in images])

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()
