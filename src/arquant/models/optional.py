"""The one place that imports torchvision and timm: lazily, and so that they work beside a CPU build of torch."""

import importlib
import importlib.util
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from arquant.base.errors import MissingExtraError

_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[torch.library.Library] = []  # a Library takes its operators along when it is collected


def import_torchvision() -> Any:
    """Return the torchvision package; raise MissingExtraError if it is not installed."""
    return _import("torchvision", extra="vision")


def import_timm() -> Any:
    """Return the timm package; raise MissingExtraError if it is not installed."""
    return _import("timm", extra="timm")


def _import(package: str, *, extra: str) -> Any:
    if package not in sys.modules:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra)
        _define_torchvision_operators()
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or package, extra) from error


def _define_torchvision_operators() -> None:
    """Declare the operators that `import torchvision` expects, if its compiled library does not bring them.

    The PyPI wheel's library needs CUDA libraries; beside a CPU torch it does not load and the import fails with
    "operator torchvision::nms does not exist". The declarations have no implementation: classifiers never call them.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or "torchvision" in sys.modules:
        return
    for library in Path(spec.origin).parent.glob("_C.*"):
        try:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        except (ImportError, OSError):
            continue
    if not _has_operator("nms"):
        declared = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        _libraries.append(declared)
        for name in ("nms", "qnms"):
            declared.define(name + _ARGUMENTS)  # type: ignore[no-untyped-call]


def _has_operator(name: str) -> bool:
    return hasattr(torch.ops.torchvision, name)


@contextmanager
def hub_mode() -> Iterator[None]:
    """Let the Hugging Face hub use its cache only, within the context, if its host name cannot be resolved.

    Without this a machine that has no network waits through most of a minute of retries for each model.
    """
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _resolves(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _resolves(url: str) -> bool:
    if urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(url).hostname, None)
    except OSError:
        return False
    return True
