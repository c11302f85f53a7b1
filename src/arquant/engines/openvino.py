"""OpenVINO on CPU: float networks in float32, quantized networks on integer kernels, one network per core.

A network is first an `openvino.Model` from pixels in the classifier's bounds to logits (`logits_model`); the engine
puts the conversion of its buffers before it and the arg max behind it, fixes the batch size and compiles the whole.
"""

import queue
import warnings
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import torch
from openvino import opset15 as ops

from arquant.classifier import Classifier
from arquant.engines.base import Engine, InputKind
from arquant.engines.threads import available_cores
from arquant.errors import InputError

_ELEMENT: dict[InputKind, ov.Type] = {"levels": ov.Type.i16, "unit": ov.Type.f32}
_PRODUCTS = {"Convolution", "MatMul", "FullyConnected", "Deconvolution"}
_INTEGER = {"u8", "i8", "u4", "i4", "i32"}


class OpenVinoEngine(Engine):
    """Computes labels with OpenVINO: `threads` batches at a time, each on a core of its own.

    Floats are float32: the hint that lets OpenVINO choose bfloat16 where the processor has it is overridden.
    """

    def __init__(
        self, classifier: Classifier, *, batch: int, input_kind: InputKind, threads: int | None = None
    ) -> None:
        threads = threads or available_cores()
        super().__init__(batch=batch, input_shape=classifier.input_shape, input_kind=input_kind, workers=threads)
        self.threads = threads
        network = votes_model(logits_model(classifier, batch=batch), classifier, batch=batch, input_kind=input_kind)
        self.compiled = compile_on_cpu(network, threads=threads)
        self._requests: queue.SimpleQueue[ov.InferRequest] = queue.SimpleQueue()
        for _ in range(threads):
            self._requests.put(self.compiled.create_infer_request())

    def labels_of(self, batch: np.ndarray) -> npt.NDArray[np.int64]:
        """The class of each image of a full batch; of equal logits the first class wins."""
        return self._infer(batch, "labels").astype(np.int64).reshape(-1)

    def logits_of(self, batch: np.ndarray) -> npt.NDArray[np.float32]:
        """The logits (batch, classes) behind `labels_of`."""
        logits: npt.NDArray[np.float32] = self._infer(batch, "logits").copy()
        return logits

    def _infer(self, batch: np.ndarray, output: str) -> np.ndarray:
        request = self._requests.get()
        try:
            request.infer([ov.Tensor(batch, shared_memory=True)])
            result: np.ndarray = request.get_tensor(output).data.copy()
        finally:
            self._requests.put(request)
        return result

    def describe(self) -> dict[str, Any]:
        """What a certificate must record about how its votes were computed."""
        kernels = Counter(
            precision for kind, precision in runtime_precisions(self.compiled).values() if kind in _PRODUCTS
        )
        integer = bool(kernels) and set(kernels) <= _INTEGER
        return {
            "engine": "openvino",
            "version": ov.get_version(),
            "precision": "int8" if integer else "float32" if not set(kernels) & _INTEGER else "mixed",
            "kernels": dict(sorted(kernels.items())),
            "float_precision": self.compiled.get_property("INFERENCE_PRECISION_HINT").to_string(),
            "device": "cpu",
            "threads": self.threads,
            "batch": self.batch,
        }


def logits_model(classifier: Classifier, *, batch: int) -> ov.Model:
    """The network from float32 pixels in `classifier.bounds`, (batch, C, H, W), to logits (batch, classes).

    The model is traced in eval mode at this very batch size; its training mode is restored.
    """
    was_training = classifier.training
    device = next((p.device for p in classifier.parameters()), torch.device("cpu"))
    classifier.eval().cpu()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's remarks on Python numbers: the batch size is fixed anyway
            model: ov.Model = ov.convert_model(classifier, example_input=torch.zeros(batch, *classifier.input_shape))
    except Exception as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise InputError(
            f"OpenVINO cannot convert model {classifier.name!r}: {reason[0]}; use --engine torch"
        ) from error
    finally:
        classifier.to(device).train(was_training)
    return model


def votes_model(logits: ov.Model, classifier: Classifier, *, batch: int, input_kind: InputKind) -> ov.Model:
    """From an engine's buffer to `labels` (batch,) and `logits` (batch, classes); takes `logits` over."""
    logits.reshape([batch, *classifier.input_shape])
    pixels = ops.parameter([batch, *classifier.input_shape], _ELEMENT[input_kind], name="pixels")
    low, high = classifier.bounds
    values = pixels.output(0)
    if input_kind == "levels":
        values = ops.multiply(ops.convert(values, ov.Type.f32), np.float32(1 / 255)).output(0)
    if (low, high) != (0.0, 1.0):
        values = ops.add(ops.multiply(values, np.float32(high - low)), np.float32(low)).output(0)
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


def compile_on_cpu(model: ov.Model, *, threads: int) -> ov.CompiledModel:
    """One stream per thread: batches run side by side and no thread ever waits for another within a layer."""
    return ov.Core().compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
            "NUM_STREAMS": threads,
            "INFERENCE_NUM_THREADS": threads,
        },
    )


def runtime_precisions(compiled: ov.CompiledModel) -> dict[str, tuple[str, str]]:
    """Operation name -> (kind, precision) of the graph as it executes; the precision is that of the kernel's input."""
    return {
        node.get_friendly_name(): (
            str(node.rt_info["layerType"].astype(str)),
            node.rt_info["runtimePrecision"].astype(str),
        )
        for node in compiled.get_runtime_model().get_ordered_ops()
        if "runtimePrecision" in node.rt_info
    }
