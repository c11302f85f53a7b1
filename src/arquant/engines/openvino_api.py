"""OpenVINO, imported so that it does not report its use.

Its converter sends an event to a server for every conversion, without asking, and forks the whole process for each: some
twenty copies of a process of gigabytes for one small certification, which hold its files and locks while they live. Without
the package `openvino_telemetry` it does neither, so this import goes without. Other modules import OpenVINO from here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TELEMETRY = "openvino_telemetry"


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Let imports of the package fail, unless somebody has imported it already."""
    if _TELEMETRY in sys.modules:
        yield
        return
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # Python's way of saying that there is no such module
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]


with _without_telemetry():
    import openvino as ov
    import openvino.tools.ovc  # noqa: F401  (decides here, once, whether it reports)
    from openvino import opset15 as ops

__all__ = ["ops", "ov"]
