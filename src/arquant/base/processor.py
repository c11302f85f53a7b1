"""Tell what the processor at hand can do: arithmetic in bfloat16, and compiling a network."""

import inspect
import logging
import os
import shutil
import warnings
from functools import cache
from typing import Any, Literal, TypeVar

import torch

Precision = Literal["float32", "bfloat16"]
"""of a float network's arithmetic; bfloat16 is another function, and its certificates are of that function"""

Function = TypeVar("Function")
log = logging.getLogger(__name__)


def has_bfloat16(device: str = "cpu") -> bool:
    """Tell whether a device has arithmetic for bfloat16, which it then computes faster than float32."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported())
    able = torch.cpu.get_capabilities() if device == "cpu" else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def compiler_available(device: torch.device) -> bool:
    """Tell whether torch.compile can work here; warn when a CPU run has to go without it, unless PyTorch was told to."""
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return False
    if device.type != "cpu" or _compiles():
        return True
    warnings.warn(
        "no working C++ compiler (g++ and Python's headers): running PyTorch uncompiled, about half as fast",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def compile_alone(function: Function, **how: Any) -> Function:
    """Compile a function or a module for itself, with torch.compile's own options.

    Otherwise torch.compile counts all that share a piece of code, such as our wrapper of a network, and after eight of them
    gives up without a word. PyTorch has had the means against it for some versions only. It works when it is first called,
    without a sign of life, so that is announced.
    """
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        how["isolate_recompiles"] = True
    log.info("PyTorch compiles the network before the first step: under a minute, some minutes for a large one")
    made: Function = torch.compile(function, **how)  # type: ignore[call-overload]
    return made


@cache
def _compiles() -> bool:
    """Tell whether a small function compiles on the CPU: that a compiler is there does not say that it works."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        return False
    try:
        torch.compile(torch.neg)(torch.zeros(2))
    except Exception as error:  # of the compiler's many parts, each has its own
        log.debug("torch.compile does not work here: %s", error)
        return False
    return True
