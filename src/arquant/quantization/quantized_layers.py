"""Layers that compute on integers: the twins of Conv2d and Linear, and quantizers for layers computed elsewhere.

`quantize_layers_` changes the classes of a network's modules, so that parameters keep their names and shared modules
stay shared. A plain Conv2d or Linear multiplies integers by integers and scales the sums once; in training mode it
scales the integers of the weight instead, which differs in rounding only and costs one product per weight, not one per
output. Every other layer (the matmuls of attention, the projections of `nn.MultiheadAttention`, subclasses with a
forward of their own) is intercepted and multiplies quantized values. The state-dict gains the quantizers' entries only.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from arquant.models.tracing.attention import tap
from arquant.models.tracing.layer import Layer, Layers
from arquant.quantization.quantizers import ActivationQuantizer, WeightQuantizer


class LayerQuantizer(nn.Module):
    """The quantizers of the two operands of a layer.

    `a` is that of the input, of Q or of the probabilities; `w` that of the weight, of K or of V.
    """

    a: ActivationQuantizer
    w: WeightQuantizer | ActivationQuantizer

    def __init__(self, layer: Layer, weight: Tensor | None, *, per_channel: bool, learn: str) -> None:
        super().__init__()
        self.a = ActivationQuantizer(signed=layer.signed_input, learn=learn)
        if layer.weight_shape:
            shape = torch.empty(layer.weight_shape) if weight is None else weight
            self.w = WeightQuantizer(shape, per_channel=per_channel, learn=learn)
        else:
            self.w = ActivationQuantizer(signed=layer.signed_w, learn=learn)


class QuantizedConv2d(nn.Conv2d):
    """A Conv2d that convolves integers with integers."""

    quantizer: LayerQuantizer

    def forward(self, input: Tensor) -> Tensor:
        """Return the sums of integer products, scaled."""
        inputs, input_step = self.quantizer.a(input)
        weights, weight_step = self.quantizer.w(self.weight)
        if self.training:
            out: Tensor = self._conv_forward(inputs, weights * (input_step * weight_step), self.bias)
            return out
        sums: Tensor = self._conv_forward(inputs, weights, None)
        bias = None if self.bias is None else self.bias.reshape(-1, 1, 1)
        return rescale(sums, input_step * weight_step.reshape(-1, 1, 1), bias)


class QuantizedLinear(nn.Linear):
    """A Linear that multiplies integers with integers."""

    quantizer: LayerQuantizer

    def forward(self, input: Tensor) -> Tensor:
        """Return the sums of integer products, scaled."""
        inputs, input_step = self.quantizer.a(input)
        weights, weight_step = self.quantizer.w(self.weight)
        if self.training:
            return functional.linear(inputs, weights * (input_step * weight_step), self.bias)
        return rescale(functional.linear(inputs, weights), input_step * weight_step.reshape(-1), self.bias)


def rescale(sums: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`sums * scale + bias`, computed in float32 and returned in the type of `sums`."""
    values = sums.float() * scale
    return (values if bias is None else values + bias).to(sums.dtype)


class ScopeQuantizer(nn.Module):
    """Called by a tapped module with each operand of the layers it computes; returns their quantized values.

    While `seen` is a dict, it receives the weights by layer name: some are computed, and found nowhere else.
    """

    def __init__(self, quantizers: dict[str, LayerQuantizer]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({_key(name): quantizer for name, quantizer in quantizers.items()})
        self.seen: dict[str, Tensor] | None = None

    def forward(self, name: str, role: str, operand: Tensor) -> Tensor:
        """Return the quantized value of operand "a" or "w" of the layer called `name`."""
        if self.seen is not None and role == "w":
            self.seen[name] = operand.detach()
        integers, step = getattr(self.layers[_key(name)], role)(operand)
        value: Tensor = integers * step
        return value.to(operand.dtype)


_TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: QuantizedConv2d,
    nn.Linear: QuantizedLinear,
    NonDynamicallyQuantizableLinear: QuantizedLinear,
}


def has_twin(module: nn.Module, layer: Layer) -> bool:
    """Tell whether the layer is a plain Conv2d or Linear called as such, which runs on integers."""
    return layer.plain and type(module.get_submodule(layer.name)) in _TWINS


def intercepted(module: nn.Module, layers: Layers) -> Iterator[tuple[str, list[Layer]]]:
    """Return the layers that have no twin, by the module in whose forward they are computed."""
    scopes: dict[str, list[Layer]] = {}
    for layer in layers:
        if not has_twin(module, layer):
            scopes.setdefault(layer.call.scope, []).append(layer)
    yield from scopes.items()


def quantize_layers_(module: nn.Module, layers: Layers, *, per_channel: bool, learn: str) -> dict[str, LayerQuantizer]:
    """Quantize the layers of `module` in place; returns the quantizers by layer name, at 8 bits and a clip of 1."""
    quantizers = {}
    for layer in layers:
        weight = module.get_parameter(layer.weight_path) if layer.weight_path else None
        quantizers[layer.name] = LayerQuantizer(layer, weight, per_channel=per_channel, learn=learn)
    scopes = list(intercepted(module, layers))
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # else its fast path would compute with the float weights
    for layer in layers:
        if has_twin(module, layer):
            twin = module.get_submodule(layer.name)
            twin.quantizer = quantizers[layer.name]
            twin.__class__ = _TWINS[type(twin)]
    for scope, members in scopes:
        own = {layer.name: quantizers[layer.name] for layer in members}
        tap(module.get_submodule(scope), {layer.name: layer.call for layer in members}, ScopeQuantizer(own))
    return quantizers


def _key(name: str) -> str:
    """Return a layer's name as that of a module in a ModuleDict, which cannot be empty or an attribute that one has."""
    key = name.replace(".", "/")
    return f"{key}/" if not key or hasattr(_EMPTY, key) else key


_EMPTY = nn.ModuleDict()
