"""Share weights: each layer has at most 2^b different values, found by k-means and moved by fine-tuning. HAQ's size mode.

Which weights share a value is decided once, for every width; fine-tuning then moves the values: a shared value is the mean
of its weights, so a step of SGD moves it by its weights' mean gradient, as HAQ does by averaging after every step. Values
are rounded to 8 bits (255 levels of the layer): every engine runs them as integers of 8 bits, and only the file is
smaller, by the b bits of each weight's code beside one byte for each of the 2^b values.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from arquant.quantization.packing import pack, packed_size, unpack
from arquant.quantization.quantizers import Pact, WeightQuantizer, register_quantizer

KMEANS = "kmeans"
ROUNDS = 50
"""of k-means at most; HAQ has 3 in a search and 50 for its result"""
_VALUES = 256


@register_quantizer(KMEANS)
class SharedValues(Pact):
    """Learns the clips of activations, and of weights the values that they share."""

    shares_weights = True

    @staticmethod
    def weight(quantizer: WeightQuantizer, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shared value of every weight in steps; its gradient is the mean over those that share it."""
        assert quantizer.codes is not None
        codes, step = quantizer.codes.reshape(-1).long(), quantizer.step
        zeros = torch.zeros(_VALUES, dtype=weight.dtype, device=weight.device)
        flat = weight.reshape(-1)
        counts = zeros.index_add(0, codes, torch.ones_like(flat)).clamp(min=1)
        means = zeros.index_add(0, codes, flat) / counts
        return means[codes].reshape(weight.shape) * (1 / step), step


def kmeans(
    values: NDArray[np.float64], count: int, rounds: int = ROUNDS
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return `count` centroids of numbers, in increasing order, and the number of the nearest one for each.

    Begins with centroids evenly spaced from the smallest to the largest number, which keeps large weights, and alternates
    nearest centroids and means until nothing changes, `rounds` times at most. A centroid that is nobody's nearest stays.
    """
    ordered = np.sort(values)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    low, high = ordered[0], ordered[-1]
    centroids = low + (np.arange(count) + 0.5) * (high - low) / count
    for _ in range(rounds):
        ends = np.searchsorted(ordered, (centroids[:-1] + centroids[1:]) / 2, side="right")
        borders = np.concatenate([[0], ends, [len(ordered)]])
        members = np.diff(borders)
        means = np.diff(sums[borders]) / np.maximum(members, 1)
        moved = np.where(members > 0, means, centroids)
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    return centroids, np.searchsorted((centroids[:-1] + centroids[1:]) / 2, values, side="left")


def shared(weight: Tensor, bits: int) -> tuple[float, Tensor]:
    """Return the largest magnitude of the 2^bits values that a weight will share, and the code of each, uint8."""
    flat = weight.detach().cpu().double().numpy().reshape(-1)
    centroids, codes = kmeans(flat, 2**bits)
    largest = float(np.abs(centroids[np.unique(codes)]).max())
    return largest, torch.from_numpy(codes.astype(np.uint8)).reshape(weight.shape)


def pack_weight(quantizer: nn.Module, integers: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return the integers of a weight as bytes: each at its width, or 2^bits values of a byte each and then their codes."""
    assert isinstance(quantizer, WeightQuantizer)
    bits = quantizer.bits
    if quantizer.codes is None:
        return pack(integers, bits, signed=True)
    found, codes = np.unique(integers, return_inverse=True)
    book = np.zeros(2**bits, np.int8)
    book[: len(found)] = found
    return np.concatenate([book.view(np.uint8), pack(codes.reshape(-1), bits, signed=False)])


def weight_size(quantizer: WeightQuantizer, count: int, bits: int) -> int:
    """Return the bytes that `pack_weight` makes of so many integers."""
    return packed_size(count, bits) + (0 if quantizer.codes is None else 2**bits)


def read_weight_(quantizer: WeightQuantizer, data: NDArray[np.uint8], count: int, bits: int) -> Tensor:
    """Return the integers that `pack_weight` wrote, as floats; codes of shared ones go to their quantizer."""
    if quantizer.codes is None:
        return torch.from_numpy(unpack(data, bits, count, signed=True)).float()
    codes = unpack(data[2**bits :], bits, count, signed=False)
    quantizer.share_(torch.from_numpy(codes).to(torch.uint8))
    return torch.from_numpy(data[: 2**bits].view(np.int8).astype(np.float32)[codes])
