"""From a quantized classifier to an OpenVINO graph whose convolutions and matrix products run on 8-bit integer kernels.

Every width from 1 to 8 is exact. A weight is an int8 constant times its scale. An activation on the grid low..high
(times its step s) is clamped to [low s, high s] and then quantized to 256 levels of the same step: over [0, 255 s], or
over [-128 s, 127 s] if it can be negative. The levels that the clamp excludes are never taken, so what remains is the
grid itself, and the kernels see plain 8-bit numbers. (With 255 levels OpenVINO would not be exact for signed ones.)
What follows a product, BatchNorm included, stays a scale and a shift in float32. (Processors that lack VNNI add pairs
of 8-bit products in 16 bits, which can saturate: there, a network computes its own slightly different function.)

The network is traced once, as an `OpenNetwork`, into a `Template`. Filling in the present weights and widths is quick,
so a search may compile every policy that it tries.
"""

import warnings
import weakref

import numpy as np
import torch
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.engines.open_network import TRACED, OpenNetwork, Slot, tensor_of
from arquant.engines.openvino_api import ops, ov
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import Grid, IntegerLayer, QuantizedClassifier

LEVELS = 256


def lower(classifier: QuantizedClassifier, *, batch: int) -> ov.Model:
    """Return the classifier as it is now: from float32 pixels in its bounds, (batch, C, H, W), to logits (batch, classes).

    The first call for a classifier traces it (seconds); later ones only fill in its present state. `batch` -1 leaves
    the number of images open.
    """
    templates = _templates.setdefault(classifier, {})
    for traced in (TRACED, batch) if batch > 0 else (TRACED,):
        if traced not in templates:
            templates[traced] = Template(classifier, batch=traced)
        model = templates[traced].fill(classifier)
        if fits(model, classifier, batch):
            return model
    batches = f"batches of {batch} images" if batch > 0 else "batches of any size"
    raise InputError(f"model {classifier.name!r} does not work for {batches} in OpenVINO")


class Template:
    """A traced classifier whose tensors, quantizers included, are open inputs of an OpenVINO graph."""

    def __init__(self, classifier: QuantizedClassifier, *, batch: int) -> None:
        network = OpenNetwork(classifier)
        self._names, self._slots = network.names, network.slots
        self._model = trace(network, network.example(batch), classifier.name)
        if len(self._model.get_parameters()) != 1 + len(self._names):
            raise InputError(f"model {classifier.name!r} lost inputs while it was traced; use --engine torch")

    @torch.no_grad()
    def fill(self, classifier: QuantizedClassifier) -> ov.Model:
        """Return the graph with the present weights, widths and float state of the classifier the template was made of."""
        model: ov.Model = self._model.clone()
        pixels, *inputs = model.get_parameters()
        layers = classifier.integer_state()
        for name, parameter in zip(self._names, inputs, strict=True):
            if name in self._slots:
                slot = self._slots[name]
                _fill_slot(parameter, slot, layers[slot.layer])
            elif parameter.output(0).get_target_inputs():
                values = tensor_of(classifier, name).detach().cpu().contiguous().numpy()
                _replace(parameter.output(0), ops.constant(values).output(0))
        guard_normalisations(model)
        guard_extremes(model)
        return ov.Model(model.get_results(), [pixels], classifier.name)


_NORMALISATIONS = {"MVN", "GroupNormalization"}
_REARRANGING = {"Multiply", "Reshape", "Transpose", "Squeeze", "Unsqueeze"}
NOTHING = 1e-30
"""added to a float32 it changes nothing that a network could tell"""


def guard_normalisations(model: ov.Model) -> None:
    """Add next to nothing to products that are normalised without a bias between.

    OpenVINO 2026.4 would take the scale of the integers out of the sums and divide by their own deviation: the epsilon of
    the normalisation, added to far larger numbers, would be lost. Where something is added to the sums it does not.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() in _NORMALISATIONS:
            source = node.input_value(0)
            maker = source.get_node()
            while maker.get_type_name() in _REARRANGING:
                inputs = [value.get_node() for value in maker.input_values()]
                maker = next((each for each in inputs if each.get_type_name() != "Constant"), inputs[0])
            if maker.get_type_name() in ("Convolution", "GroupConvolution", "MatMul"):
                node.input(0).replace_source_output(ops.add(source, np.float32(NOTHING)).output(0))


EXTREMES = ("ReduceMax", "ReduceMin")


def guard_extremes(model: ov.Model) -> None:
    """Take the larger of every largest or smallest value over axes and itself, which is that value.

    OpenVINO 2026.4 would make one kernel of such a reduction and the quantizer behind it, and compute other numbers by it:
    wrong by a third of the range of the logits, for a network that ends in `x.amax((2, 3))`. Not where the value is read twice.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() in EXTREMES:
            value = node.output(0)
            readers = list(value.get_target_inputs())
            same = ops.maximum(value, value).output(0)
            for reader in readers:
                reader.replace_source_output(same)


_templates: "weakref.WeakKeyDictionary[QuantizedClassifier, dict[int, Template]]" = weakref.WeakKeyDictionary()


def trace(network: nn.Module, inputs: tuple[Tensor, ...], name: str) -> ov.Model:
    """`network` as an OpenVINO graph, in the mode it is in; InputError, with the way out, where that fails."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's remarks on Python numbers; see `fits`
            model: ov.Model = ov.convert_model(network, example_input=inputs)
    except Exception as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise InputError(f"OpenVINO cannot convert model {name!r}: {reason[0]}; use --engine torch") from error
    return model


def fits(model: ov.Model, classifier: Classifier, batch: int) -> bool:
    """Give a traced graph its input shape; False if the tracer took the batch size it saw for a constant."""
    try:
        model.reshape([batch, *classifier.input_shape])
    except RuntimeError:
        return False
    found = model.output(0).get_partial_shape()
    return bool(found == ov.PartialShape([batch, classifier.num_classes]))


def _fill_slot(parameter: ov.Node, slot: Slot, layer: IntegerLayer) -> None:
    if slot.weight:
        assert layer.weight is not None
        assert layer.weight_scale is not None
        _replace(parameter.output(0), _weight(layer.weight, layer.weight_scale))
        return
    grid = layer.input if slot.role == "a" else layer.other
    assert grid is not None
    for target in list(parameter.output(0).get_target_inputs()):
        product = target.get_node()
        _replace(product.output(0), _on_grid(product.input_value(1 - target.get_index()), grid))


def _weight(integers: np.ndarray, scale: np.ndarray) -> ov.Output:
    """Return an int8 constant times its scale, one per tensor or per output channel."""
    factor = scale.astype(np.float32).reshape(-1, *[1] * (integers.ndim - 1))
    values = ops.convert(ops.constant(np.asarray(integers, order="C")), ov.Type.f32)
    return ops.multiply(values, ops.constant(factor.reshape(()) if factor.size == 1 else factor)).output(0)


def _on_grid(values: ov.Output, grid: Grid) -> ov.Output:
    """Values on the grid's levels, as a clamp and a quantizer with 256 levels of the same step."""
    low, high = container_levels(grid)
    if (grid.low, grid.high) != (low, high):
        values = ops.clamp(values, grid.low * grid.scale, grid.high * grid.scale).output(0)
    ends = [ops.constant(np.float32(end * grid.scale)) for end in (low, high)]
    return ops.fake_quantize(values, *ends, *ends, LEVELS).output(0)


def container_levels(grid: Grid) -> tuple[int, int]:
    """Return the smallest and largest integer of the 8-bit number that holds the grid's integers."""
    return (-128, 127) if grid.low < 0 else (0, 255)


def _replace(old: ov.Output, new: ov.Output) -> None:
    """Let `new` feed everything that `old` feeds."""
    for target in list(old.get_target_inputs()):
        target.replace_source_output(new)
