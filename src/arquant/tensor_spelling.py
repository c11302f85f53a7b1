"""Tensors, arrays and TorchScript as bytes that are the same in every process."""

import hashlib
import io
import re
import zipfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MANGLED = re.compile(rb"___torch_mangle_\d+\.?")
"""TorchScript numbers classes of equal names by how many there were before in the process"""
_SCRIPT_PARTS = re.compile(r"[^/]*/(code/.*\.py|constants\.pkl|constants/.*|data\.pkl|data/.*)")


def tensor_bytes(tensor: Tensor) -> bytes:
    """Type, shape and values of a tensor."""
    plain = tensor.detach().cpu().contiguous()
    return f"{plain.dtype}:{tuple(plain.shape)}:".encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def tensor_digest(tensor: Tensor) -> bytes | None:
    """Digest any tensor that a user may keep; None for one whose values cannot be had, such as a meta tensor."""
    try:
        if tensor.layout == torch.sparse_coo:
            tensor = tensor.detach().coalesce()
            parts = [tensor.indices(), tensor.values()]
        elif tensor.is_quantized:
            parts = [tensor.int_repr(), tensor.dequantize()]
        else:
            parts = [tensor.detach().resolve_conj().resolve_neg()]
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
    digest = hashlib.sha256()
    with zipfile.ZipFile(buffer) as archive:
        for name in sorted(archive.namelist()):
            if _SCRIPT_PARTS.fullmatch(name):
                content = _MANGLED.sub(b"", archive.read(name))
                digest.update(f"{_MANGLED.sub(b'', name.encode()).decode()}:{len(content)}:".encode() + content)
    return digest.digest()
