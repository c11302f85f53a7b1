"""Groups of options that several commands share, each declared once."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arquant.base.options import Repeated

if TYPE_CHECKING:
    from arquant.images.imageset import ImageSet
    from arquant.models.classifier import Classifier

    ModelLike = str | Path | Classifier
    DataLike = str | ImageSet
    PathLike = str | Path
else:  # what a command line can say; Python takes the objects too
    ModelLike = DataLike = PathLike = str

MODEL_HELP = (
    "resnet20:sigma=0.5 (shipped weights), resnet20 | vit_tiny | mobilenetv2 | resnet50, a run folder, model.safetensors, "
    ".onnx, OpenVINO .xml, weights.pt with --arch, timm:NAME, torchvision:NAME, package.module:factory"
)
DATA_HELP = (
    "sample (embedded CIFAR-10 images), cifar10[:DIR], folder:DIR (one folder per class), npz:FILE (images, labels), "
    "package.module:factory"
)
NoiseName = Literal["grid", "gaussian", "uniform", "laplace"]
EngineName = Literal["auto", "torch", "openvino", "onnxruntime"]
PrecisionName = Literal["float32", "bfloat16"]
ClipRule = Literal["auto", "mse", "kl", "max"]
Learn = Literal["pact", "lsq"]


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
    """number of classes"""

    @property
    def model_options(self) -> dict[str, Any]:
        """Return them as keyword arguments of `load_model`."""
        return {name: getattr(self, name) for name in ("arch", "mean", "std", "bounds", "input", "classes")}


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Images"""

    images: str | None = None
    """which images of the role: every:20 | first:500 | most:500 | 0-499; all if not given"""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Engine"""

    engine: EngineName = "auto"
    """what computes the votes; auto: openvino on a CPU, if it can run the model"""
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
class PolicyOptions:
    """Policy"""

    bits: str | None = None
    """the same widths for all layers but first and last: 3, or w3a4"""
    policy: PathLike | None = None
    """a policy.json"""
    keep: Repeated = ()
    """fix layers by pattern: 'head.*=8'; may be repeated"""
