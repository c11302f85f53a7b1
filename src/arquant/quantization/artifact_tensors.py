"""The tensors of an artifact: made of a quantized model, and a freshly built model filled with them (`artifact` says which)."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arquant.base.errors import FileFormatError
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import QuantizedClassifier
from arquant.quantization.quantizers import ActivationQuantizer, WeightQuantizer
from arquant.quantization.weight_sharing import pack_weight, read_weight_, weight_size


def tensors_of(quantized: QuantizedClassifier) -> dict[str, Tensor]:
    """Return what a file holds of the model itself, contiguous copies on the CPU."""
    packed: list[NDArray[np.uint8]] = [np.zeros(0, np.uint8)]
    sizes: list[Tensor] = []
    lows: list[int] = []
    for name, layer in quantized.integer_state().items():
        if layer.weight is not None:
            packed.append(pack_weight(quantized.quantizer(name).w, layer.weight))
        pair = quantized.quantizer(name)
        sizes += [pair.a.size.detach().reshape(-1), pair.w.size.detach().reshape(-1)]
        lows += [grid.low for grid in (layer.input, layer.other) if grid is not None]
    state_left = quantized.float_state()
    floats = [value.reshape(-1) for value in state_left.values() if value.dtype == torch.float32]
    others = {f"state.{key}": _narrow(value) for key, value in state_left.items() if value.dtype != torch.float32}
    tensors = {"weights": torch.from_numpy(np.concatenate(packed)), "sizes": torch.cat(sizes), **others}
    tensors["floats"] = torch.cat(floats) if floats else torch.zeros(0)
    if any(quantizer.skewed_low is not None for quantizer in _activations(quantized)):
        tensors["lows"] = torch.tensor(lows, dtype=torch.int8)
    return {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}


def fill_(quantized: QuantizedClassifier, policy: Policy, tensors: dict[str, Tensor], source: Path) -> None:
    """Fill a freshly built model with the tensors of a file.

    Raises:
        FileFormatError: a value is missing, of another kind, or left over; `source` is named.
    """
    _Filler(source, quantized, policy, tensors).run()


def _activations(quantized: QuantizedClassifier) -> list[ActivationQuantizer]:
    """Return the quantizers of activations, layer after layer, `a` before `w`."""
    pairs = (quantized.quantizer(layer.name) for layer in quantized.layers)
    return [part for pair in pairs for part in (pair.a, pair.w) if isinstance(part, ActivationQuantizer)]


def _narrow(values: Tensor) -> Tensor:
    """Integers in the smallest type that holds them: tables of positions, which some networks have, are large."""
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        return values
    fitting = (values.to(kind) for kind in (torch.uint8, torch.int16, torch.int32))
    return next((narrow for narrow in fitting if torch.equal(narrow.to(values.dtype), values)), values)


class _Filler:
    """Fills a freshly built model with the tensors of a file; every value is checked to be there, and used."""

    def __init__(self, path: Path, quantized: QuantizedClassifier, policy: Policy, tensors: dict[str, Tensor]) -> None:
        self.path = path
        self.quantized = quantized
        self.policy = policy
        self.tensors = dict(tensors)
        self.used = dict.fromkeys(("weights", "sizes", "floats"), 0)
        for name, dtype in (("weights", torch.uint8), ("sizes", torch.float32), ("floats", torch.float32)):
            tensor = self.tensors.get(name)
            if tensor is None or tensor.dtype != dtype or tensor.ndim != 1:
                raise FileFormatError(f"{path}: {name!r} is not a one-dimensional tensor of {dtype}")

    def take(self, name: str, count: int) -> Tensor:
        """Return the next `count` values of a tensor."""
        start = self.used[name]
        self.used[name] = start + count
        part = self.tensors[name][start : start + count]
        if len(part) != count:
            raise FileFormatError(f"{self.path}: {name!r} ends too early for this network")
        return part

    @torch.no_grad()
    def run(self) -> None:
        """Fill the model."""
        owned = self.quantized.owned_weights()
        lows = iter(self._lows())
        for layer in self.quantized.layers:
            pair, bits = self.quantized.quantizer(layer.name), self.policy[layer.name]
            for quantizer, width in ((pair.a, bits.a), (pair.w, bits.w)):
                low = {"low": next(lows, None)} if isinstance(quantizer, ActivationQuantizer) else {}
                quantizer.set_(width, torch.ones_like(quantizer.size), **low)
                quantizer.size.copy_(self._sizes(quantizer.size))
            if isinstance(pair.w, WeightQuantizer):
                data = self.take("weights", weight_size(pair.w, layer.weights, bits.w)).numpy()
                integers = read_weight_(pair.w, data, layer.weights, bits.w)
                weight = integers.reshape(layer.weight_shape) * (pair.w.step * pair.w.unit)
                if layer.name in owned:
                    self.quantized.module.get_parameter(owned[layer.name]).copy_(weight)
                else:
                    pair.w.take_over_(weight)
        self._rest()

    def _lows(self) -> list[int]:
        """Return the smallest integers of the activations' quantizers; none where their widths imply them."""
        stored = self.tensors.pop("lows", None)
        if stored is None:
            return []
        count = len(_activations(self.quantized))
        if stored.dtype != torch.int8 or stored.shape != (count,) or bool((stored > 0).any()):
            raise FileFormatError(f"{self.path}: 'lows' is not one int8 <= 0 for each activation")
        return [int(low) for low in stored]

    def _sizes(self, like: Tensor) -> Tensor:
        sizes = self.take("sizes", like.numel()).reshape(like.shape)
        if not bool(torch.isfinite(sizes).all()):
            raise FileFormatError(f"{self.path}: a clip or step is NaN or infinite")
        return sizes

    def _rest(self) -> None:
        for key, value in self.quantized.float_state().items():
            if value.dtype == torch.float32:
                value.copy_(self.take("floats", value.numel()).reshape(value.shape))
                continue
            stored = self.tensors.pop(f"state.{key}", None)
            if stored is None or stored.shape != value.shape or not torch.can_cast(stored.dtype, value.dtype):
                raise FileFormatError(f"{self.path} lacks {key!r} as {value.dtype} {tuple(value.shape)}")
            value.copy_(stored)
        left = {name: self.tensors[name].numel() - used for name, used in self.used.items()}
        extra = sorted(set(self.tensors) - set(self.used))
        if any(left.values()) or extra:
            raise FileFormatError(f"{self.path} holds more than this network has: {left}, {extra[:3]}")
