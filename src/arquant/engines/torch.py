"""The reference engine: PyTorch on any device, compiled where a C++ compiler is at hand."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from arquant.base.allocator import keep_freed_memory
from arquant.base.processor import Precision, compile_alone, compiler_available
from arquant.base.threads import torch_threads
from arquant.engines.base import BUFFER_TYPES, NO_CLASS, GraphEngine, InputKind
from arquant.models.classifier import Classifier

log = logging.getLogger(__name__)

_MOST_WORKERS = 8
"""more would wait for each other: between two kernels a batch holds Python's lock"""


class LabelsFromPixels(nn.Module):
    """Noisy images as an engine's buffers hold them -> class labels."""

    def __init__(self, classifier: Classifier, input_kind: InputKind) -> None:
        super().__init__()
        self.classifier = classifier
        self.step = 1 / 255 if input_kind == "levels" else 1.0

    def logits(self, pixels: Tensor) -> Tensor:
        """Logits of a batch in engine units."""
        logits: Tensor = self.classifier(self.classifier.from_unit(pixels.float() * self.step))
        return logits

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the class of each image of a batch in engine units, or NO_CLASS."""
        return labels_by(self.logits(pixels))


class Votes(LabelsFromPixels):
    """Labels and the logits behind them: the whole path that an engine compiles."""

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the class of each image of a batch in engine units, or NO_CLASS, and its logits."""
        logits = self.logits(pixels)
        return labels_by(logits), logits


def labels_by(logits: Tensor) -> Tensor:
    """Return the class of each image, or NO_CLASS."""
    return torch.where(logits.isnan().any(1), NO_CLASS, logits.argmax(1))


class TorchEngine(GraphEngine):
    """Computes labels with PyTorch, on CPUs several batches at a time, each on cores of its own.

    That needs a network which torch.compile captures whole: what a forward pass leaves on the module, as some networks do
    for a later layer, is then part of the graph, and two passes at once cannot mix it up. Other networks run one batch at a
    time on all cores, as do all without a compiler: about 1.5 times slower on two cores.

    Args:
        compiled: use torch.compile where a compiler is at hand.
        frozen: compile the weights in, as they are now, which is faster; False follows a network that changes between votes.
        threads: at most this many; by default as many as PyTorch uses.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        batch: int,
        input_kind: InputKind,
        device: str = "cpu",
        compiled: bool = True,
        frozen: bool = True,
        threads: int | None = None,
        precision: Precision = "float32",
    ) -> None:
        keep_freed_memory()
        self.device, self.precision = torch.device(device), precision
        self.compiled = compiled and compiler_available(self.device)
        self.threads = threads or torch.get_num_threads()
        if self.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # else float32 convolutions are rounded to 10 bits, unsaid
        # a copy: whatever becomes of the caller's network, the votes are of this one
        network = Votes(classifier.snapshot() if frozen else classifier, input_kind).eval()
        self._format = classifier.memory_format
        self._network = network.to(device=self.device, memory_format=self._format)  # type: ignore[call-overload]
        self._run: Callable[[Tensor], tuple[Tensor, Tensor]] = self._network
        self._threads_each = self.threads
        workers = self._compile(frozen, np.zeros((batch, *classifier.input_shape), BUFFER_TYPES[input_kind]))
        super().__init__(batch=batch, input_shape=classifier.input_shape, input_kind=input_kind, workers=workers)

    def _compile(self, frozen: bool, blank: np.ndarray) -> int:
        """Compile the network if asked to; how many workers may run it at once."""
        options: Any = {"freezing": True} if frozen else None
        workers = min(self.threads, _MOST_WORKERS) if self.compiled and self.device.type == "cpu" else 1
        if workers > 1:
            self._run = compile_alone(self._network, fullgraph=True, options=options)
            self._threads_each = self.threads // workers
            try:
                self.labels_of(blank)
            except Exception as error:  # whatever stops the capture of the whole, the network itself may still run
                log.debug("one batch at a time: %s", error)
            else:
                return workers
        self._run, self._threads_each = self._network, self.threads
        if self.compiled:
            self._run = compile_alone(self._network, options=options)
        return 1

    @property
    def network(self) -> nn.Module:
        """The network that computes the votes, with whatever its calls have left on it."""
        network: nn.Module = self._network
        return network

    def labels_of(self, batch: np.ndarray) -> npt.NDArray[np.int64]:
        """Return the class of each image of a full batch, or NO_CLASS."""
        labels: npt.NDArray[np.int64] = self._infer(batch)[0].cpu().numpy()
        return labels

    def logits_of(self, batch: np.ndarray) -> npt.NDArray[np.float32]:
        """Return the logits (batch, classes) behind `labels_of`."""
        logits: npt.NDArray[np.float32] = self._infer(batch)[1].float().cpu().numpy()
        return logits

    def _infer(self, batch: np.ndarray) -> tuple[Tensor, Tensor]:
        mixed = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
        self._network.eval()  # whoever trains the classifier between two runs leaves it in training mode
        with torch.no_grad(), mixed, torch_threads(self._threads_each):
            pixels = torch.from_numpy(batch).to(self.device).contiguous(memory_format=self._format)
            return self._run(pixels)

    def describe(self) -> dict[str, Any]:
        """Return what a certificate must record about how its votes were computed."""
        return {
            "engine": "torch",
            "version": torch.__version__,
            "precision": self.precision,
            "compiled": self.compiled,
            "device": str(self.device),
            "threads": self.threads,
            "workers": self.workers,
            "batch": self.batch,
        }
