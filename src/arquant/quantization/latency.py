"""Tables of latency or energy per layer and width: reading, writing, and a bit-serial roofline that makes them.

Two file formats: `.npy` as HAQ ships it, int64 of shape (layers, 8, 8) indexed [layer, w - 1, a - 1] in cycles at 1 GHz
(1e6 = 1 ms), layers in the order of the network's modules; and `.json` with names and a unit:

    {"schema": "arquant.table", "version": 1, "quantity": "energy", "unit": "mJ", "layers": {"conv1": [[...8 of 8...]]}}
"""

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import FileFormatError, InputError
from arquant.base.files import envelope, in_one_move, read_json
from arquant.models.tracing.layer import Layer, Layers
from arquant.quantization.costs import LatencyTable, milliseconds
from arquant.quantization.policy import MAX_BITS

CYCLES_PER_MS = 1e6
SCHEMA, VERSION = "arquant.table", 1


@dataclass(frozen=True)
class BitSerial:
    """A bit-serial accelerator: `rows` x `columns` dot-product units over `word_bits` one-bit products per cycle.

    Each cycle it loads one word of activations and one of weights. Images of a batch are processed one after another;
    linear layers take the whole batch at once. The defaults fit HAQ's MobileNetV2 table within 2 % in total.
    """

    batch: int = 16
    rows: int = 16
    columns: int = 16
    word_bits: int = 256
    clock_ghz: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise InputError(f"accelerator parameter {name} must be positive, got {value}")

    def cycles(self, layer: Layer, w: int, a: int) -> int:
        """Cycles for one batch: the largest of loading activations, loading weights and computing."""
        if layer.depthwise:
            channels = layer.out_channels
            return max(a * self.batch * layer.positions * ceil(channels / self.columns), w * self.batch * channels)
        together = layer.kind == "linear"
        pixels = layer.positions * (self.batch if together else 1)
        repeats = layer.groups * (1 if together else self.batch)
        outputs = layer.out_channels // layer.groups
        words = ceil(layer.in_channels // layer.groups * layer.kernel[0] * layer.kernel[1] / self.word_bits)
        tiles = ceil(pixels / self.rows) * ceil(outputs / self.columns)
        return repeats * words * max(a * pixels, w * outputs, w * a * tiles)


def make_table(layers: Layers, accelerator: BitSerial | None = None) -> LatencyTable:
    """Return an estimated latency table in ms per batch for every layer of a network. It is a model, not a measurement."""
    device = accelerator or BitSerial()
    widths = range(1, MAX_BITS + 1)
    names = layers.registered or layers.names
    cycles = [[[device.cycles(layers[name], w, a) for a in widths] for w in widths] for name in names]
    return LatencyTable(np.array(cycles) / (CYCLES_PER_MS * device.clock_ghz), names=names)


def read_table(path: str | Path, *, quantity: str = "latency") -> LatencyTable:
    """Read a table from HAQ's `.npy` (named `quantity`; in ms) or from our `.json` (which names quantity and unit)."""
    if not Path(path).is_file():
        raise InputError(f"no such table: {path}")
    if Path(path).suffix == ".json":
        return _read_json(Path(path))
    try:
        with Path(path).open("rb") as file:
            cycles: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:  # the reader raises many kinds of exceptions on damaged files
        raise FileFormatError(f"{path}: not a table: {error}") from error
    if not np.issubdtype(cycles.dtype, np.integer):
        raise FileFormatError(f"{path}: a HAQ table holds integers (cycles) of shape (layers, 8, 8)")
    return _checked(path, cycles / CYCLES_PER_MS, "ms", quantity, ())


def write_table(table: LatencyTable, path: str | Path) -> None:
    """Write a table: latency as HAQ's `.npy` (cycles at 1 GHz, rounded up), or anything as `.json`, by the suffix."""
    if Path(path).suffix == ".npy":
        cycles = np.ceil(table.values * milliseconds(1.0, table.unit) * CYCLES_PER_MS - 1e-6)
        with in_one_move(Path(path)) as scratch, scratch.open("wb") as file:
            np.save(file, cycles.astype(np.int64), allow_pickle=False)
    elif Path(path).suffix == ".json" and table.names:
        layers = dict(zip(table.names, table.values.tolist(), strict=True))
        data = {"quantity": table.quantity, "unit": table.unit, "layers": layers}
        with in_one_move(Path(path)) as scratch:
            scratch.write_text(json.dumps(envelope(SCHEMA, VERSION, data)), encoding="utf-8")
    else:
        raise InputError(f"a table is written as .npy, or with layer names as .json; got {path}")


def _read_json(path: Path) -> LatencyTable:
    data = read_json(path, SCHEMA, VERSION)
    try:
        values = np.array(list(data["layers"].values()), dtype=np.float64)
        names, unit, quantity = tuple(data["layers"]), str(data["unit"]), str(data["quantity"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{path}: not a table: {error!r}") from error
    return _checked(path, values, unit, quantity, names)


def _checked(
    path: str | Path, values: NDArray[np.float64], unit: str, quantity: str, names: tuple[str, ...]
) -> LatencyTable:
    try:
        return LatencyTable(values, unit, quantity, names)
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from None
