"""ONNX Runtime on CPU: the second, independent engine. It runs the ONNX form of a classifier, as it would be exported."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from arquant.base.errors import FileFormatError, InputError, MissingExtraError
from arquant.base.threads import available_cores
from arquant.engines.base import NO_CLASS, GraphEngine, InputKind
from arquant.engines.files import FileClassifier
from arquant.engines.onnx_model import onnx_model
from arquant.models.classifier import Classifier

_PRODUCTS = {"Conv", "FusedConv", "ConvTranspose", "MatMul", "FusedMatMul", "Gemm", "FusedGemm"}
_INTEGER_PRODUCTS = {"QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QGemm"}


class OnnxRuntimeEngine(GraphEngine):
    """Computes labels with ONNX Runtime: `threads` batches at a time, each on a thread of its own."""

    def __init__(
        self, classifier: Classifier, *, batch: int, input_kind: InputKind, threads: int | None = None
    ) -> None:
        threads = threads or available_cores()
        super().__init__(batch=batch, input_shape=classifier.input_shape, input_kind=input_kind, workers=threads)
        self.threads = threads
        self._session, self.kernels = _session(_source(classifier))
        self._input = self._session.get_inputs()[0].name
        fixed = self._session.get_inputs()[0].shape[0]
        if isinstance(fixed, int) and fixed != batch:
            raise InputError(
                f"{classifier.name} takes batches of {fixed} images only: use --batch {fixed}, --engine openvino, or export it "
                "with a free batch size"
            )
        low, high = classifier.bounds
        scale = (high - low) * (1 / 255 if input_kind == "levels" else 1.0)
        mean, std = np.zeros(()), np.ones(())
        if isinstance(classifier, FileClassifier):
            mean, std = classifier.mean.cpu().numpy(), classifier.std.cpu().numpy()
        self._factor = np.asarray(scale / std, np.float32)
        self._shift = np.asarray((low - mean) / std, np.float32)

    def labels_of(self, batch: np.ndarray) -> npt.NDArray[np.int64]:
        """Return the class of each image of a full batch, or NO_CLASS; of equal logits the first class wins."""
        logits = self.logits_of(batch)
        return np.where(np.isnan(logits).any(1), NO_CLASS, logits.argmax(1))

    def logits_of(self, batch: np.ndarray) -> npt.NDArray[np.float32]:
        """Return the logits (batch, classes) behind `labels_of`."""
        pixels = np.multiply(batch, self._factor, dtype=np.float32)
        if self._shift.any():
            pixels += self._shift
        (logits,) = self._session.run(None, {self._input: pixels})
        result: npt.NDArray[np.float32] = logits
        return result

    def describe(self) -> dict[str, Any]:
        """Return what a certificate must record about how its votes were computed."""
        import onnxruntime

        integer = {name for name in self.kernels if name in _INTEGER_PRODUCTS}
        precision = "float32" if not integer else "int8" if integer == set(self.kernels) else "mixed"
        return {
            "engine": "onnxruntime",
            "version": onnxruntime.__version__,
            "precision": precision,
            "kernels": self.kernels,
            "device": "cpu",
            "threads": self.threads,
            "batch": self.batch,
        }


def _source(classifier: Classifier) -> bytes | str:
    """Return the model, or the path of its file, beside which ONNX Runtime finds weights that are stored outside."""
    if not isinstance(classifier, FileClassifier):
        data: bytes = onnx_model(classifier).SerializeToString()
        return data
    if classifier.path.suffix != ".onnx":
        raise InputError(f"ONNX Runtime cannot run {classifier.path}; use --engine openvino")
    return str(classifier.path)


def _session(model: bytes | str) -> tuple[Any, dict[str, int]]:
    """Return a session that computes on the calling thread, and how often each kind of product occurs in it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnxruntime") from error
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        try:
            session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise FileFormatError(f"ONNX Runtime cannot load the model: {str(error).strip()}") from error
        optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
    products = Counter(n.op_type for n in optimized.graph.node if n.op_type in _PRODUCTS | _INTEGER_PRODUCTS)
    return session, dict(sorted(products.items()))
