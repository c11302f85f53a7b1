"""Integers of 1 to 8 bits to bytes and back: `n` integers of `b` bits take exactly ceil(n b / 8) bytes. No torch.

Integer `i` lies at bits `i b` to `(i + 1) b - 1` of the stream, least significant bit first, and so are the bits within
a byte; the unused bits of the last byte are zero. Unsigned integers are stored as they are, signed ones in two's
complement, except that a signed width of 1 means -1 and +1 (stored as 0 and 1): the two signs of a binary weight.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import FileFormatError, InputError

MAX_WIDTH = 8


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` integers of `bits` bits take."""
    _check_width(bits)
    return -(-count * bits // 8)


def integer_range(bits: int, *, signed: bool) -> tuple[int, int]:
    """Return the smallest and the largest integer that fits."""
    _check_width(bits)
    if not signed:
        return 0, 2**bits - 1
    return (-1, 1) if bits == 1 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def pack(values: NDArray[Any], bits: int, *, signed: bool) -> NDArray[np.uint8]:
    """Return the integers of `values`, in C order, as `packed_size(values.size, bits)` bytes.

    Raises:
        InputError: a value that does not fit into `bits` bits, or is not an integer.
    """
    low, high = integer_range(bits, signed=signed)
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype.kind not in "iu":
        raise InputError(f"only integers can be packed, got an array of {flat.dtype}")
    if flat.size and not (low <= int(flat.min()) and int(flat.max()) <= high):
        raise InputError(
            f"values from {flat.min()} to {flat.max()} do not fit into {bits} {_sign(signed)} bits ({low} to {high})"
        )
    if signed and bits == 1:
        if not flat.all():
            raise InputError("a signed width of 1 bit holds -1 and +1 only, got a 0")
        flat = flat > 0
    codes = flat.astype(np.int8 if signed else np.uint8).view(np.uint8)
    stream = np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(stream, bitorder="little")


def unpack(data: NDArray[np.uint8], bits: int, count: int, *, signed: bool) -> NDArray[np.int16]:
    """Return the `count` integers that `pack` wrote.

    Raises:
        FileFormatError: `data` is longer or shorter than `count` integers, or its unused bits are not zero.
    """
    expected = packed_size(count, bits)
    if data.dtype != np.uint8 or data.shape != (expected,):
        raise FileFormatError(
            f"{count} integers of {bits} bits take {expected} bytes, got {data.dtype} of shape {data.shape}"
        )
    stream = np.unpackbits(data, bitorder="little")
    if stream[count * bits :].any():
        raise FileFormatError(f"the unused last bits of {count} packed integers of {bits} bits are not zero")
    rows = stream[: count * bits].reshape(count, bits)
    codes = np.packbits(rows, axis=1, bitorder="little").reshape(count).astype(np.int16)
    if not signed:
        return codes
    if bits == 1:
        return (2 * codes - 1).astype(np.int16)
    sign = np.int16(2 ** (bits - 1))
    return (codes ^ sign) - sign


def _check_width(bits: int) -> None:
    if not 1 <= bits <= MAX_WIDTH:
        raise InputError(f"a packed width must be 1 to {MAX_WIDTH} bits, got {bits}")


def _sign(signed: bool) -> str:
    return "signed" if signed else "unsigned"
