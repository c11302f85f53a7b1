"""Find the layers of a network that can be quantized, by one forward pass over the unchanged model.

Names are paths in `named_modules()` of the user's module; the two matmuls of an attention module are `<path>#qk` and
`<path>#av`. The packed projection of `nn.MultiheadAttention` is `<path>.in_proj`. The order is that of execution.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.models.classifier import Classifier
from arquant.models.tracing.attention import Call
from arquant.models.tracing.geometry import matmul_sizes, padding_of, paper_positions, two
from arquant.models.tracing.layer import Layer, Layers, Skipped, describe_rows, skipped_rows
from arquant.models.tracing.probe import IMAGES, Operand, Probe, Record, run_probe

__all__ = ["Layer", "Layers", "Skipped", "describe_rows", "find_layers", "skipped_rows", "weight_parameters"]

_KINDS: dict[str, type[nn.Module]] = {"conv": nn.Conv2d, "linear": nn.Linear}
_OTHER_KINDS = (
    *(nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.Embedding, nn.EmbeddingBag, nn.Bilinear, nn.RNNBase, nn.RNNCellBase),
)
INDEX_ENTRY_BYTES = 140
"""of a tensor in the header of a safetensors file, at most, beside its name"""
_ONLY = "only Conv2d, Linear and the matmuls of attention are quantized"


def find_layers(classifier: Classifier, images: Tensor | NDArray[Any] | None = None) -> Layers:
    """Return every Conv2d, Linear and attention matmul that the classifier executes, in that order, with its costs.

    An input counts as unsigned only if the operations that produce it cannot give negative values. The pass uses the
    given images (in the classifier's bounds, or uint8), else one image of seeded uniform noise. The model is unchanged.
    """
    module = classifier.module
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(f"model {classifier.name!r} is TorchScript, whose layers cannot be seen; give the nn.Module")
    batch = _probe_images(classifier, images)
    try:
        probe = run_probe(classifier, module, batch)
    except Exception as error:  # a user's model may raise anything
        raise InputError(
            f"model {classifier.name!r} fails on images of shape {classifier.input_shape}: {type(error).__name__}: {error}"
        ) from error
    finder = _Finder(module, probe, len(batch))
    finder.run()
    if not finder.layers:
        raise InputError(
            f"model {classifier.name!r} executes no Conv2d, no Linear and no attention in PyTorch: nothing to quantize (of an "
            ".onnx or .xml file, give the network it was made of)"
        )
    found = tuple(finder.layers.values())
    stored = {tensor.data_ptr(): tensor for tensor in module.state_dict().values() if tensor.is_floating_point()}
    return Layers(
        layers=found,
        skipped=tuple(finder.skipped.values()),
        model=classifier.name,
        input_shape=classifier.input_shape,
        other_params=sum(t.numel() for t in stored.values())
        - sum(part.numel() for part in weight_parameters(module, found)),
        registered=_in_order_of_modules(module, found),
        other_bytes=sum(
            INDEX_ENTRY_BYTES + len(key) + tensor.numel() * tensor.element_size()
            for key, tensor in module.state_dict().items()
            if tensor.dtype != torch.float32 and not key.endswith("num_batches_tracked")
        ),
    )


def _in_order_of_modules(module: nn.Module, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Sort layers as `named_modules` does; functional calls stand at the place of the module that they are in."""
    places = {name: place for place, (name, _) in enumerate(module.named_modules(remove_duplicate=False))}
    return tuple(
        layer.name
        for layer in sorted(layers, key=lambda layer: places.get(layer.name, places.get(layer.call.scope, 0)))
    )


def weight_parameters(module: nn.Module, layers: Iterable[Layer]) -> list[nn.Parameter]:
    """Return the parameters that a layer's integers replace, each once: its weight, or the parts of a computed one."""
    paths = (path for layer in layers for path in (layer.weight_path, *layer.weight_parts) if path)
    found = {id(part): part for part in map(module.get_parameter, paths)}
    return list(found.values())


def _probe_images(classifier: Classifier, images: Tensor | NDArray[Any] | None) -> Tensor:
    low, high = classifier.bounds
    if images is None:
        generator = torch.Generator().manual_seed(0)
        batch = low + (high - low) * torch.rand((1, *classifier.input_shape), generator=generator)
    else:
        batch = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
        batch = low + (high - low) * batch.float() / 255 if batch.dtype == torch.uint8 else batch.float()
    if batch.dim() != 4 or tuple(batch.shape[1:]) != classifier.input_shape or not len(batch):
        raise InputError(f"images must have shape (N, {classifier.input_shape}), got {tuple(batch.shape)}")
    return batch.to(classifier.mean.device)


class _Finder:
    """Turns the records of a probe into layers; `images` is how many it was run on."""

    def __init__(self, module: nn.Module, probe: Probe, images: int) -> None:
        self.module = module
        self.modules = dict(module.named_modules())
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.probe = probe
        self.images = images
        self.layers: dict[str, Layer] = {}
        self.skipped: dict[str, Skipped] = {}
        self.groups: dict[int, int] = {}
        self.scopes = [self._scope(record) for record in probe.records]
        attention = {scope for scope, record in zip(self.scopes, probe.records, strict=True) if record.role}
        self.outer = {scope for scope in attention if any(_inside(other, scope) for other in attention)}
        self.pairs: dict[str, list[int]] = {}

    def run(self) -> None:
        """Fill `layers` and `skipped`."""
        for record, scope in zip(self.probe.records, self.scopes, strict=True):
            if record.family == "matmul":
                self._matmul(record, scope)
            else:
                self._weighted(record)
        for path, name in self.probe.unsupported:
            self._skip(path, name, _ONLY)
        for path, part in self.modules.items():
            if isinstance(part, torch.jit.ScriptModule):
                if not isinstance(self.modules.get(path.rpartition(".")[0]), torch.jit.ScriptModule):
                    self._skip(path, "TorchScript", "its layers cannot be seen; give the nn.Module")
            elif isinstance(part, _OTHER_KINDS):
                self._skip(path, type(part).__name__, _ONLY)
            elif isinstance(part, nn.Conv2d | nn.Linear) and path not in self.layers:
                self._skip(path, type(part).__name__, "not executed in eval mode")
        for layer in self.layers.values():
            if layer.weight_shape and not layer.weight_path and self._calls_within(layer) > 1:
                self._skip(layer.name, layer.kind, "it computes its weight, and contains other layers")
        for name in self.skipped:
            self.layers.pop(name, None)

    def _skip(self, name: str, kind: str, reason: str) -> None:
        self.skipped.setdefault(name, Skipped(name, kind, reason))

    def _add(self, layer: Layer) -> None:
        known = self.layers.get(layer.name)
        if known is not None and known.call != layer.call:
            self._skip(layer.name, layer.kind, "its weight is used in several modules")
        elif known is not None and layer.weight_shape and not layer.weight_path:
            self._skip(layer.name, layer.kind, "it computes a weight for each of its uses")
        elif layer.weight_path and self.names[id(self.module.get_parameter(layer.weight_path))] in self.probe.read:
            self._skip(layer.name, layer.kind, "its weight is read elsewhere too")
        elif "forward" in vars(self.modules[layer.call.scope]):
            self._skip(layer.name, layer.kind, "its module has a forward of its own instance, not of its class")
        self.layers[layer.name] = layer if known is None else known.used_again(layer)

    def _calls_within(self, layer: Layer) -> int:
        """List calls of the layer's family in the module that computes it; more than one could not be told apart."""
        records = self.probe.records
        return sum(record.family == layer.kind and layer.call.scope in record.stack for record in records)

    def _weight_parts(self, record: Record) -> tuple[str, ...]:
        """Return the parameters that only a computed weight is computed from, if they have as many values."""
        used = self.probe.sources.union(*(r.operands[1].sources for r in self.probe.records if r is not record))
        count = prod(record.operands[1].shape)
        mine = sorted(record.operands[1].sources - used)
        return tuple(path for path in mine if self.module.get_parameter(path).numel() == count)

    def _group(self, value: int) -> int:
        return self.groups.setdefault(value, len(self.groups))

    def _scope(self, record: Record) -> str:
        """Return the innermost module in whose forward the call happens; for half an attention, that of both halves."""
        other = self.probe.records[record.partner].stack if record.partner >= 0 else record.stack
        common = [path for path, also in zip(record.stack, other, strict=False) if path == also]
        return common[-1] if common else ""

    def _weighted(self, record: Record) -> None:
        """Return a convolution or linear layer, named after the module that owns its weight."""
        path, parameter = record.stack[-1], record.operands[1].parameter
        own = self.modules[path]
        owner, _, attribute = parameter.rpartition(".")
        if IMAGES in record.operands[1].sources:
            self._skip(path, record.family, "its weight depends on the images")
        elif isinstance(own, _KINDS[record.family]):
            same = parameter and own._parameters.get("weight") is self.module.get_parameter(parameter)
            layer = self._weighted_layer(record, path, Call(path, record.family, weight="weight" if same else ""))
            self._add(layer if same else replace(layer, weight_parts=self._weight_parts(record)))
        elif parameter:
            scope = next(at for at in reversed(record.stack) if _inside(parameter, at))
            name = owner if attribute == "weight" else parameter.removesuffix("_weight")
            call = Call(scope, record.family, weight=parameter.removeprefix(f"{scope}."))
            self._add(self._weighted_layer(record, name, call))
        else:
            self._skip(f"{path}#{record.family}", record.family, "its weight is not a parameter of the model")

    def _weighted_layer(self, record: Record, name: str, call: Call) -> Layer:
        source, weight = record.operands
        rows = prod(record.out_shape) // weight.shape[0] // self.images
        if record.family == "linear":
            in_channels, groups, kernel, stride, padding, size = weight.shape[1], 1, (1, 1), (1, 1), (0, 0), (rows, 1)
            paper = rows
        else:
            groups = int(record.options["groups"])
            in_channels, kernel = weight.shape[1] * groups, (weight.shape[2], weight.shape[3])
            stride, size = two(record.options["stride"]), (source.shape[-2], source.shape[-1])
            padding = padding_of(record, kernel)
            paper = paper_positions(record, kernel, padding) * (prod(source.shape[:-3]) // self.images)
        per_position = weight.shape[1] * weight.shape[0] * kernel[0] * kernel[1]
        return Layer(
            name=name,
            kind=record.family,
            in_channels=in_channels,
            out_channels=weight.shape[0],
            kernel=kernel,
            stride=stride,
            padding=padding,
            groups=groups,
            input_size=size,
            positions=rows,
            macs=per_position * rows,
            macs_paper=per_position * paper,
            weight_shape=weight.shape,
            signed_input=source.signed,
            call=call,
            input_group=self._group(source.value),
        )

    def _matmul(self, record: Record, scope: str) -> None:
        if not record.role:
            self._skip(f"{scope}#matmul", "matmul", "a matrix product outside softmax attention")
            return
        if scope in self.outer:
            self._skip(f"{scope}#matmul", "matmul", "attention of a module that contains other attention modules")
            return
        numbers = self.pairs.setdefault(scope, [])
        index = record.index[scope]
        first = self.probe.records[record.partner].index[scope] if record.role == "av" else index
        if first not in numbers:
            numbers.append(first)
        suffix = "" if numbers.index(first) == 0 else str(numbers.index(first) + 1)
        if record.role == "fused":
            query, key, value = record.operands
            fraction = Operand((*query.shape[:-1], key.shape[-2]), signed=False, value=-1 - len(self.groups))
            halves = [("qk", query, _turned(key)), ("av", fraction, value)]
            for role, a, w in halves:
                call = Call(scope, "matmul", index=index, fused=role)
                sizes = (prod(a.shape[:-2]) // self.images, a.shape[-2], a.shape[-1], w.shape[-1])
                self._add(self._matmul_layer(f"{scope}#{role}{suffix}", call, (a, w), sizes))
        else:
            call = Call(scope, "matmul", index=index, a=record.a)
            pair = (record.operands[record.a], record.operands[1 - record.a])
            sizes = matmul_sizes(record, self.images)
            self._add(self._matmul_layer(f"{scope}#{record.role}{suffix}", call, pair, sizes))

    def _matmul_layer(
        self, name: str, call: Call, pair: tuple[Operand, Operand], sizes: tuple[int, int, int, int]
    ) -> Layer:
        heads, tokens, dim, columns = sizes
        macs = heads * tokens * dim * columns
        return Layer(
            name=name,
            kind="matmul",
            in_channels=heads * dim,
            out_channels=heads * columns,
            kernel=(1, 1),
            stride=(1, 1),
            padding=(0, 0),
            groups=heads,
            input_size=(tokens, 1),
            positions=tokens,
            macs=macs,
            macs_paper=macs,
            weight_shape=(),
            signed_input=pair[0].signed,
            signed_w=pair[1].signed,
            call=call,
            input_group=self._group(pair[0].value),
            heads=heads,
            tokens=tokens,
            dim=dim,
        )


def _inside(path: str, scope: str) -> bool:
    """Tell whether a path lies strictly within a module; the root is ""."""
    return path != scope and (not scope or path.startswith(f"{scope}."))


def _turned(operand: Operand) -> Operand:
    *batch, rows, columns = operand.shape
    return Operand((*batch, columns, rows), operand.signed, operand.value)
