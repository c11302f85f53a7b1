"""What an engine is: it turns fixed-size batches of noisy images into class labels, several batches in flight.

The caller takes a free buffer, fills it, submits it, and collects labels in the order of submission. Buffers are reused, so
memory does not grow with the number of votes. Every batch has the same size (the caller pads), so that a network's answer
for an image is computed by the same kernels whatever else is in the batch.
"""

import abc
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, Protocol, final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch.nn import Module

InputKind = Literal["levels", "unit"]
"""levels: int16 multiples of 1/255 of the pixel range (grid noise); unit: float32 in units of the pixel range."""

OPENVINO_FLOAT32: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
"""settings with which OpenVINO computes a model as it is written; where it may choose, it may choose bfloat16"""
NO_CLASS = -1
"""the label of an image for which a network's logits hold NaN"""
BUFFER_TYPES: dict[InputKind, type[np.generic]] = {"levels": np.int16, "unit": np.float32}


def input_kind(noise: str) -> InputKind:
    """Return what an engine's buffers hold under this kind of noise."""
    return "levels" if noise == "grid" else "unit"


class Engine(abc.ABC):
    """Runs one classifier on batches of `batch` images; subclasses supply `labels_of` and `describe`.

    Args:
        batch: number of images in every batch.
        input_shape: (C, H, W).
        input_kind: what the buffers hold.
        workers: how many batches are computed at the same time.
    """

    fingerprint: str | None = None
    """of the classifier, as it was when the engine was made; None where the engine follows one that changes"""
    clock: Callable[[], float] = staticmethod(time.perf_counter)
    """tells the seconds by which throughput is measured"""

    def __init__(
        self, *, batch: int, input_shape: tuple[int, int, int], input_kind: InputKind, workers: int = 1
    ) -> None:
        self.batch = batch
        self.input_shape = input_shape
        self.input_kind = input_kind
        self.workers = workers
        self.depth = workers + 1
        dtype = BUFFER_TYPES[input_kind]
        self._free = deque(np.zeros((batch, *input_shape), dtype) for _ in range(self.depth + 1))
        self._flight: deque[tuple[Future[npt.NDArray[np.int64]], np.ndarray]] = deque()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="arquant-engine")

    @abc.abstractmethod
    def labels_of(self, batch: np.ndarray) -> npt.NDArray[np.int64]:
        """Return the class of each image of a full batch, or NO_CLASS; a worker thread calls it, never twice at once."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a certificate must record: engine, version, precision, threads, batch, device."""

    @property
    def in_flight(self) -> int:
        """Number of batches submitted and not yet collected."""
        return len(self._flight)

    @final
    def buffer(self) -> np.ndarray:
        """Return a buffer to fill and submit; its old contents are arbitrary but valid images."""
        return self._free.popleft()

    @final
    def release(self, buffer: np.ndarray) -> None:
        """Give back a buffer that was not submitted."""
        self._free.append(buffer)

    @final
    def submit(self, buffer: np.ndarray) -> None:
        """Start computing; at most `depth` batches may be in flight."""
        self._flight.append((self._pool.submit(self.labels_of, buffer), buffer))

    @final
    def collect(self) -> npt.NDArray[np.int64]:
        """Labels of the oldest batch in flight; waits for it."""
        future, buffer = self._flight.popleft()
        try:
            return future.result()
        finally:
            self._free.append(buffer)

    @final
    def drop(self) -> None:
        """Forget the batches in flight, and their errors; all buffers but those with the caller are free afterwards."""
        for future, _ in self._flight:
            future.cancel()
        while self._flight:
            future, buffer = self._flight.popleft()
            if not future.cancelled():
                future.exception()
            self._free.append(buffer)

    @final
    def images_per_second(self, seconds: float = 0.4) -> float:
        """Throughput on whatever the buffers hold, all workers busy, after one batch per worker that does not count."""
        try:
            for _ in range(self.depth):
                self.submit(self.buffer())
            for _ in range(self.depth):
                self.collect()
            start, done = self.clock(), 0
            while done == 0 or self.clock() - start < seconds:
                while self.in_flight < self.depth:
                    self.submit(self.buffer())
                self.collect()
                done += 1
            while self.in_flight:
                self.collect()
                done += 1
            return done * self.batch / (self.clock() - start)
        finally:
            self.drop()

    def close(self) -> None:
        """Stop the workers; batches in flight are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Passed(Protocol):
    """A test that an engine has passed (`arquant.engines.guard`)."""

    def saw(self, images: np.ndarray, labels: npt.NDArray[np.int64]) -> None:
        """Take note of a batch of the run and its labels."""

    def end(self) -> None:
        """Ask again what was asked in the beginning, and for some votes of the run; raise if an answer is another."""


class GraphEngine(Engine):
    """An engine that also shows the logits behind its labels, so that its function can be compared with its network's."""

    guard: Passed | None = None
    """the test that it has passed"""

    @property
    def network(self) -> "Module | None":
        """The PyTorch network whose calls are the votes; None where a graph was made of it."""
        return None

    @abc.abstractmethod
    def logits_of(self, batch: np.ndarray) -> npt.NDArray[np.float32]:
        """Return the logits (batch, classes) behind `labels_of`."""
