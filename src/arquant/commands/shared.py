"""Groups of options that several commands share, each declared once."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from arquant.base.options import REPEATED, Repeated
from arquant.loading.options import DataLike as DataLike
from arquant.loading.options import ModelLike as ModelLike
from arquant.loading.options import ModelOptions as ModelOptions
from arquant.loading.options import PathLike as PathLike

Paths = Annotated[tuple[PathLike, ...], REPEATED]
"""several files or folders"""
PrecisionName = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Images"""

    images: str | None = None
    """which images of the role: every:20 or most:500 (evenly spaced: a folder is sorted by class) | first:500 | 0-499; all if
    not given"""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Engine"""

    engine: str = "auto"
    """auto, torch, openvino, onnxruntime, or one that you registered; auto: openvino on a CPU, if it can run the model"""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    batch: int | None = None
    """noisy images per batch"""
    threads: int | None = None
    """CPU threads; as many as there are cores if not given"""

    @property
    def engine_options(self) -> dict[str, Any]:
        """Return them as keyword arguments of `make_engine`."""
        return {name: getattr(self, name) for name in ("engine", "device", "batch", "threads")}


@dataclass(frozen=True, kw_only=True)
class PreciseEngineOptions(EngineOptions):
    """Engine"""

    precision: PrecisionName = "float32"
    """arithmetic of a float model; bfloat16 is faster where the processor has it, but another function: certify and predict
    with the same"""

    @property
    def engine_options(self) -> dict[str, Any]:
        """Return them as keyword arguments of `Smoothed`."""
        return {**super().engine_options, "precision": self.precision}


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Log"""

    tensorboard: PathLike | None = None
    """also log to this folder, for TensorBoard (an extra)"""


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Policy"""

    bits: str | None = None
    """the same widths for all layers but first and last: 3, or w3a4"""
    policy: PathLike | None = None
    """a policy.json"""
    keep: Repeated = ()
    """fix layers by pattern: 'head.*=8', or leave them alone: '*attn#*=float'; may be repeated"""
