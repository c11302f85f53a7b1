"""A classifier as an ONNX model: float, with QuantizeLinear/DequantizeLinear pairs, or with the Quant nodes of QONNX.

All widths are exact in all forms. With QDQ, a weight is an int8 (or, up to 4 bits if wanted, int4) initializer and a
DequantizeLinear; an activation is a Clip to its b-bit range and then an 8-bit quantizer of the same step, which leaves
the b-bit grid. Only standard operators of opset 21 occur. QONNX keeps weights as floats on their grid and names each
width, for FPGA tools.
"""

import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from arquant.base.errors import InputError
from arquant.engines.export_errors import export_refusal
from arquant.engines.lowering import EXTREMES, NOTHING, container_levels
from arquant.engines.onnx_cleaning import clean_
from arquant.engines.open_network import OpenNetwork, tensor_of
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import Grid, IntegerLayer, QuantizedClassifier

Style = Literal["qdq", "qonnx"]
Container = Literal["int8", "int4"]
OPSET, IR_VERSION = 21, 10
_EXPORTER_OPSET = 20
"""the newest that PyTorch's exporter writes; its operators mean the same in opset 21"""
QONNX_DOMAIN = "qonnx.custom_op.general"
INPUT, OUTPUT = "pixels", "logits"
_NORMALISATIONS = ("LayerNormalization", "InstanceNormalization", "GroupNormalization")
_REARRANGING = ("Mul", "Reshape", "Transpose", "Squeeze", "Unsqueeze")


@torch.no_grad()
def onnx_model(classifier: Classifier, *, style: Style = "qdq", container: Container = "int8") -> onnx.ModelProto:
    """From float32 `pixels` (batch, C, H, W) in the classifier's bounds to `logits`; the batch size is free.

    Args:
        style: how a quantized classifier's quantizers are written; a float one has none.
        container: what weights of at most 4 bits are stored in; wider ones are always int8.
    """
    network = OpenNetwork(classifier)
    model = _traced(network, classifier)
    layers = classifier.integer_state() if isinstance(classifier, QuantizedClassifier) else {}
    filling = _Filling(style, container)
    for name in network.names:
        if name in network.slots:
            slot = network.slots[name]
            if slot.weight:
                filling.weights[name] = layers[slot.layer]
            else:
                grid = layers[slot.layer].input if slot.role == "a" else layers[slot.layer].other
                assert grid is not None
                filling.grids[name] = grid
        else:
            filling.constants[name] = tensor_of(classifier, name).detach().cpu().contiguous().numpy()
    clean_(model)
    filling.apply_(model.graph)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", OPSET))
    if style == "qonnx" and layers:
        model.opset_import.append(helper.make_opsetid(QONNX_DOMAIN, 1))
    model.ir_version, model.producer_name = IR_VERSION, "arquant"
    return model


def _unheard(*_: object) -> None:
    """Take the place of what logs."""


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Let PyTorch's older exporter say nothing, not even the whole graph on stdout where it fails, and open attention."""
    noisy, attention, native = logging.getLogger("torch.onnx"), torch.backends.mha, torch._C
    before = noisy.level, attention.get_fastpath_enabled(), native._jit_onnx_log
    noisy.setLevel(logging.ERROR)
    attention.set_fastpath_enabled(False)  # attention as one operator has no ONNX
    # prints past Python, whatever the setting: PyTorch 2.13 asks for that wrongly
    native._jit_onnx_log = _unheard
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this exporter is the old one, and the tracer's remarks
            yield
    finally:
        noisy.setLevel(before[0])
        attention.set_fastpath_enabled(before[1])
        native._jit_onnx_log = before[2]


def _traced(network: OpenNetwork, classifier: Classifier) -> onnx.ModelProto:
    buffer: Any = io.BytesIO()  # accepted, but not by the exporter's type
    try:
        with _quiet_exporter():
            torch.onnx.export(
                network.eval(),
                network.example(),
                buffer,
                dynamo=False,
                opset_version=_EXPORTER_OPSET,
                input_names=[INPUT, *network.names],
                output_names=[OUTPUT],
                dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
            )
    except Exception as error:
        raise InputError(export_refusal(classifier.name, error)) from error
    return onnx.load_from_string(buffer.getvalue())


class _Filling:
    """What takes the place of the open inputs of a graph."""

    def __init__(self, style: Style, container: Container) -> None:
        self.style = style
        self.container = container
        self.weights: dict[str, IntegerLayer] = {}
        self.grids: dict[str, Grid] = {}
        self.constants: dict[str, np.ndarray] = {}
        self._strides: dict[str, list[int]] = {}
        """of the quantized inputs that are thinned out before they are quantized"""
        self._initializers: dict[str, onnx.TensorProto] = {}

    def apply_(self, graph: onnx.GraphProto) -> None:
        """Replace every input but the pixels."""
        if self.style != "qonnx":
            self._move_strides(graph)
        nodes: list[onnx.NodeProto] = []
        for node in self._guarded(graph) if self.weights else graph.node:
            nodes += self._replaced(node)
        used = {name for node in nodes for name in node.input}
        plain = [name for name in self.weights if name in used]
        front = [node for name in plain for node in self._weight(self.weights[name], name, turned=False)]
        for name in used & self.constants.keys():
            self._initializers[name] = numpy_helper.from_array(self.constants[name], name)
        inputs = [value for value in graph.input if value.name == INPUT]
        for field, values in ((graph.node, [*front, *nodes]), (graph.input, inputs)):
            del field[:]
            field.extend(values)
        graph.initializer.extend(self._initializers.values())
        graph.name = "arquant"

    def _guarded(self, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
        """Return the nodes with what OpenVINO needs beside them: see `guard_normalisations`, `guard_extremes` of `lowering`."""
        makers = {name: node for node in graph.node for name in node.output}
        for node in graph.node:
            if node.op_type in _NORMALISATIONS:
                maker = makers.get(node.input[0])
                while maker is not None and maker.op_type in _REARRANGING:
                    maker = makers.get(maker.input[0])
                if maker is not None and maker.op_type in ("Conv", "MatMul") and len(maker.input) == 2:
                    guarded = f"{node.input[0]}.guarded"
                    nothing = self._constant("normalisation.nothing", np.asarray(NOTHING, np.float32))
                    yield helper.make_node("Add", [node.input[0], nothing], [guarded], name=f"{guarded}.add")
                    node.input[0] = guarded
            if node.op_type in EXTREMES and self.style != "qonnx":
                same, node.output[0] = node.output[0], f"{node.output[0]}.guarded"
                yield node
                yield helper.make_node("Max", [node.output[0]] * 2, [same], name=f"{same}.max")
            else:
                yield node

    def _move_strides(self, graph: onnx.GraphProto) -> None:
        """Let 1x1 convolutions with a stride read only the pixels that they use, at stride 1, which is the same.

        OpenVINO 2026.4 does that itself to a quantized shortcut, as a pooling before its quantizer, but then computes the
        convolution in float, and with several streams sometimes wrongly.
        """
        readers = Counter(name for node in graph.node for name in node.input)
        quantized = {node.output[0] for node in graph.node if any(name in self.grids for name in node.input)}
        for node in graph.node:
            if node.op_type != "Conv" or node.input[0] not in quantized or readers[node.input[0]] > 1:
                continue
            about = {attribute.name: attribute.ints for attribute in node.attribute}
            strides, pads = list(about.get("strides", [])), list(about.get("pads", []))
            if set(about["kernel_shape"]) == {1} and not any(pads) and max(strides, default=1) > 1:
                self._strides[node.input[0]] = strides
                about["strides"][:] = [1] * len(strides)

    def _thinned(self, value: str, thinned: str, strides: list[int]) -> Iterator[onnx.NodeProto]:
        axes = len(strides)
        ends = {"start": [0] * axes, "end": [2**31 - 1] * axes, "axes": [2 + i for i in range(axes)], "step": strides}
        limits = [self._constant(f"{thinned}.{end}", np.asarray(at, np.int64)) for end, at in ends.items()]
        yield helper.make_node("Slice", [value, *limits], [thinned], name=f"{thinned}.slice")

    def _replaced(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Return the node, or what it stands for: a product with a slot is a quantizer, a transposed weight a constant."""
        slots = [name for name in node.input if name in self.grids]
        if slots:
            (value,) = [name for name in node.input if name != slots[0]]
            if (strides := self._strides.get(node.output[0])) is not None:
                thinned = f"{node.output[0]}.thinned"
                yield from self._thinned(value, thinned, strides)
                value = thinned
            yield from self._activation(self.grids[slots[0]], value, node.output[0])
        elif node.op_type == "Transpose" and node.input[0] in self.weights and len(node.attribute[0].ints) == 2:
            yield from self._weight(self.weights[node.input[0]], node.output[0], turned=True)
        else:
            yield node

    def _constant(self, name: str, values: np.ndarray, *, int4: bool = False) -> str:
        """Return the name of an initializer; int4 values are given as int8 and stored two to a byte, the first one low."""
        if int4:
            pairs = np.resize(values, values.size + values.size % 2).reshape(-1, 2).astype(np.uint8) & 15
            packed = (pairs[:, 0] | pairs[:, 1] << 4).tobytes()
            tensor = helper.make_tensor(name, TensorProto.INT4, values.shape, packed, raw=True)
        else:
            tensor = numpy_helper.from_array(np.asarray(values, order="C"), name)
        self._initializers[name] = tensor
        return name

    def _weight(self, layer: IntegerLayer, output: str, *, turned: bool) -> Iterator[onnx.NodeProto]:
        assert layer.weight is not None
        assert layer.weight_scale is not None
        integers, scale = layer.weight, layer.weight_scale.astype(np.float32)
        channel = 1 if turned else 0
        name = f"{layer.name}.weight" + (".transposed" if turned else "")
        if turned:
            integers = integers.T
        if self.style == "qonnx":
            yield self._quant_weight(integers, scale, channel, layer.bits.w, name, output)
            return
        int4 = self.container == "int4" and layer.bits.w <= 4
        stored = self._constant(f"{name}.integers", integers, int4=int4)
        step = self._constant(f"{name}.scale", scale if scale.size > 1 else scale.reshape(()))
        axis = {"axis": channel} if scale.size > 1 else {}
        yield helper.make_node("DequantizeLinear", [stored, step], [output], name=f"{output}.dequantize", **axis)

    def _quant_weight(
        self, integers: np.ndarray, scale: np.ndarray, channel: int, bits: int, name: str, output: str
    ) -> onnx.NodeProto:
        shape = [1] * integers.ndim
        shape[channel] = -1
        step = scale.reshape(shape) if scale.size > 1 else scale.reshape(())
        inputs = [self._constant(f"{name}.values", integers * step), self._constant(f"{name}.scale", step)]
        if bits == 1:
            return helper.make_node("BipolarQuant", inputs, [output], name=f"{output}.quant", domain=QONNX_DOMAIN)
        return self._quant(inputs, output, bits, signed=True)

    def _quant(self, inputs: list[str], output: str, bits: int, *, signed: bool, zero: int = 0) -> onnx.NodeProto:
        """Return a Quant node; signed ones are `narrow`: as many levels below zero as above. Unsigned: `zero` below it."""
        place = self._constant(f"quant.zero{zero or ''}", np.asarray(zero, np.float32))
        width = self._constant(f"quant.{bits}.bits", np.asarray(bits, np.float32))
        return helper.make_node(
            "Quant",
            [*inputs, place, width],
            [output],
            name=f"{output}.quant",
            domain=QONNX_DOMAIN,
            signed=int(signed),
            narrow=int(signed),
            rounding_mode="ROUND",
        )

    def _activation(self, grid: Grid, value: str, output: str) -> Iterator[onnx.NodeProto]:
        name = f"{output}.activation"
        step = self._constant(f"{name}.scale", np.asarray(grid.scale, np.float32))
        if self.style == "qonnx":
            bits = (grid.high - grid.low).bit_length()
            symmetric = grid.low == -grid.high
            yield self._quant([value, step], output, bits, signed=symmetric, zero=0 if symmetric else -grid.low)
            return
        low, high = container_levels(grid)
        if (grid.low, grid.high) != (low, high):
            ends = np.asarray([grid.low, grid.high], np.float32) * np.float32(grid.scale)
            limits = [self._constant(f"{name}.{end}", at) for end, at in zip(("low", "high"), ends, strict=True)]
            yield helper.make_node("Clip", [value, *limits], [f"{name}.clipped"], name=f"{name}.clip")
            value = f"{name}.clipped"
        zero = self._constant(f"{name}.zero", np.asarray(-low, np.uint8))  # int8 trips ONNX Runtime 1.31's optimizer
        yield helper.make_node("QuantizeLinear", [value, step, zero], [f"{name}.integers"], name=f"{name}.quantize")
        yield helper.make_node(
            "DequantizeLinear", [f"{name}.integers", step, zero], [output], name=f"{name}.dequantize"
        )
