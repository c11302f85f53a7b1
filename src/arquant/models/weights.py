"""Our own file of float weights: a state-dict in safetensors whose header names the network and how it was trained.

Header (all values are strings, those marked * hold JSON): `schema` "arquant.weights", `version` "1", `arch` (the MODEL
spelling that builds the network: a name of ours, `timm:NAME`, `package.module:factory`, ...), `num_classes`*,
`input_shape`*, `mean`*, `std`*, `bounds`*, `sigma`* (standard deviation of the training noise, or null), `training`*
(the record of the run), and, optional, `seen`* (what images the network was trained on, as `arquant.base.seen` writes it),
`class_names`* (one per class) and `fit` (how photos became its input, `arquant.models.photo_fit`).
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from arquant.base.errors import FileFormatError, InputError
from arquant.base.files import envelope, in_one_move, opened
from arquant.base.seen import Seen, Use
from arquant.models.architectures.registry import canonical_name
from arquant.models.classifier import Classifier
from arquant.models.factory import names_network
from arquant.models.photo_fit import check_fit

SCHEMA = "arquant.weights"
VERSION = "1"
FOLDER = Path(__file__).with_name("shipped")
_CIFAR10_TRAINING = "973ef2abb5897efc795681a4d79a6f5f642fa2bcb1a828f7476017c89db53a57"
"""`data` of a training on all training images of CIFAR-10"""
_FILE_NAME = re.compile(r"(?P<arch>\w+)-sigma(?P<sigma>[\d.]+)\.safetensors")


@dataclass(frozen=True)
class WeightsInfo:
    """The header of a weights file."""

    arch: str
    num_classes: int
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    """per channel, in the units of `bounds`"""
    std: tuple[float, ...]
    bounds: tuple[float, float] = (0.0, 1.0)
    sigma: float | None = None
    """standard deviation of the training noise in units of the pixel range; None without noise"""
    training: Mapping[str, Any] = field(default_factory=dict)
    seen: Seen = field(default_factory=lambda: Seen(recorded=False))
    class_names: tuple[str, ...] = ()
    fit: str | None = None

    def metadata(self) -> dict[str, str]:
        """Return the fields as the header stores them."""
        values = {"num_classes": self.num_classes, "input_shape": self.input_shape, "mean": self.mean, "std": self.std}
        values |= {"bounds": self.bounds, "sigma": self.sigma, "training": dict(self.training)}
        if self.seen.recorded:
            values["seen"] = self.seen.to_dict()
        if self.class_names:
            values["class_names"] = self.class_names
        encoded = {name: json.dumps(value, sort_keys=True) for name, value in values.items()}
        fit = {} if self.fit is None else {"fit": self.fit}
        return envelope(SCHEMA, VERSION, {"arch": self.arch, **encoded, **fit})

    @classmethod
    def parse(cls, metadata: Mapping[str, str], path: Path) -> "WeightsInfo":
        """Read a header; FileFormatError if a field is missing, malformed or of another version."""
        opened(metadata, SCHEMA, VERSION, path)
        try:
            optional = ("seen", "class_names", "fit")
            required = [name for name in cls.__dataclass_fields__ if name not in ("arch", *optional)]
            value = {name: json.loads(metadata[name]) for name in required}
            channels, height, width = (int(size) for size in value["input_shape"])
            low, high = (float(bound) for bound in value["bounds"])
            info = cls(
                arch=metadata["arch"],
                num_classes=int(value["num_classes"]),
                input_shape=(channels, height, width),
                mean=tuple(float(number) for number in value["mean"]),
                std=tuple(float(number) for number in value["std"]),
                bounds=(low, high),
                sigma=None if value["sigma"] is None else float(value["sigma"]),
                training=dict(value["training"]),
                seen=_seen(metadata, dict(value["training"]), path),
                class_names=tuple(str(name) for name in json.loads(metadata.get("class_names", "[]"))),
                fit=check_fit(metadata["fit"]) if "fit" in metadata else None,
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FileFormatError(f"the header of {path} is damaged ({type(error).__name__}: {error})") from error
        if len(info.class_names) not in (0, info.num_classes):
            raise FileFormatError(f"the header of {path} is damaged ({len(info.class_names)} class names)")
        if not (low < high and math.isfinite(high - low)):
            raise FileFormatError(f"the header of {path} is damaged (bounds {info.bounds})")
        if not names_network(info.arch):
            raise FileFormatError(f"{path} names the network {info.arch!r}, which this arquant does not know")
        return info


def save_weights(
    path: Path,
    classifier: Classifier,
    *,
    arch: str,
    sigma: float | None = None,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write the float32 weights of `classifier` to `path` in one move, so that `load_model(path)` needs nothing else.

    But for two things that the user states: pixel bounds other than 0..1, and the factory of a network that is not ours.

    Args:
        arch: the MODEL spelling that builds the network: a name of ours, `timm:NAME`, `package.module:factory`, ...
        sigma: standard deviation of the training noise in units of the pixel range.
        training: the record of the run; anything JSON can hold.
    """
    if not names_network(arch):
        raise InputError(
            f"{arch!r} does not say which network to build; pass arch: a name of ours, timm:NAME, torchvision:NAME or "
            "package.module:factory"
        )
    info = WeightsInfo(
        arch=canonical_name(arch) or arch,
        num_classes=classifier.num_classes,
        input_shape=classifier.input_shape,
        mean=tuple(_decimal(value) for value in classifier.mean.flatten().tolist()),
        std=tuple(_decimal(value) for value in classifier.std.flatten().tolist()),
        bounds=classifier.bounds,
        sigma=sigma,
        training=training or {},
        seen=classifier.seen or Seen(recorded=False),
        class_names=classifier.class_names,
        fit=classifier.fit,
    )
    tensors = {
        key: (value.float() if value.is_floating_point() else value).detach().cpu().contiguous().clone()
        for key, value in classifier.module.state_dict().items()
    }
    with in_one_move(path) as scratch:
        save_file(tensors, scratch, info.metadata())


def _seen(metadata: Mapping[str, str], training: Mapping[str, Any], path: Path) -> Seen:
    """Return the file's record of seen images; for a file of an earlier version, the one its training implies."""
    if "seen" in metadata:
        return Seen.from_dict(json.loads(metadata["seen"]), str(path))
    runs = [*training.get("history", []), training]
    if all(isinstance(run, dict) and run.get("data") == _CIFAR10_TRAINING for run in runs):
        return Seen({"train": Use(frozenset([("cifar10", "calibrate")]))})
    return Seen(recorded=False)


def shipped_models() -> tuple[str, ...]:
    """Return the spellings of the models whose weights come with the package, such as "resnet20:sigma=0.5"."""
    return tuple(_shipped_files())


def shipped_file(arch: str, variant: str) -> Path | None:
    """Return the file of shipped model `arch:variant`; sigma is compared as a number: 0.5, .5 and 0.50 are the same."""
    key, _, text = variant.partition("=")
    try:
        wanted = float(text)
    except ValueError:
        return None
    for name, path in _shipped_files().items():
        shipped_arch, _, shipped_variant = name.partition(":")
        if (
            key == "sigma"
            and shipped_arch == canonical_name(arch)
            and float(shipped_variant[len("sigma=") :]) == wanted
        ):
            return path
    return None


def _shipped_files() -> dict[str, Path]:
    found = [(match, path) for path in FOLDER.glob("*.safetensors") if (match := _FILE_NAME.fullmatch(path.name))]
    found.sort(key=lambda item: (item[0]["arch"], float(item[0]["sigma"])))
    return {f"{match['arch']}:sigma={match['sigma']}": path for match, path in found}


def _decimal(value: float) -> float:
    """Return the shortest decimal number that is this float32, so that 0.4914 is stored as 0.4914."""
    return next(short for digits in range(1, 18) if torch.tensor(short := float(f"{value:.{digits}g}")).item() == value)
