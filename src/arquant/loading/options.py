"""The options that say which MODEL and which DATA: each group declared once, for every command that has it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arquant.images.imageset import ImageSet
    from arquant.models.classifier import Classifier

    ModelLike = str | Path | Classifier
    DataLike = str | ImageSet
    PathLike = str | Path
else:  # what a command line can say; Python takes the objects too
    ModelLike = DataLike = PathLike = str


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """A model of your own"""

    arch: str | None = None
    """network of a state-dict file, or the factory that a run folder may call"""
    mean: tuple[float, ...] | None = None
    """normalisation, per channel: 0.49,0.48,0.45"""
    std: tuple[float, ...] | None = None
    """normalisation, per channel"""
    bounds: tuple[float, float] = (0.0, 1.0)
    """smallest and largest pixel value"""
    input: tuple[int, int, int] | None = None
    """channels,height,width: 3,32,32; needed only where neither the model nor DATA tells"""
    classes: int | None = None
    """number of classes; needed only where neither the model nor DATA tells"""
    fit: str | None = None
    """how photos of a folder become the input: cover (shorter side, centre crop) | squash | exact | 256 (shorter side, then
    crop); as the model's file says, else cover, if not given"""

    @property
    def model_options(self) -> dict[str, Any]:
        """Return them as keyword arguments of `load_model`."""
        return {
            "arch": self.arch, "mean": self.mean, "std": self.std, "bounds": self.bounds, "input_shape": self.input,
            "num_classes": self.classes, "fit": self.fit,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RoleOptions:
    """Images by role (sample and cifar10 have all roles)"""

    calibrate: DataLike | None = None
    """DATA to calibrate and fine-tune on"""
    certify: DataLike | None = None
    """DATA to certify, never seen by the search"""
    split: tuple[float, float, float] | None = None
    """instead: percentages of DATA to calibrate, search and certify on"""
