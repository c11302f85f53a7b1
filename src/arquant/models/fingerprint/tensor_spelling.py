"""Tensors, arrays and TorchScript as bytes that are the same in every process."""

import hashlib
import io
import pickletools
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_CLASS = re.compile(r"__torch__[.\w]*")
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
_CODE = re.compile(r"[^/]*/code/(.*)\.py")
_BLOCK = re.compile(r"^(?=class |def )", re.MULTILINE)


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return type, shape and values of a tensor as bytes."""
    plain = tensor.detach().cpu().contiguous()
    return f"{plain.dtype}:{tuple(plain.shape)}:".encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def tensor_digest(tensor: Tensor) -> bytes | None:
    """Digest any tensor that a user may keep; None for one whose values cannot be had, such as a meta tensor."""
    try:
        if tensor.layout not in (torch.strided, torch.jagged):
            sparse = tensor.detach().to_sparse(layout=torch.sparse_coo).coalesce()
            parts = [sparse.indices(), sparse.values()]
        elif tensor.is_quantized:
            parts = [tensor.int_repr(), tensor.dequantize()]
        else:
            parts = [tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg()]
        content = b"".join(hashlib.sha256(tensor_bytes(part)).digest() for part in parts)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return f"{tensor.dtype}:{tuple(tensor.shape)}:{tensor.layout}:".encode() + content


def array_digest(array: np.ndarray | np.generic) -> bytes:
    """Digest an array or a number of NumPy; the values behind a mask count too."""
    kind = array.dtype.descr if array.dtype.names else array.dtype.str
    facts = f"{type(array).__name__}:{kind}:{array.shape}:".encode()
    mask = np.ma.getmaskarray(array).tobytes() if isinstance(array, np.ma.MaskedArray) else b""
    return facts + hashlib.sha256(np.asarray(array).tobytes()).digest() + mask


def script_digest(script: Any) -> bytes | None:
    """Digest a TorchScript module or function as its file would hold it, without debugging records."""
    buffer = io.BytesIO()
    try:
        torch.jit.save(script, buffer)
    except Exception:  # of torch's, which has no common class for what it cannot save
        return None
    with zipfile.ZipFile(buffer) as archive:
        return _archive_digest({name: archive.read(name) for name in archive.namelist()})


def _archive_digest(files: Mapping[str, bytes]) -> bytes:
    """Digest the files of an archive, with names for its classes that do not depend on what else the process has compiled."""
    names = _ClassNames()
    parts = []
    for name in sorted(files):
        inner = name.partition("/")[2]
        if inner in ("data.pkl", "constants.pkl"):
            operations = [(kind.name, str(value)) for kind, value, _ in pickletools.genops(files[name])]
            parts.append(repr([(kind, names.in_text(value.replace(" ", "."))) for kind, value in operations]).encode())
        elif inner.startswith(("data/", "constants/")):
            parts.append(inner.encode() + files[name])
    code = []
    for name in sorted(files):
        if found := _CODE.fullmatch(name):
            for block in _BLOCK.split(files[name].decode()):
                heading = re.match(r"(?:class|def) (\w+)", block)
                own = f"{found[1].replace('/', '.')}.{heading[1]}" if heading else ""
                code.append(f"{names.in_text(own)}: {names.in_text(block)}".encode())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in (*parts, *sorted(code)))).digest()


class _ClassNames:
    """Numbers classes of equal names in the order in which a network has them; TorchScript numbers all of a process."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def in_text(self, text: str) -> str:
        """Replace the names of classes."""
        return _CLASS.sub(lambda found: self._name(found[0]), text)

    def _name(self, full: str) -> str:
        short = _MANGLED.sub("", f"{full}.").removesuffix(".")
        number = sum(known.startswith(f"{short}#") for known in self._known.values())
        return self._known.setdefault(full, f"{short}#{number}")
