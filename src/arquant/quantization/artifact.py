"""The file of a quantized model: weights packed at their true widths, everything else float32, in safetensors.

Tensors:
- `weights`, uint8: the integers of each layer, packed as `arquant.quantization.packing` says, layer after layer in order of
  execution, each beginning at a byte of its own. So are weights that the network computes or shares between layers. With
  `learn` "kmeans" a layer has the 2^bits values of its weights, one byte each, and then the packed code of every weight;
- `sizes`, float32: the clips (or steps) of the layers' quantizers in the same order, first `a`, then `w`;
- `lows`, int8: the smallest integer of each activation's quantizer in that order, where one is not what its width implies;
- `floats`, float32: biases, normalisation and what is not quantized, in the order of the module's state-dict;
- `state.<key>`: what is neither float32 nor a counter, if the network has any; integers in the smallest type that holds them;
- `policy`, uint8: the header's entry of that name, where it is longer than 8 kB;
- `seen`, uint8, optional: JSON, the images that the model has seen (`base.seen`); beside the weights, no part of their cost;
- `about_images`, uint8, optional: JSON, `class_names` and `fit` (how photos become the input, `models.photo_fit`).

Header (strings; those marked * hold JSON): `schema` "arquant.artifact", `version` "1", `arch` (the MODEL spelling that
builds the network), `name`, `num_classes`*, `input_shape`*, `mean`*, `std`*, `bounds`*, `policy`* (layer -> "w4a3"),
`left`* (layers in float that could be quantized; only if there are some), `clip`, `per_channel`*, `learn`, `provenance`*,
`sha256` (of the other entries and the tensors). No pickle.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.files import envelope, in_one_move, opened
from arquant.base.seen import Seen
from arquant.models.allowance import within_file
from arquant.models.architectures.registry import canonical_name
from arquant.models.building import build_network
from arquant.models.checkpoints import read_safetensors
from arquant.models.classifier import Classifier
from arquant.models.factory import allow_code, names_network
from arquant.models.image_facts import about_images, tell_about_images
from arquant.models.options import Options
from arquant.models.tracing.layers import find_layers
from arquant.quantization.artifact_tensors import fill_, tensors_of
from arquant.quantization.clipping import ClipRule
from arquant.quantization.costs import FLOAT_BITS, WeightBytes
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import QuantizedClassifier
from arquant.quantization.quantizers import check_quantizer

SCHEMA, VERSION = "arquant.artifact", "1"
MOST_HEADER_BYTES = 20_000
MOST_POLICY_BYTES = 8_000
"""in the header; longer ones, of some hundred layers, are a tensor"""
_BESIDE = ("seen", "about_images")
"""tensors that say something of images; no part of the model"""
_FIELDS = ("num_classes", "input_shape", "mean", "std", "bounds", "policy", "per_channel", "provenance")


@dataclass(frozen=True)
class ArtifactSize:
    """Where the bytes of an artifact go."""

    file_bytes: int
    """on disk"""
    weight_bytes: int
    """of the quantized weights at their true widths, as the cost `weight_bytes` counts them"""
    float_bytes: int
    """of the parameters and statistics that stay float32, and of the quantizers' clips"""
    header_bytes: int
    """names, policy and provenance"""
    seen_bytes: int = 0
    """of the records about images: those that the model has seen, names of classes, fit"""

    @property
    def counted(self) -> int:
        """Return what the cost `bytes` bounds: the file without the records about images."""
        return self.file_bytes - self.seen_bytes


def save_artifact(
    path: str | Path, quantized: QuantizedClassifier, provenance: Mapping[str, Any], *, arch: str | None = None
) -> ArtifactSize:
    """Write a quantized model to `path`, in one move; `load_artifact` gives bit-identical logits.

    Args:
        provenance: where the model comes from; anything JSON can hold, within a header of 20 kB. Its `command` is shortened
            where the header would take more than the cost `bytes` reserves for it.
        arch: the MODEL spelling that builds the network (`resnet20`, `timm:NAME`, `package.module:factory`), if the
            classifier does not know its own.
    """
    target = Path(path)
    tensors = tensors_of(quantized)
    metadata = _metadata(quantized, provenance, _checked(arch or architecture_of(quantized)))
    if len(metadata["policy"]) > MOST_POLICY_BYTES:
        tensors["policy"] = _text_tensor(metadata.pop("policy"))
    if quantized.seen is not None and quantized.seen.recorded:
        tensors["seen"] = _text_tensor(json.dumps(quantized.seen.to_dict(), separators=(",", ":")))
    if about := about_images(quantized):
        tensors["about_images"] = _text_tensor(json.dumps(about, separators=(",", ":")))
    beside = sum(tensors[name].numel() for name in _BESIDE if name in tensors)
    with in_one_move(target) as scratch:
        size = _written(scratch, quantized, tensors, metadata, beside)
        allowed = ceil(quantized.file_cost.cost(quantized.policy, quantized.layers))
        if size.counted > allowed and (shorter := _shortened(provenance, size.counted - allowed)) is not None:
            metadata["provenance"] = json.dumps(shorter, separators=(",", ":"))
            size = _written(scratch, quantized, tensors, metadata, beside)
        if size.header_bytes > MOST_HEADER_BYTES:
            raise InputError(
                f"the header of {target} would take {size.header_bytes} bytes, at most {MOST_HEADER_BYTES} are allowed; "
                "shorten the provenance"
            )
    return size


def _written(
    path: Path, quantized: QuantizedClassifier, tensors: dict[str, Tensor], metadata: dict[str, str], beside: int
) -> ArtifactSize:
    metadata["sha256"] = _digest(metadata, tensors)
    save_file(tensors, path, metadata)
    return _measure(path, quantized, seen=beside)


def _shortened(provenance: Mapping[str, Any], excess: int) -> dict[str, Any] | None:
    """Return the provenance with a command that is shorter by `excess` characters or more; None if it has none to cut."""
    command = provenance.get("command")
    if not isinstance(command, str) or not command:
        return None
    return {**provenance, "command": f"{command[: max(0, len(command) - excess - 16)]} ..."}


def counted_bytes(path: Path) -> int:
    """Return the size of a model's file as the cost `bytes` bounds it: without the records about images."""
    _, tensors = read_safetensors(path)
    return path.stat().st_size - sum(tensors[name].numel() for name in _BESIDE if name in tensors)


def load_artifact(path: str | Path, *, arch: str | None = None) -> QuantizedClassifier:
    """Return the model that `save_artifact` wrote, in eval mode, with the same logits bit for bit.

    Its weights are the integers times their scales. It can be fine-tuned, but has no calibration statistics. A weight that
    the network computed or shared between layers is each layer's own from now on.

    Args:
        arch: the network of the file. Needed where it is a `package.module:factory`, since building the network then runs
            that code: a file alone never decides what is run.

    Raises:
        InputError: there is no such file, or its network cannot be built here.
        FileFormatError: the file is truncated, corrupted, of another version or no artifact.
        MismatchError: the network that its `arch` builds is not the one it was saved from.
    """
    source = Path(path)
    metadata, tensors = _read(source)
    try:
        if "policy" in tensors:
            metadata["policy"] = _text(tensors.pop("policy"))
        seen = json.loads(_text(tensors.pop("seen"))) if "seen" in tensors else None
        about = json.loads(_text(tensors.pop("about_images"))) if "about_images" in tensors else {}
        values = {name: json.loads(metadata[name]) for name in _FIELDS}
        clip, learn = _choice(metadata["clip"], ClipRule), metadata["learn"]
        left = json.loads(metadata.get("left", "[]"))
        policy = Policy(values["policy"])
        low, high = (float(bound) for bound in values["bounds"])
        mean, std = ([float(number) for number in values[name]] for name in ("mean", "std"))
        input_shape = tuple(int(side) for side in values["input_shape"])
        num_classes, stated, name = int(values["num_classes"]), _checked(metadata["arch"]), metadata["name"]
        sigma = values["provenance"].get("sigma")
        sigma = None if sigma is None else float(sigma)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise FileFormatError(f"the header of {source} is damaged ({type(error).__name__}: {error})") from error
    _allow(source, stated, arch)
    check_quantizer(learn)
    bounds = (low, high)
    built: dict[str, Any] = {"input_shape": input_shape, "num_classes": num_classes}
    with within_file(source, num_classes, input_shape):
        blank = build_network(stated, Options(bounds=bounds, **built), pretrained=False)
        blank.eval().check()
    classifier = Classifier(blank.module, mean=mean, std=std, bounds=bounds, name=name, made_from=blank, **built)
    found = find_layers(classifier)
    if not isinstance(left, list) or any(name not in found for name in left):
        raise FileFormatError(f"the header of {source} is damaged: {left!r} is no list of layers of {stated}")
    layers = found.leaving(left)
    policy.check(layers)
    quantized = QuantizedClassifier(
        classifier, layers, clip=clip, per_channel=values["per_channel"] is True, learn=learn
    )
    quantized.arch, quantized.sigma, quantized.seen = stated, sigma, Seen.from_dict(seen, str(source))
    tell_about_images(quantized, about, str(source))
    fill_(quantized, policy, tensors, source)
    return quantized


def _allow(path: Path, stated: str, arch: str | None) -> None:
    """Refuse a file of another network than the one asked for, and code that only the file names."""
    if arch is not None and (canonical_name(arch) or arch) != (canonical_name(stated) or stated):
        raise MismatchError(f"{path} holds a {stated}, not {arch!r}; choose the right --arch")
    allow_code(stated, arch, path)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """Return the provenance of an artifact, without building its network; raises as `load_artifact` does."""
    metadata, _ = _read(Path(path))
    try:
        return dict(json.loads(metadata["provenance"]))
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise FileFormatError(f"the header of {path} is damaged ({type(error).__name__}: {error})") from error


def _text_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _text(tensor: Tensor) -> str:
    return tensor.numpy().tobytes().decode()


def _metadata(quantized: QuantizedClassifier, provenance: Mapping[str, Any], arch: str) -> dict[str, str]:
    values = {
        "num_classes": quantized.num_classes,
        "input_shape": quantized.input_shape,
        "mean": quantized.mean.flatten().tolist(),
        "std": quantized.std.flatten().tolist(),
        "bounds": quantized.bounds,
        "policy": quantized.policy.widths(),
        "per_channel": quantized.per_channel,
        "provenance": dict(provenance),
        **({"left": left} if (left := [layer.name for layer in quantized.layers.left]) else {}),
    }
    try:
        encoded = {name: json.dumps(value, separators=(",", ":"), allow_nan=False) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"the provenance of an artifact must be JSON: {error}") from error
    plain = {"arch": arch, "name": quantized.name, "clip": quantized.clip, "learn": quantized.learn}
    return envelope(SCHEMA, VERSION, {**plain, **encoded})


def architecture_of(quantized: QuantizedClassifier) -> str:
    """Return the MODEL spelling that builds the network: the classifier's own, or its name without the shipped variant."""
    name = quantized.arch or quantized.name
    stem = name.partition(":")[0]
    return stem if canonical_name(stem) is not None else name


def _checked(arch: str) -> str:
    """`arch`, if it is the spelling of a network rather than of a file or of weights."""
    if not names_network(arch):
        raise InputError(
            f"{arch!r} does not say which network to build; pass arch: a name of ours, timm:NAME, torchvision:NAME or "
            "package.module:factory"
        )
    return arch


def _choice(value: str, literal: Any) -> Any:
    if value not in get_args(literal):
        raise ValueError(f"{value!r} is not one of {get_args(literal)}")
    return value


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps({k: v for k, v in metadata.items() if k != "sha256"}, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Header and tensors of an intact artifact."""
    metadata, tensors = read_safetensors(path)
    opened(metadata, SCHEMA, VERSION, path)
    if metadata.get("sha256") != _digest(metadata, tensors):
        raise FileFormatError(f"{path} is damaged: its contents do not have the SHA-256 that its header states")
    return metadata, tensors


def _measure(path: Path, quantized: QuantizedClassifier, *, seen: int) -> ArtifactSize:
    with path.open("rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
    weights = WeightBytes()
    pairs = (quantized.quantizer(layer.name) for layer in quantized.layers)
    clips = sum(pair.a.size.numel() + pair.w.size.numel() for pair in pairs)
    return ArtifactSize(
        file_bytes=path.stat().st_size,
        weight_bytes=ceil(weights.cost(quantized.policy, quantized.layers)),
        float_bytes=weights.float_params_bytes(quantized.layers) + clips * FLOAT_BITS // 8,
        header_bytes=header,
        seen_bytes=seen,
    )
