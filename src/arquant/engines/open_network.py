"""A classifier as a function of its tensors: weights, normalisation and quantizers are arguments, not constants.

Tracing that function once gives a graph into which any state of the classifier can be filled: another policy, other
weights after fine-tuning. The graph of OpenVINO and that of ONNX are both made this way.

A quantizer becomes a *slot*. Where a weight is quantized, the slot is an argument in the shape of the weight; where an
activation is quantized, it is an argument that the activation is multiplied with, and whoever fills the graph replaces
that product by a quantizer.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from arquant.models.classifier import Classifier
from arquant.quantization.quantized import QuantizedClassifier
from arquant.quantization.quantized_layers import LayerQuantizer

TRACED = 2
"""images in the batch that networks are traced with"""


@dataclass(frozen=True)
class Slot:
    """Which operand, "a" or "w", of which layer an argument stands for; `weight` tells weights from activations."""

    layer: str
    role: str
    weight: bool


class OpenNetwork(nn.Module):
    """Called with pixels and one tensor for each of `names`, in that order; returns logits.

    `names` are paths in the classifier's state, except for the slots, which are in `slots`.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        network, self.slots = _copy_with_slots(classifier)
        _turn_parameters_into_buffers(network)
        self._network = [network]  # in a list, since the tracer makes constants of the tensors of submodules
        self._all_names = _names(network)
        self.names = [names[0] for names in self._all_names]

    def example(self, batch: int = TRACED) -> tuple[Tensor, ...]:
        """Arguments to trace with: black images and the tensors as they were."""
        (network,) = self._network
        shape = (batch, *network.input_shape)
        return torch.zeros(shape), *(tensor_of(network, name) for name in self.names)

    def forward(self, pixels: Tensor, *tensors: Tensor) -> Tensor:
        """Return the logits of images in the classifier's bounds."""
        (network,) = self._network
        for names, tensor in zip(self._all_names, tensors, strict=True):
            for name in names:
                owner, key = _owner(network, name)
                owner._buffers[key] = tensor
        logits: Tensor = network(pixels)
        return logits


def tensor_of(network: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer at a path."""
    owner, key = _owner(network, name)
    tensor: Tensor = getattr(owner, key)
    return tensor


class _OpenActivation(nn.Module):
    """Stands where an activation is quantized."""

    open: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("open", torch.ones(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.open, torch.ones(())


class _OpenWeight(nn.Module):
    """Stands where a weight is quantized."""

    open: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("open", torch.ones(shape))

    def forward(self, _: Tensor) -> tuple[Tensor, Tensor]:
        return self.open, torch.ones(())


def _copy_with_slots(classifier: Classifier) -> tuple[Classifier, dict[str, Slot]]:
    """Return a copy in eval mode on the CPU whose quantizers are slots, and the slots by the path of their tensor."""
    network = Classifier(
        copy.deepcopy(classifier.module).cpu(),
        num_classes=classifier.num_classes,
        input_shape=classifier.input_shape,
        mean=classifier.mean.flatten().tolist(),
        std=classifier.std.flatten().tolist(),
        bounds=classifier.bounds,
        name=classifier.name,
    ).eval()
    slots: dict[str, Slot] = {}
    if isinstance(classifier, QuantizedClassifier):
        layers = {id(classifier.quantizer(layer.name)): layer for layer in classifier.layers}
        for path, part in classifier.named_modules():
            if isinstance(part, LayerQuantizer):
                layer, own = layers[id(part)], network.get_submodule(path)
                for role in ("a", "w"):
                    weight = role == "w" and bool(layer.weight_shape)
                    setattr(own, role, _OpenWeight(layer.weight_shape) if weight else _OpenActivation())
                    slots[f"{path}.{role}.open"] = Slot(layer.name, role, weight)
    return network, slots


def _turn_parameters_into_buffers(network: nn.Module) -> None:
    """In place; tensors that modules share stay shared."""
    buffers: dict[int, Tensor] = {}
    for part in network.modules():
        for key, parameter in list(part._parameters.items()):
            del part._parameters[key]
            part.register_buffer(
                key, None if parameter is None else buffers.setdefault(id(parameter), parameter.detach())
            )


def _names(network: nn.Module) -> list[list[str]]:
    """Return the names of each buffer: several, if modules share it."""
    names: dict[int, list[str]] = {}
    for name, tensor in network.named_buffers(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(name)
    return list(names.values())


def _owner(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, key = name.rpartition(".")
    return network.get_submodule(path), key
