"""State-dict files of other people: read them without running their code, and fit them to a network by name.

Wrappers (`{"state_dict": ...}`), prefixes (`module.`, `1.module.`, `_orig_mod.`) and a normalisation layer in front are
recognised: the checkpoints of smoothing repositories have them all.
"""

import pickle
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from arquant.base.errors import FileFormatError, InputError, MismatchError

TORCH_SUFFIXES = (".pt", ".pth", ".tar", ".ckpt", ".th", ".bin")
LEAST_SHARE = 0.5
"""of a network's parameters, that other weights must give for training to start from them"""
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "net")
_MEANS = ("mean", "means", "mu")
_STDS = ("std", "stds", "sd", "sds", "sigma")


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a file by name, and what the file says about itself."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    """header of a safetensors file"""
    arch: str | None = None
    """the network's name, where the file has one"""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a `.safetensors` or torch file of weights.

    Raises:
        InputError: there is no such file.
        FileFormatError: it is truncated, corrupted, or holds something other than tensors.
    """
    if path.suffix == ".safetensors":
        metadata, found = read_safetensors(path)
        checkpoint = Checkpoint(path, found, metadata, metadata.get("arch"))
    else:
        checkpoint = _read_torch(path)
    if not checkpoint.tensors:
        raise FileFormatError(f"{path} holds no tensors")
    return checkpoint


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return header and tensors of a safetensors file; raise as `read_checkpoint` does."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # a damaged header reaches many layers of the reader, each with its own exceptions
        raise FileFormatError(f"{path} is not an intact safetensors file ({type(error).__name__}: {error})") from error
    return metadata, tensors


def _read_torch(path: Path) -> Checkpoint:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        _check_stored(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"{path} is damaged, or holds Python objects beside tensors, which are never loaded; in a process that "
            "trusts it, save the weights alone: torch.save(model.state_dict(), 'weights.pt')"
        ) from error
    except Exception as error:  # as above
        reason = next(iter(str(error).strip().splitlines()), "it is empty or ends early")
        raise FileFormatError(f"{path} is not an intact torch file ({type(error).__name__}: {reason})") from error
    arch = content.get("arch") if isinstance(content, dict) else None
    content = _unwrap(content)
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} holds a {type(content).__name__}, not a state-dict")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    return Checkpoint(path, tensors, arch=arch if isinstance(arch, str) else None)


def _check_stored(path: Path) -> None:
    """Refuse an archive whose parts are compressed, as torch never writes them: they may be a thousand times as long."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > path.stat().st_size:
                raise ValueError("its parts are compressed")


def _unwrap(content: Any) -> Any:
    for _ in range(len(_WRAPPERS)):
        inner = [content[key] for key in _WRAPPERS if isinstance(content, dict) and isinstance(content.get(key), dict)]
        if not inner:
            break
        content = inner[0]
    return content


@dataclass(frozen=True)
class Normalisation:
    """A normalisation layer found in a file: `(x - mean) / std`, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def load_into(module: nn.Module, checkpoint: Checkpoint, *, arch: str) -> Normalisation | None:
    """Copy the checkpoint's weights into `module`, matching names after the one prefix that fits best.

    Returns:
        the normalisation stored in front of the network, if there is one.

    Raises:
        MismatchError: names or shapes differ; nothing has been copied.
        FileFormatError: a tensor is of a kind that cannot be a float weight.
    """
    expected = module.state_dict()
    found, extra, normalisation = _by_name(checkpoint, expected, arch)
    missing = [name for name in expected if name not in found and not _is_counter(name)]
    if missing or extra:
        parts = [_few(missing, f"of {len(expected)} missing"), _few(extra, "unexpected")]
        raise MismatchError(
            f"{checkpoint.path} does not fit {arch}: {'; '.join(filter(None, parts))}; choose another --arch"
        )
    _check_shapes(found, expected, checkpoint, arch)
    _copy(module, found, checkpoint)
    return normalisation


@dataclass(frozen=True)
class Fit:
    """How a network took the tensors of a file that fit it, by name and shape."""

    fresh: tuple[str, ...]
    """tensors of the network that no tensor of the file fits: they are as they were"""
    unused: tuple[str, ...]
    """tensors of the file that the network does not have"""
    share: float
    """of the network's parameters, what the file gave"""
    normalisation: Normalisation | None
    """stored in front of the file's network, if there is one"""
    overflowed: tuple[str, ...] = ()
    """variances of BatchNorm with values too large for the file's float16: they became its largest number"""


def load_fitting(module: nn.Module, checkpoint: Checkpoint, *, arch: str) -> Fit:
    """Copy the tensors of a checkpoint that fit `module` by name, after the one prefix that fits best, and shape.

    Raises:
        MismatchError: fewer than half of the parameters fit; nothing has been copied.
        FileFormatError: a tensor that fits is of a kind that cannot be a float weight.
    """
    expected = module.state_dict()
    found, extra, normalisation = _by_name(checkpoint, expected, arch)
    fitting = {name: value for name, value in found.items() if value.shape == expected[name].shape}
    fresh = tuple(name for name in expected if name not in fitting and not _is_counter(name))
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    share = sum(size for name, size in sizes.items() if name in fitting) / max(1, sum(sizes.values()))
    if share < LEAST_SHARE:
        raise MismatchError(
            f"{checkpoint.path} does not fit {arch}: {_few(fresh, f'of {len(expected)} missing or of another shape')}, "
            f"{share:.0%} of the parameters fit; half of them is the least to start from"
        )
    overflowed = [name for name, value in fitting.items() if name.endswith("running_var") and _overflowed(value)]
    fitting |= {name: fitting[name].nan_to_num() for name in overflowed}
    _copy(module, fitting, checkpoint)
    return Fit(fresh, tuple(extra), share, normalisation, tuple(overflowed))


def _overflowed(value: Tensor) -> bool:
    return value.dtype == torch.float16 and bool(value.isposinf().any()) and not bool(value.isnan().any())


def _by_name(
    checkpoint: Checkpoint, expected: Mapping[str, Tensor], arch: str
) -> tuple[dict[str, Tensor], dict[str, Tensor], Normalisation | None]:
    """Return the checkpoint's tensors by the names of the network, those that it does not have, and the normalisation."""
    if checkpoint.metadata.get("schema") == "arquant.training":
        checkpoint = replace(checkpoint, tensors=_trained(checkpoint.tensors))
    prefix = _prefix(checkpoint, expected, arch)
    found = {name: checkpoint.tensors[prefix + name] for name in expected if prefix + name in checkpoint.tensors}
    extra = {name: value for name, value in checkpoint.tensors.items() if name.removeprefix(prefix) not in found}
    return found, extra, _take_normalisation(extra)


def _trained(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the network of a training checkpoint: its averaged weights, where it has them, over its latest ones."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}}
    for name, value in tensors.items():
        part, _, own = name.partition(".")
        parts.get(part, {})[own] = value
    return parts["model"] | parts["average"]


def _is_counter(name: str) -> bool:
    """Tell BatchNorm's counters, which files before 2018 lack and no answer depends on."""
    return name.endswith("num_batches_tracked")


def _copy(module: nn.Module, found: Mapping[str, Tensor], file: Checkpoint) -> None:
    expected = module.state_dict()
    module.load_state_dict(
        {name: _as_weight(found.get(name, value), value, name, file) for name, value in expected.items()}
    )


def head_classes(module: nn.Module, checkpoint: Checkpoint) -> int | None:
    """Return the number of classes of the checkpoint's last linear layer, if the name it has in `module` is found."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not layers:
        return None
    name, head = layers[-1]
    rows = [
        value.shape[0]
        for key, value in checkpoint.tensors.items()
        if f".{key}".endswith(f".{name}.weight") and value.ndim == 2 and value.shape[1] == head.in_features
    ]
    return rows[0] if len(rows) == 1 else None


def _prefix(checkpoint: Checkpoint, expected: Mapping[str, Tensor], arch: str) -> str:
    """Return the prefix that makes the most names of the file names of the network."""
    fitting: Counter[str] = Counter()
    for name in checkpoint.tensors:
        parts = name.split(".")
        for cut in range(len(parts)):
            if ".".join(parts[cut:]) in expected:
                fitting["".join(f"{part}." for part in parts[:cut])] += 1
    best = [prefix for prefix, count in fitting.items() if count == max(fitting.values())]
    if not best:
        names = ", ".join(list(checkpoint.tensors)[:3])
        raise MismatchError(f"{checkpoint.path} holds no weight of {arch}; its names are like {names}")
    if len(best) > 1:
        raise MismatchError(
            f"{checkpoint.path} holds several networks ({', '.join(sorted(best)[:3])}); save one of them"
        )
    return best[0]


def _take_normalisation(extra: dict[str, Tensor]) -> Normalisation | None:
    """Remove one mean and one standard deviation per channel from `extra` and return them."""
    candidates = {
        name: value
        for name, value in extra.items()
        if value.is_floating_point() and value.layout == torch.strided and value.numel() in (1, 3)
    }
    means = [name for name in candidates if name.rpartition(".")[2] in _MEANS]
    if len(means) != 1:
        return None
    layer = means[0].rpartition(".")[0]
    stds = [name for name in candidates if name.rpartition(".")[0] == layer and name.rpartition(".")[2] in _STDS]
    mean = tuple(extra.pop(means[0]).flatten().tolist())
    std = tuple(extra.pop(stds[0]).flatten().tolist()) if stds else (1.0,) * len(mean)
    return Normalisation(mean, std)


def _check_shapes(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Checkpoint, arch: str) -> None:
    wrong = [
        f"{name} is {tuple(found[name].shape)}, not {tuple(value.shape)}"
        for name, value in expected.items()
        if name in found and found[name].shape != value.shape
    ]
    if wrong:
        raise MismatchError(
            f"{file.path} does not fit {arch}: {_few(wrong, 'of another shape')}; "
            "state the right --arch, --classes or --input"
        )


def _as_weight(value: Tensor, target: Tensor, name: str, file: Checkpoint) -> Tensor:
    dense = value.layout == torch.strided and not (value.is_quantized or value.is_meta)
    if not dense or value.is_complex() or value.is_floating_point() != target.is_floating_point():
        raise FileFormatError(f"{file.path}: {name} is a tensor of {value.dtype}, expected {target.dtype}")
    try:
        return value.to(target.dtype)
    except RuntimeError as error:
        raise FileFormatError(f"{file.path}: {name} of {value.dtype} cannot be converted ({error})") from error


def _few(names: Iterable[str], what: str) -> str:
    """Return "3 unexpected (a, b, ...)", or nothing for no names."""
    listed = list(names)
    shown = ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
    return f"{len(listed)} {what} ({shown})" if listed else ""
