"""OpenVINO on CPU: float networks in float32, quantized networks on integer kernels, one network per core.

A network is first an `openvino.Model` from pixels in the classifier's bounds to logits (`logits_model`); the engine
puts the conversion of its buffers before it and the arg max behind it, fixes the batch size and compiles the whole.
"""

import queue
import re
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arquant.base.errors import InputError
from arquant.base.processor import Precision, has_bfloat16
from arquant.base.threads import available_cores
from arquant.engines.base import NO_CLASS, OPENVINO_FLOAT32, GraphEngine, InputKind
from arquant.engines.files import FileClassifier
from arquant.engines.lowering import fits, lower, trace
from arquant.engines.open_network import TRACED
from arquant.engines.openvino_api import ops, ov
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import QuantizedClassifier

_PRODUCTS = dict.fromkeys(("Convolution", "Deconvolution", "FullyConnected", "MatMul"), 1)
_PRODUCTS |= dict.fromkeys(("ScaledDotProductAttention", "ScaledDotProductAttentionWithKVCache", "MHA"), 2)
_FACTS = ("layerType", "runtimePrecision", "originalLayersNames")
_INTEGER = {"u8", "i8"}


class OpenVinoEngine(GraphEngine):
    """Computes labels with OpenVINO: `threads` batches at a time, each on a core of its own.

    Floats are float32, whatever OpenVINO would choose on this processor, unless bfloat16 is asked for.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        batch: int,
        input_kind: InputKind,
        threads: int | None = None,
        precision: Precision = "float32",
    ) -> None:
        threads = threads or available_cores()
        if precision == "bfloat16" and not has_bfloat16():
            raise InputError("this processor has no bfloat16 arithmetic; use --precision float32")
        super().__init__(batch=batch, input_shape=classifier.input_shape, input_kind=input_kind, workers=threads)
        self.threads = threads
        network = votes_model(logits_model(classifier, batch=batch), classifier, batch=batch, input_kind=input_kind)
        try:
            self.compiled = self._compile(network, precision)
        except RuntimeError as error:  # OpenVINO's own
            self.close()
            reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
            raise InputError(
                f"OpenVINO cannot compile model {classifier.name!r}: {reason}; use --engine torch"
            ) from error
        self._requests: queue.SimpleQueue[tuple[ov.InferRequest, np.ndarray]] = queue.SimpleQueue()
        for _ in range(threads):
            request, pixels = self.compiled.create_infer_request(), np.zeros((batch, *self.input_shape), np.float32)
            request.set_input_tensor(ov.Tensor(pixels, shared_memory=True))
            self._requests.put((request, pixels))

    def _compile(self, network: ov.Model, precision: Precision) -> ov.CompiledModel:
        return compile_on_cpu(network, threads=self.threads, precision=precision)

    def labels_of(self, batch: np.ndarray) -> npt.NDArray[np.int64]:
        """Return the class of each image of a full batch, or NO_CLASS; of equal logits the first class wins."""
        labels, logits = self._infer(batch)
        return np.where(np.isnan(logits).any(1), NO_CLASS, labels.astype(np.int64).reshape(-1))

    def logits_of(self, batch: np.ndarray) -> npt.NDArray[np.float32]:
        """Return the logits (batch, classes) behind `labels_of`."""
        return self._infer(batch)[1]

    def _infer(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        request, pixels = self._requests.get()
        try:
            np.copyto(pixels, batch)  # OpenVINO's kernels know no int16; this costs 1 % of a small network's time
            request.infer()
            labels, logits = (request.get_tensor(output).data.copy() for output in ("labels", "logits"))
        finally:
            self._requests.put((request, pixels))
        return labels, logits

    def describe(self) -> dict[str, Any]:
        """Return what a certificate must record about how its votes were computed."""
        kernels = Counter(product_precisions(self.compiled))
        return {
            "engine": "openvino",
            "version": ov.get_version(),
            "precision": _precision(set(kernels)),
            "kernels": dict(sorted(kernels.items())),
            "float_precision": self.compiled.get_property("INFERENCE_PRECISION_HINT").to_string(),
            "device": "cpu",
            "threads": self.threads,
            "batch": self.batch,
        }


def logits_model(classifier: Classifier, *, batch: int) -> ov.Model:
    """Return the network from float32 pixels in `classifier.bounds`, (batch, C, H, W), to logits (batch, classes).

    A float network is copied, since OpenVINO reads its weights where they lie: whatever becomes of it afterwards, the model
    stays as it was. `batch` -1 leaves the number of images open.
    """
    if isinstance(classifier, QuantizedClassifier):
        return lower(classifier, batch=batch)
    if isinstance(classifier, FileClassifier):
        model = classifier.openvino_model()
        if fits(model, classifier, batch):
            return model
        raise InputError(f"{classifier.path} does not take batches of {batch} images; export it with a free batch size")
    network = classifier.snapshot().eval().cpu()
    for traced in (TRACED, batch) if batch > 0 else (TRACED,):
        model = trace(network, (torch.zeros(traced, *network.input_shape),), network.name)
        if fits(model, network, batch):
            return model
    raise InputError(f"model {classifier.name!r} does not work for batches of {batch} images in OpenVINO")


def votes_model(logits: ov.Model, classifier: Classifier, *, batch: int, input_kind: InputKind) -> ov.Model:
    """From an engine's buffer to `labels` (batch,) and `logits` (batch, classes); takes `logits` over."""
    pixels = ops.parameter([batch, *classifier.input_shape], ov.Type.f32, name="pixels")
    (low, high), step = classifier.bounds, 1 / 255 if input_kind == "levels" else 1.0
    values = pixels.output(0)
    if (high - low) * step != 1.0:
        values = ops.multiply(values, np.float32((high - low) * step)).output(0)
    if low != 0.0:
        values = ops.add(values, np.float32(low)).output(0)
    (source,) = logits.get_parameters()
    for target in source.output(0).get_target_inputs():
        target.replace_source_output(values)
    (sink,) = logits.get_results()
    scores = sink.input_value(0)
    best = ops.topk(scores, np.int64(1), axis=1, mode="max", sort="value", index_element_type="i32", stable=True)
    results = [ops.result(best.output(1), name="labels"), ops.result(scores, name="logits")]
    for result in results:
        result.output(0).set_names({result.get_friendly_name()})
    return ov.Model(results, [pixels], "votes")


def compile_on_cpu(model: ov.Model, *, threads: int, precision: Precision = "float32") -> ov.CompiledModel:
    """Compile with one stream per thread: batches run side by side and no thread ever waits for another within a layer.

    Threads are not bound to cores: OpenVINO binds those of every process to the first cores, so that two runs with
    `--threads 1` would share one core and leave the others idle.
    """
    streams = {"NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
    settings = {**OPENVINO_FLOAT32, **streams}
    if precision == "bfloat16":
        settings["INFERENCE_PRECISION_HINT"] = "bf16"
    return ov.Core().compile_model(model, "CPU", settings)


def _precision(kernels: set[str]) -> str:
    """Return the kernels' precisions in one word."""
    if not kernels & _INTEGER:
        return "bfloat16" if "bf16" in kernels else "float32"
    return "int8" if kernels <= _INTEGER else "mixed"


def product_precisions(compiled: ov.CompiledModel) -> list[str]:
    """Return the precision of the inputs of every convolution and matrix product, in the graph as it executes.

    Attention that OpenVINO runs as one kernel counts for each of the products in it.
    """
    found: list[str] = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        facts = {key: node.rt_info[key].astype(str) for key in _FACTS if key in node.rt_info}
        kind = facts.get("layerType", "")
        fused = _fused_products(facts.get("originalLayersNames", "")) if kind == "Subgraph" else 0
        found += [facts.get("runtimePrecision", "")] * _PRODUCTS.get(kind, fused)
    return found


def _fused_products(names: str) -> int:
    """Return how many of the operations that were merged into one kernel are products, by their names."""
    endings = [re.sub(r"_\d+$", "", name.rpartition("/")[2]) for name in names.split(",")]
    return endings.count("MatMul") + 2 * endings.count("ScaledDotProductAttention")
