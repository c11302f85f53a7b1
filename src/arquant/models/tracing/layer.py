"""Facts about the layers of a network that can be quantized: `Layer`, `Layers`. `arquant.models.tracing.layers` finds them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from arquant.base.errors import InputError
from arquant.models.tracing.attention import Call


@dataclass(frozen=True)
class Layer:
    """One quantizable layer and its facts, per image.

    Attributes:
        name: its path, or `<attention module>#qk` / `#av`.
        kind: "conv", "linear" or "matmul".
        in_channels, out_channels: as of the module; for matmuls heads x inner size, heads x columns, `groups` = heads.
        kernel, stride, padding: (height, width); 1, 1, 0 for linear and matmul.
        groups, depthwise: depthwise is one input channel per group.
        input_size: (height, width) of the input of a convolution, (rows, 1) of the others.
        positions: output pixels, or rows (tokens), summed over `uses`.
        macs: multiply-accumulates, exactly; always (in_channels / groups) x out_channels x kernel area x positions.
        macs_paper: the same with un-floored output extents, as the paper counts.
        weight_shape, weights: of the weight tensor and its number of elements; () and 0 for matmuls.
        signed_input: whether the `a` operand can be negative: the input, Q, or the probabilities.
        signed_w: the same of the `w` operand: True for weights; K or V of matmuls.
        input_group: equal for layers that read the same values.
        heads, tokens, dim: of matmuls: products per image, rows of the `a` operand, summed-over size; 0 elsewhere.
        weight_parts: paths of the parameters that a computed weight replaces: they have as many values as it, and nothing
            else is computed from them; empty where the weight is a parameter itself.
        uses: how often one forward pass computes it (a shared module: more than once).
        call: where it is computed, for interception; see `arquant.models.tracing.attention`.
    """

    name: str
    kind: str
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    groups: int
    input_size: tuple[int, int]
    positions: int
    macs: int
    macs_paper: int
    weight_shape: tuple[int, ...]
    signed_input: bool
    call: Call
    signed_w: bool = True
    input_group: int = 0
    heads: int = 0
    tokens: int = 0
    dim: int = 0
    weight_parts: tuple[str, ...] = ()
    uses: int = 1

    @property
    def depthwise(self) -> bool:
        """Tell whether each group of a convolution has one input channel."""
        return self.kind == "conv" and self.groups == self.in_channels > 1

    @property
    def weights(self) -> int:
        """Count the weights of the layer; 0 for matmuls."""
        return prod(self.weight_shape) if self.weight_shape else 0

    @property
    def plain(self) -> bool:
        """Tell whether the module `name` computes the layer in its own forward, from its own parameter `weight`."""
        return self.call.scope == self.name and self.call.weight == "weight"

    @property
    def weight_path(self) -> str:
        """Return the weight's key in the module's state-dict; "" if the layer has none or computes it."""
        if not self.call.weight:
            return ""
        return f"{self.call.scope}.{self.call.weight}" if self.call.scope else self.call.weight

    def used_again(self, other: "Layer") -> "Layer":
        """Return the same layer with the cost of another use added."""
        return replace(
            self,
            positions=self.positions + other.positions,
            macs=self.macs + other.macs,
            macs_paper=self.macs_paper + other.macs_paper,
            signed_input=self.signed_input or other.signed_input,
            signed_w=self.signed_w or other.signed_w,
            uses=self.uses + 1,
        )


@dataclass(frozen=True)
class Skipped:
    """A part of the network that stays in floating point, and why."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Layers:
    """The quantizable layers in order of execution, by position or by name, and what is skipped.

    `other_params` counts the floating-point values (biases, normalisation, skipped layers) that stay as they are.
    `other_bytes` is what a file needs at most for the tensors of another type than float32, counters of steps left out.
    `registered` has the names in the order of the network's modules, as tables of HAQ's list them, where it is another.
    `left` are layers that could be quantized and stay in floating point, as the user wants it (`leaving`).
    """

    layers: tuple[Layer, ...]
    skipped: tuple[Skipped, ...] = ()
    model: str = ""
    input_shape: tuple[int, int, int] = (0, 0, 0)
    other_params: int = 0
    registered: tuple[str, ...] = ()
    other_bytes: int = 0
    left: tuple[Layer, ...] = ()

    @cached_property
    def _by_name(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def registered_places(self) -> dict[str, int]:
        """Return the place of each layer in the order of the network's modules, from 0."""
        return {name: place for place, name in enumerate(self.registered or self.names)}

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, key: int | str) -> Layer:
        if isinstance(key, int):
            return self.layers[key]
        if key not in self._by_name:
            raise InputError(f"model {self.model!r} has no layer {key!r}; `arquant inspect` lists them")
        return self._by_name[key]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the layers in order of execution."""
        return tuple(layer.name for layer in self.layers)

    @property
    def first(self) -> Layer:
        """Return the layer that is executed first."""
        return self.layers[0]

    @property
    def last(self) -> Layer:
        """Return the layer that is executed last."""
        return self.layers[-1]

    @property
    def macs(self) -> int:
        """Return the exact multiply-accumulates per image."""
        return sum(layer.macs for layer in self.layers)

    @property
    def macs_paper(self) -> int:
        """Return the multiply-accumulates per image as the paper counts them."""
        return sum(layer.macs_paper for layer in self.layers)

    @property
    def weights(self) -> int:
        """Count the quantizable weights."""
        return sum(layer.weights for layer in self.layers)

    def leaving(self, names: Collection[str]) -> "Layers":
        """Return the layers without those of these names, which stay in floating point and cost what they cost there."""
        gone = {layer.name for layer in self.left}
        left = tuple(self[name] for name in dict.fromkeys(names) if name not in gone)
        if left and len(left) == len(self.layers):
            raise InputError(f"all layers of model {self.model!r} are left in float: nothing is left to quantize")
        rest = tuple(layer for layer in self.layers if layer not in left)
        params = self.other_params + sum(layer.weights for layer in left)
        return replace(self, layers=rest, left=(*self.left, *left), other_params=params)

    def facts(self) -> dict[str, Any]:
        """Return the facts that a policy file states about its model; `Policy.check` compares the shapes."""
        shapes = {layer.name: list(layer.weight_shape) for layer in self.layers}
        macs = {layer.name: layer.macs for layer in (*self.layers, *self.left)}
        left = {"left": [layer.name for layer in self.left]} if self.left else {}
        return {"name": self.model, "input_shape": list(self.input_shape), "shapes": shapes, "macs": macs, **left}


def describe_rows(layers: Layers) -> list[dict[str, Any]]:
    """Return one JSON-ready row per layer, in order, for `arquant inspect`."""
    return [_row(layer) for layer in layers]


def skipped_rows(layers: Layers) -> list[dict[str, str]]:
    """Return one row per skipped part: name, kind, reason."""
    return [{"name": item.name, "kind": item.kind, "reason": item.reason} for item in layers.skipped]


def _row(layer: Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": "depthwise" if layer.depthwise else layer.kind,
        "in_channels": layer.in_channels,
        "out_channels": layer.out_channels,
        "kernel": list(layer.kernel),
        "stride": list(layer.stride),
        "groups": layer.groups,
        "input_size": list(layer.input_size),
        "positions": layer.positions,
        "macs": layer.macs,
        "macs_paper": layer.macs_paper,
        "weights": layer.weights,
        "signed_input": layer.signed_input,
        "input_group": layer.input_group,
        "uses": layer.uses,
    }
