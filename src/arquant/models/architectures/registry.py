"""The networks that arquant defines itself, by name, with the images they are made for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import nn

from arquant.base.errors import InputError
from arquant.models.architectures.mobilenetv2 import MobileNetV2
from arquant.models.architectures.resnet_cifar import CifarResNet
from arquant.models.architectures.resnet_imagenet import ResNet50
from arquant.models.architectures.vit import VisionTransformer
from arquant.models.classifier import CIFAR10_MEAN, CIFAR10_STD, Classifier
from arquant.models.options import Options, seeded_init

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Shape = tuple[int, int, int]
Build = TypeVar("Build", bound=Callable[[int, tuple[int, int, int]], nn.Module])


@dataclass(frozen=True)
class Architecture:
    """A network and the images it is made for."""

    build: Callable[[int, Shape], nn.Module]
    """maps (number of classes, input shape) to the module"""
    num_classes: int
    input_shape: Shape
    mean: tuple[float, ...]
    """per channel, for pixels in [0, 1]"""
    std: tuple[float, ...]


def _cifar_resnet(depth: int, num_classes: int, _: Shape) -> nn.Module:
    return CifarResNet(depth, num_classes)


def _vit_tiny(num_classes: int, input_shape: Shape) -> nn.Module:
    _, height, width = input_shape
    if height != width:
        raise InputError(f"vit_tiny takes square images, got height {height} and width {width}")
    return VisionTransformer(num_classes, image_size=height)


def _cifar(build: Callable[[int, Shape], nn.Module]) -> Architecture:
    return Architecture(build, 10, (3, 32, 32), CIFAR10_MEAN, CIFAR10_STD)


def _imagenet(network: Callable[[int], nn.Module]) -> Architecture:
    return Architecture(lambda classes, _: network(classes), 1000, (3, 224, 224), IMAGENET_MEAN, IMAGENET_STD)


_CIFAR_DEPTHS = (20, 32, 44, 56, 110)

ARCHITECTURES: dict[str, Architecture] = {
    **{f"resnet{depth}": _cifar(partial(_cifar_resnet, depth)) for depth in _CIFAR_DEPTHS},
    "vit_tiny": _cifar(_vit_tiny),
    "mobilenetv2": _imagenet(MobileNetV2),
    "resnet50": _imagenet(ResNet50),
    "resnet50_v1": _imagenet(partial(ResNet50, stride_first=True)),
}
ALIASES: dict[str, str] = {
    **{f"cifar_resnet{depth}": f"resnet{depth}" for depth in _CIFAR_DEPTHS},
    "mobilenet_v2": "mobilenetv2",
}
"""names under which other repositories' checkpoints know the same networks"""


def register_architecture(
    name: str,
    *,
    num_classes: int = 10,
    input_shape: Shape = (3, 32, 32),
    mean: tuple[float, ...] = CIFAR10_MEAN,
    std: tuple[float, ...] = CIFAR10_STD,
) -> Callable[[Build], Build]:
    """Make a network known under `name` (a decorator of a function or class); a name that another has is an InputError.

    Args:
        name: as MODEL spells it.
        num_classes: as many as it has by default.
        input_shape: (C, H, W) of the images it is made for.
        mean, std: per channel, for pixels in [0, 1]; the network gets normalised images.
    """

    def add(build: Build) -> Build:
        known = ARCHITECTURES.get(ALIASES.get(name, name))
        if known is not None and _place_of(known.build) != _place_of(build):
            raise InputError(f"architecture {name!r} is already registered; choose another name")
        ARCHITECTURES[name] = Architecture(build, num_classes, input_shape, mean, std)
        return build

    return add


def _place_of(build: Callable[..., nn.Module]) -> tuple[str | None, str | None]:
    return getattr(build, "__module__", None), getattr(build, "__qualname__", None)


def canonical_name(name: str) -> str | None:
    """Return our name of an architecture or of one of its aliases; None if it is not one of ours."""
    name = ALIASES.get(name, name)
    return name if name in ARCHITECTURES else None


def build_architecture(name: str, options: Options) -> Classifier:
    """Return the network called `name`, with random weights that are the same every time."""
    architecture = ARCHITECTURES[ALIASES.get(name, name)]
    num_classes = options.num_classes or architecture.num_classes
    with seeded_init():
        module = architecture.build(num_classes, options.input_shape or architecture.input_shape)
    return options.classifier(
        module,
        name=name,
        num_classes=num_classes,
        input_shape=architecture.input_shape,
        mean=architecture.mean,
        std=architecture.std,
    )
