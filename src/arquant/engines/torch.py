"""The reference engine: PyTorch on any device, compiled where a C++ compiler is at hand."""

import shutil
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from arquant.classifier import Classifier
from arquant.engines.allocator import keep_freed_memory
from arquant.engines.base import Engine, InputKind, Precision


class LabelsFromPixels(nn.Module):
    """Noisy images as an engine's buffers hold them -> class labels; the whole path that an engine compiles."""

    def __init__(self, classifier: Classifier, input_kind: InputKind) -> None:
        super().__init__()
        self.classifier = classifier
        self.step = 1 / 255 if input_kind == "levels" else 1.0

    def logits(self, pixels: Tensor) -> Tensor:
        """Logits of a batch in engine units."""
        logits: Tensor = self.classifier(self.classifier.from_unit(pixels.float() * self.step))
        return logits

    def forward(self, pixels: Tensor) -> Tensor:
        """The class of each image of a batch in engine units."""
        return self.logits(pixels).argmax(1)


class TorchEngine(Engine):
    """Computes labels with PyTorch; `compiled` uses torch.compile with the weights frozen in."""

    def __init__(
        self,
        classifier: Classifier,
        *,
        batch: int,
        input_kind: InputKind,
        device: str = "cpu",
        compiled: bool = True,
        threads: int | None = None,
        precision: Precision = "float32",
    ) -> None:
        super().__init__(batch=batch, input_shape=classifier.input_shape, input_kind=input_kind)
        keep_freed_memory()
        if threads is not None:
            torch.set_num_threads(threads)
        self.device, self.precision = torch.device(device), precision
        self.compiled = compiled and compiler_available(self.device)
        network = LabelsFromPixels(classifier, input_kind).eval()
        self._network = network.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._run = torch.compile(self._network, options={"freezing": True}) if self.compiled else self._network

    def labels_of(self, batch: np.ndarray) -> npt.NDArray[np.int64]:
        """The class of each image of a full batch."""
        mixed = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
        self._network.eval()  # whoever trains the classifier between two runs leaves it in training mode
        with torch.no_grad(), mixed:
            pixels = torch.from_numpy(batch).to(self.device).contiguous(memory_format=torch.channels_last)
            labels: npt.NDArray[np.int64] = self._run(pixels).cpu().numpy()
        return labels

    def describe(self) -> dict[str, Any]:
        """What a certificate must record about how its votes were computed."""
        return {
            "engine": "torch",
            "version": torch.__version__,
            "precision": self.precision,
            "compiled": self.compiled,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "batch": self.batch,
        }


def has_bfloat16(device: str = "cpu") -> bool:
    """Whether a device has arithmetic for bfloat16, which it then computes faster than float32."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported())
    able = torch.cpu.get_capabilities() if device == "cpu" else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def compiler_available(device: torch.device) -> bool:
    """Whether torch.compile can work here; warns once when a CPU run has to go without it."""
    if device.type != "cpu" or shutil.which("g++") or shutil.which("clang++"):
        return True
    warnings.warn("no C++ compiler found: running PyTorch uncompiled, about half as fast", RuntimeWarning, stacklevel=2)
    return False
