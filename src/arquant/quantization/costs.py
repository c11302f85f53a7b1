"""What a policy costs: bit operations, bytes of the file or of its weights, or any quantity tabulated per layer and width.

All costs are sums over layers. `exact` is the default convention for bit operations; `paper` counts as the ARQ paper's
tables do, with un-floored output extents, the first layer at -8 per multiply-accumulate (its input width -1 multiplied
in) and the matmuls of attention at 32 x 32.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import InputError, MismatchError
from arquant.models.tracing.layer import Layer, Layers
from arquant.quantization.policy import MAX_BITS, Bits, Policy

FLOAT_BITS = 32
CONVENTIONS = ("exact", "paper")
HEADER_BYTES = 3_000
"""of a file of ours, beside its policy: names, normalisation, provenance, index of tensors"""
_WIDTHS_IN_HEADER = 10
"""characters of a layer's widths in the header, colon, comma and escaped quotes included; those around its name are its own"""
_LOWS = 2
"""bytes of the smallest integers of a layer's two activations"""
_OWN_NAMES = ("bops", "bytes", "weight_bytes")


class Cost(ABC):
    """A cost that is a sum over layers, in `unit`; lower is better."""

    name: str
    unit: str

    @abstractmethod
    def layer_cost(self, layer: Layer, w: float, a: float, layers: Layers) -> float:
        """Return the share of one layer at `w` and `a` bits. Fractions are meant for budgets such as 2.5 bits."""

    @abstractmethod
    def float_cost(self, layers: Layers) -> float:
        """Return the cost that percentages refer to."""

    def cost(self, policy: Policy, layers: Layers) -> float:
        """Return the cost of a policy; a policy for another network is a MismatchError."""
        policy.check(layers)
        return sum(self.layer_cost(layer, policy[layer.name].w, policy[layer.name].a, layers) for layer in layers)

    def uniform_cost(self, bits: float, layers: Layers, fixed: Mapping[str, Bits]) -> float:
        """Return the cost with `bits` (fractions allowed) for the weights and inputs of all layers that are not fixed."""
        widths = {name: (float(kept.w), float(kept.a)) for name, kept in fixed.items()}
        return sum(self.layer_cost(layer, *widths.get(layer.name, (bits, bits)), layers) for layer in layers)

    def costs(self, layers: Layers) -> NDArray[np.float64]:
        """Return all shares as an array [layer, w - 1, a - 1]."""
        widths = range(1, MAX_BITS + 1)
        return np.array([[[self.layer_cost(layer, w, a, layers) for a in widths] for w in widths] for layer in layers])


@dataclass(frozen=True)
class Bops(Cost):
    """Bit operations per image: multiply-accumulates x weight bits x input bits; in single operations, not giga."""

    convention: str = "exact"
    unit = "BOPs"

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise InputError(f"convention must be one of {', '.join(CONVENTIONS)}, got {self.convention!r}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """`bops`, or `bops@paper`."""
        return "bops" if self.convention == "exact" else f"bops@{self.convention}"

    def layer_cost(self, layer: Layer, w: float, a: float, layers: Layers) -> float:
        """See `Cost.layer_cost`. The first layer's has that of all layers that are left in float."""
        first = layer.name == layers.first.name
        beside = self._in_float(layers.left) if first else 0
        if self.convention == "exact":
            return layer.macs * w * a + beside
        if first:
            return -8.0 * layer.macs_paper + beside
        return layer.macs_paper * (FLOAT_BITS**2 if layer.kind == "matmul" else w * a)

    def float_cost(self, layers: Layers) -> float:
        """Return the cost at 32 x 32 bits everywhere."""
        return float(self._in_float((*layers, *layers.left)))

    def _in_float(self, layers: Iterable[Layer]) -> int:
        return FLOAT_BITS**2 * sum(layer.macs if self.convention == "exact" else layer.macs_paper for layer in layers)


@dataclass(frozen=True)
class WeightBytes(Cost):
    """Bytes of the quantized weights at their true widths. Biases, scales and normalisation are not in it."""

    name = "weight_bytes"
    unit = "bytes"

    def layer_cost(self, layer: Layer, w: float, a: float, layers: Layers) -> float:
        """See `Cost.layer_cost`."""
        return layer.weights * w / 8

    def float_cost(self, layers: Layers) -> float:
        """Return the bytes of the same weights in float32."""
        return layers.weights * FLOAT_BITS / 8

    def float_params_bytes(self, layers: Layers) -> int:
        """Bytes of everything that stays float32: biases, normalisation, skipped layers."""
        return layers.other_params * FLOAT_BITS // 8


@dataclass(frozen=True)
class FileBytes(Cost):
    """Bytes of `model.safetensors`, at most: weights, what stays in float, clips, policy and header.

    What the file says of images (`seen`, `about_images`) is beside the model and not in it. HEADER_BYTES are reserved for the
    header; a command too long for them is shortened when the file is written.

    Args:
        per_channel: each output channel of a weight has a clip of its own.
        books: each layer has the 2^w values of its weights, a byte each (`weight_sharing`).
    """

    per_channel: bool = False
    books: bool = False
    name = "bytes"
    unit = "bytes"

    def layer_cost(self, layer: Layer, w: float, a: float, layers: Layers) -> float:
        """See `Cost.layer_cost`. The first layer's has all that no layer's width decides."""
        clips = 1 + (layer.out_channels if self.per_channel and layer.weights else 1)
        in_policy = len(json.dumps(json.dumps(layer.name))) + _WIDTHS_IN_HEADER
        book = ceil(2**w) if self.books and layer.weights else 0
        own = ceil(layer.weights * w / 8) + book + FLOAT_BITS // 8 * clips + _LOWS + in_policy
        return own + self._constant(layers) if layer.name == layers.first.name else own

    def float_cost(self, layers: Layers) -> float:
        """Return the bytes of all parameters in float32."""
        return (layers.weights + layers.other_params) * FLOAT_BITS / 8

    @staticmethod
    def _constant(layers: Layers) -> int:
        left = sum(len(json.dumps(json.dumps(layer.name))) + 1 for layer in layers.left)
        return HEADER_BYTES + left + layers.other_params * FLOAT_BITS // 8 + layers.other_bytes


@dataclass(frozen=True, eq=False)
class LatencyTable(Cost):
    """Any quantity known per layer and width, such as latency or energy: `values[layer, w - 1, a - 1]` in `unit`.

    `names` has the layer of each row. Without them, as in a file of HAQ's, rows are in the order of the network's modules.
    """

    values: NDArray[np.float64]
    unit: str = "ms"
    quantity: str = "latency"
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = self.values.shape
        if not re.fullmatch(r"[A-Za-z]\w*", self.quantity) or self.quantity in _OWN_NAMES:
            raise InputError(
                f"a table's quantity must be a word of its own, such as latency or energy, got {self.quantity!r}"
            )
        if len(shape) != 3 or shape[0] == 0 or shape[1:] != (MAX_BITS, MAX_BITS):
            raise InputError(f"a {self.quantity} table must have shape (layers, 8, 8), got {shape}")
        if not np.isfinite(self.values).all() or (self.values < 0).any():
            raise InputError(f"a {self.quantity} table must hold finite numbers >= 0")
        if self.names and len(self.names) != shape[0]:
            raise InputError(f"a {self.quantity} table of {shape[0]} rows has {len(self.names)} names")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return what the table tells: `latency`, `energy`."""
        return self.quantity

    def check(self, layers: Layers) -> None:
        """Raise MismatchError unless the table has one row for each layer, with its name if names are known."""
        if layers.left:
            raise InputError(
                f"a {self.quantity} table knows widths up to {MAX_BITS} bits, and {layers.left[0].name} is left in float"
            )
        if len(self.values) != len(layers):
            raise MismatchError(
                f"the {self.quantity} table has {len(self.values)} rows, but the model {layers.model!r} has "
                f"{len(layers)} layers; make one with `arquant cost --make-table`"
            )
        if self.names and (odd := set(self.names) ^ set(layers.names)):
            raise MismatchError(
                f"the {self.quantity} table is of other layers than the model {layers.model!r}: {min(odd)!r} is in one only"
            )

    def layer_cost(self, layer: Layer, w: float, a: float, layers: Layers) -> float:
        """See `Cost.layer_cost`; only whole bits."""
        if w != int(w) or a != int(a):
            raise InputError(f"a {self.quantity} table has no entry for {w:g} bits; state whole bits or an amount")
        return float(self.values[self._rows(layers)[layer.name], int(w) - 1, int(a) - 1])

    def _rows(self, layers: Layers) -> dict[str, int]:
        return self._named_rows or layers.registered_places

    @cached_property
    def _named_rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    def cost(self, policy: Policy, layers: Layers) -> float:
        """See `Cost.cost`; a table of another network is a MismatchError."""
        self.check(layers)
        return super().cost(policy, layers)

    def float_cost(self, layers: Layers) -> float:
        """Return the cost at 8 x 8 bits everywhere: tables know no float widths."""
        self.check(layers)
        return float(self.values[:, -1, -1].sum())


def cost_summary(
    policy: Policy,
    layers: Layers,
    table: LatencyTable | None = None,
    *,
    convention: str = "exact",
    file: FileBytes | None = None,
) -> dict[str, Any]:
    """Return what `arquant cost --json` prints. Without a latency table `latency_ms` is None; another quantity's table has its
    cost under that name, in its own unit. `file` is how weights are stored, if not with one clip per layer.
    """
    bops = Bops(convention)
    total = bops.cost(policy, layers)
    timed = table is not None and table.quantity == "latency"
    return {
        "gbops": total / 1e9,
        "percent_of_fp32": 100 * total / bops.float_cost(layers),
        "bytes": ceil((file or FileBytes()).cost(policy, layers)),
        "weight_bytes": ceil(WeightBytes().cost(policy, layers)),
        "latency_ms": milliseconds(table.cost(policy, layers), table.unit) if table is not None and timed else None,
        **({table.quantity: table.cost(policy, layers)} if table is not None and not timed else {}),
    }


def milliseconds(value: float, unit: str) -> float:
    """Return a time in `unit` (s, ms, us, ns) as milliseconds."""
    scale = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
    if unit not in scale:
        raise InputError(f"a latency table must be in s, ms, us or ns, got {unit!r}")
    return value * scale[unit]
