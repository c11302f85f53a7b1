"""Sizes of convolutions and matrix products from recorded calls."""

from collections.abc import Iterable
from math import prod
from string import ascii_letters
from typing import Any

from arquant.models.tracing.probe import Record


def two(value: Any) -> tuple[int, int]:
    """Return a number or a pair as (height, width)."""
    values = [int(v) for v in value] if isinstance(value, Iterable) else [int(value)]
    return values[0], values[-1]


def padding_of(record: Record, kernel: tuple[int, int]) -> tuple[int, int]:
    """Return the padding of a convolution; of an uneven "same" padding, the smaller side."""
    padding = record.options["padding"]
    if padding == "valid":
        return 0, 0
    if padding == "same":
        dilation = two(record.options["dilation"])
        return dilation[0] * (kernel[0] - 1) // 2, dilation[1] * (kernel[1] - 1) // 2
    return two(padding)


def paper_positions(record: Record, kernel: tuple[int, int], padding: tuple[int, int]) -> int:
    """Count output positions with un-floored extents: 224 -> 112.5, so int(112.5 x 112.5) = 12656."""
    extents = [1.0, 1.0]
    for axis in (0, 1):
        size = record.operands[0].shape[axis - 2]
        reach = two(record.options["dilation"])[axis] * (kernel[axis] - 1) + 1
        extents[axis] = (size + 2 * padding[axis] - reach) / two(record.options["stride"])[axis] + 1
    return record.out_shape[-2] * record.out_shape[-1] if record.options["padding"] == "same" else int(prod(extents))


def matmul_sizes(record: Record, images: int) -> tuple[int, int, int, int]:
    """Return heads, rows of the `a` operand, summed-over size and columns of the other operand, per image."""
    if "equation" in record.options:
        return _einsum_sizes(record, images)
    rows, columns = record.out_shape[-2:] if record.a == 0 else record.out_shape[:-3:-1]
    return prod(record.out_shape[:-2]) // images, rows, record.operands[0].shape[-1], columns


def _einsum_sizes(record: Record, images: int) -> tuple[int, int, int, int]:
    left, _, out = str(record.options["equation"]).replace(" ", "").partition("->")
    terms = left.split(",")
    free = [
        len(op.shape) - len(term) + 3 if "..." in term else 0 for term, op in zip(terms, record.operands, strict=True)
    ]
    dots = "".join(letter for letter in ascii_letters if letter not in left)[: max(free)]
    labels = [term.replace("...", dots[len(dots) - many :]) for term, many in zip(terms, free, strict=True)]
    size: dict[str, int] = {}
    for term, operand in zip(labels, record.operands, strict=True):
        size |= {label: max(length, size.get(label, 1)) for label, length in zip(term, operand.shape, strict=True)}
    a, w, kept = set(labels[record.a]), set(labels[1 - record.a]), set(out.replace("...", dots))
    groups = (kept & a & w, (a - w) & kept, (a | w) - kept, (w - a) & kept)
    heads, rows, inner, columns = (prod(size[label] for label in group) for group in groups)
    return heads // images, rows, inner, columns
