"""Limit what a file may ask for: no network whose tensors it could not hold, no images of any size.

A header is a few hundred bytes, and says how many classes a network has and how large its images are. Both are believed only
as far as the rest of the file can back them: a stored value takes at least one bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from arquant.base.errors import FileFormatError, InputError

SPARE_VALUES = 2**22
"""that a file may ask for in any case: some tensors of a network are computed, and images are not stored"""
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed")


@contextmanager
def within_file(path: Path, num_classes: int, input_shape: Sequence[int] = ()) -> Iterator[None]:
    """Refuse, within the context, to build a network that is larger than the file which asks for it can fill.

    Raises:
        FileFormatError: there are more classes, or values of one image or of one tensor that is to be made, than the file has
            bits, and than 4 million.
    """
    if num_classes > _most_values(path):
        raise FileFormatError(f"{path} states {num_classes:,} classes, too many for such a file; it is damaged")
    check_images(path, input_shape)
    with memory_errors(f"the network of {path}"), _Allowance(path):
        yield


def check_images(path: Path, input_shape: Sequence[int]) -> None:
    """Refuse images that only a file says are larger than any that its network could have been trained on."""
    if prod(input_shape) > _most_values(path):
        raise FileFormatError(f"{path} states images of shape {tuple(input_shape)}, too large for such a file")


def _most_values(path: Path) -> int:
    return max(8 * path.stat().st_size, SPARE_VALUES)


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Turn errors about too little memory within the context into a message that names what the user can change."""
    try:
        yield
    except MemoryError as error:
        raise InputError(f"there is not enough memory for {what}") from error
    except RuntimeError as error:  # what PyTorch raises
        if any(words in str(error) for words in _OUT_OF_MEMORY):
            raise InputError(f"there is not enough memory for {what}") from error
        raise


class _Allowance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every tensor that is about to be made from nothing but a size."""

    def __init__(self, path: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._path, self._most = path, _most_values(path)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.name == "size" and isinstance(value, list | tuple) and prod(value) > self._most:
                raise FileFormatError(
                    f"{self._path} asks for a tensor of shape {tuple(value)}, which a file of "
                    f"{self._path.stat().st_size:,} bytes cannot hold; it is damaged"
                )
        return func(*args, **(kwargs or {}))
