"""Where models come from: every spelling of MODEL on the command line, turned into a checked `Classifier`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.own_files import own_file
from arquant.images.imageset import ImageSet
from arquant.loading.datasets import count_classes, load_data
from arquant.loading.plausibility import warn_of_normalisation, warn_of_outputs
from arquant.models.allowance import memory_errors, within_file
from arquant.models.architectures.registry import ARCHITECTURES, canonical_name
from arquant.models.building import HUBS, build_network
from arquant.models.checkpoints import TORCH_SUFFIXES, Checkpoint, head_classes, load_into, read_checkpoint
from arquant.models.classifier import Classifier
from arquant.models.factory import allow_code
from arquant.models.options import Options, ShapeUnknownError
from arquant.models.photo_fit import check_fit
from arquant.models.tracing.layers import Layers, find_layers
from arquant.models.weights import SCHEMA, WeightsInfo, shipped_file
from arquant.models.weights import shipped_models as shipped_models
from arquant.quantization.artifact import load_artifact
from arquant.quantization.quantized import QuantizedClassifier

log = logging.getLogger("arquant")

_ENGINE_SUFFIXES = (".onnx", ".xml")
_FILE_SUFFIXES = (".safetensors", *TORCH_SUFFIXES, *_ENGINE_SUFFIXES)
MODEL_FILE = "model.safetensors"
"""the model of a run folder"""


def load_model(
    spec: str | Path,
    *,
    arch: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    input_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
    fit: str | None = None,
    weights_required: bool = True,
) -> Classifier:
    """Return the model that `spec` names, in eval mode, checked: finite weights, finite logits of the stated shape.

    Args:
        spec: a shipped model (`resnet20:sigma=0.5`); a name of ours (`resnet20`, `vit_tiny`, ...); a run folder; a
            `.safetensors`, `.pt`, `.onnx` or `.xml` file; `timm:NAME`; `torchvision:NAME`; `package.module:factory`.
        arch: the network of a state-dict file: any spelling that builds one (a name of ours, `timm:NAME`, a factory). A
            quantized model states its own; where that is a factory, it must be repeated here, since its code is run.
        mean, std: normalisation per channel in the units of `bounds`; otherwise the source's own: the file's, then the
            network's. A factory's module is taken to normalise itself.
        bounds: smallest and largest pixel value.
        input_shape: (channels, height, width) of one image; needed for a factory that returns a bare module.
        num_classes: otherwise the source's own.
        fit: how photos become its input (`arquant.models.photo_fit`), if its file does not say; `cover` if nothing does.
        weights_required: False accepts random weights for a bare name; they are the same every time.

    Raises:
        InputError: an unknown spelling, missing weights, options that the model cannot have, NaN weights.
        FileFormatError: a damaged file.
        MismatchError: a file that belongs to another network.
    """
    options = Options(
        mean=None if mean is None else tuple(float(value) for value in mean),
        std=None if std is None else tuple(float(value) for value in std),
        bounds=(float(bounds[0]), float(bounds[1])),
        input_shape=None if input_shape is None else tuple(int(size) for size in input_shape),  # type: ignore[arg-type]
        num_classes=num_classes,
    )
    path = model_path(spec)
    with memory_errors(f"the model {str(spec)!r}"):
        if path is not None:
            classifier = _load_path(path, arch, options)
            classifier.name = str(spec)
        elif arch is not None:
            raise InputError(f"--arch names the network of a state-dict file; {str(spec)!r} is not a file")
        else:
            classifier = _load_name(str(spec), options, weights_required=weights_required)
        classifier.check()
    warn_of_normalisation(str(spec), options.mean, options.std, options.bounds)
    if path is None or path.suffix in TORCH_SUFFIXES:  # another's code; files of ours were made with a warning
        warn_of_outputs(classifier)
    if fit is not None and classifier.fit not in (None, check_fit(fit)):
        raise MismatchError(
            f"{spec} was made with photos fitted by {classifier.fit!r}, not {fit!r}: others would be other images to it, and "
            "those that it has seen would not be recognised; leave out --fit"
        )
    classifier.fit = fit or classifier.fit
    return classifier.eval()


def as_classifier(model: str | Path | Classifier, **options: Any) -> Classifier:
    """`model` itself, checked, if it is a Classifier; else what `load_model` makes of it and of the options."""
    if isinstance(model, (str, Path)):
        return load_model(model, **options)
    if not isinstance(model, Classifier):
        raise InputError(
            f"a model is a name, a file or a Classifier, got a {type(model).__name__}; wrap a module: "
            "arquant.Classifier(module, num_classes=10, input_shape=(3, 32, 32))"
        )
    defaults = {"bounds": (0.0, 1.0)}
    if stated := [
        name for name, value in options.items() if name != "weights_required" and value != defaults.get(name)
    ]:
        raise InputError(
            f"{', '.join(stated)}: model {model.name!r} is a Classifier and carries its own; leave them out"
        )
    model.check()
    return model


def load_with_data(
    model: str | Path | Classifier, data: str | ImageSet | None, role: str, **options: Any
) -> tuple[Classifier, dict[str, Any]]:
    """Load a model that is used with DATA, which tells what nothing else does.

    That is the shape of the images, and the number of classes of a network that is named without weights.

    Args:
        data: None where the command has none.
        role: the role of the data, as in `load_data`.
        options: keyword arguments of `load_model`.

    Returns:
        The model, and the options that load it again without the data, for a run to record.
    """
    if data is not None and options.get("num_classes") is None and _begins_anew(model, options):
        count = data.num_classes if isinstance(data, ImageSet) else count_classes(data, role, _bounds(options))
        own = ARCHITECTURES.get(canonical_name(str(model)) or "")
        if own is None or own.num_classes != count:
            log.info("%s begins with %s classes, those of %s", model, f"{count:,}", getattr(data, "name", data))
        options["num_classes"] = count
    stated = {name: value for name, value in options.items() if value is not None and name != "weights_required"}
    try:
        return as_classifier(model, **options), stated
    except ShapeUnknownError:
        if data is None:
            raise
    images = (
        data if isinstance(data, ImageSet) else load_data(data, role, bounds=_bounds(options), fit=options.get("fit"))
    )
    log.info(
        "%s gets images of %s, those of %s (--input states another shape)", model, _shape(images.shape), images.name
    )
    return as_classifier(model, **{**options, "input_shape": images.shape}), {**stated, "input_shape": images.shape}


def _begins_anew(model: str | Path | Classifier, options: Mapping[str, Any]) -> bool:
    """Tell whether `model` names a network without weights whose head can have any number of classes."""
    if isinstance(model, Classifier) or options.get("weights_required", True) or has_weights(model):
        return False
    return canonical_name(str(model)) is not None or str(model).partition(":")[0] in HUBS


def _bounds(options: Mapping[str, Any]) -> tuple[float, float]:
    low, high = options.get("bounds", (0.0, 1.0))
    return low, high


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def layers_of(model: str | Path | Classifier, **options: Any) -> Layers:
    """Return the layers of a model that can be quantized; of a quantized one those that it had as a float model."""
    classifier = as_classifier(model, weights_required=False, **options)
    return classifier.layers if isinstance(classifier, QuantizedClassifier) else find_layers(classifier)


def model_path(spec: str | Path) -> Path | None:
    """`spec` as a path if it is spelled like one; names of ours come first, so a folder `resnet20` is `./resnet20`."""
    if isinstance(spec, Path):
        return spec
    name, colon, _ = spec.partition(":")
    if canonical_name(name) is not None or (colon and name in HUBS):
        return None
    path = Path(spec)
    return path if path.suffix in _FILE_SUFFIXES or path.exists() else None


def has_weights(spec: str | Path) -> bool:
    """Tell whether `spec` names weights and not a network alone: a file, a run folder, or a shipped model."""
    name, colon, _ = str(spec).partition(":")
    return model_path(spec) is not None or (bool(colon) and canonical_name(name) is not None)


def _load_name(spec: str, options: Options, *, weights_required: bool) -> Classifier:
    name, _, variant = spec.partition(":")
    if canonical_name(name) is None:
        return build_network(spec, options, pretrained=weights_required)
    if variant:
        if (path := shipped_file(name, variant)) is None:
            raise InputError(f"no weights are shipped for {spec!r}; {_shipped()}")
        classifier = _load_path(path, None, options)
        classifier.name = spec
        return classifier
    if weights_required:
        raise InputError(f"{spec!r} is a network without weights; pass a file, FILE.pt --arch {name}; {_shipped()}")
    return build_network(spec, options, pretrained=False)


def _load_path(path: Path, arch: str | None, options: Options) -> Classifier:
    if path.is_dir():
        if not (path / MODEL_FILE).is_file():
            inside = sorted(str(found.parent) for found in path.glob(f"points/*/{MODEL_FILE}"))
            hint = f"name one of {', '.join(inside)}" if inside else "name a run folder or a model file"
            raise InputError(f"the folder {path} has no {MODEL_FILE}; {hint}")
        path = own_file(path, MODEL_FILE)
    if path.suffix in _ENGINE_SUFFIXES:
        return _load_engine_file(path, options)
    checkpoint = read_checkpoint(path)
    schema = checkpoint.metadata.get("schema")
    if schema == SCHEMA:
        return _load_weights(checkpoint, arch, options)
    if schema == "arquant.artifact":
        return options.confirm(load_artifact(path, arch=arch))
    return _load_state_dict(checkpoint, arch, options)


def _load_engine_file(path: Path, options: Options) -> Classifier:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    from arquant.engines.files import load_file_classifier  # here, since OpenVINO is slow to import

    return load_file_classifier(
        path,
        mean=options.mean,
        std=options.std,
        bounds=options.bounds,
        input_shape=options.input_shape,
        num_classes=options.num_classes,
    )


def _load_weights(checkpoint: Checkpoint, arch: str | None, options: Options) -> Classifier:
    """Load a weights file of ours: its header has all that the caller does not state."""
    info = WeightsInfo.parse(checkpoint.metadata, checkpoint.path)
    ours = canonical_name(info.arch) is not None
    if arch is not None and info.arch not in (arch, canonical_name(arch)):
        raise MismatchError(f"{checkpoint.path} holds a {info.arch}, not {arch!r}; leave out --arch")
    allow_code(info.arch, arch, checkpoint.path)
    if options.num_classes not in (None, info.num_classes):
        raise MismatchError(f"{checkpoint.path} has {info.num_classes} classes, not {options.num_classes}")
    rows = [value.shape[:1] for value in checkpoint.tensors.values() if value.numel()]
    if ours and (info.num_classes,) not in rows:
        raise FileFormatError(f"{checkpoint.path}: no tensor has {info.num_classes} rows, one per class; it is damaged")
    _agree(checkpoint.path, info, options)
    options = replace(options, mean=None, std=None, input_shape=info.input_shape, num_classes=info.num_classes)
    with within_file(checkpoint.path, info.num_classes, info.input_shape):
        module = build_network(info.arch, options, pretrained=False).module
    load_into(module, checkpoint, arch=info.arch)
    low, high = info.bounds
    classifier = options.classifier(
        module,
        name=info.arch,
        num_classes=info.num_classes,
        input_shape=info.input_shape,
        mean=[(value - low) / (high - low) for value in info.mean],
        std=[value / (high - low) for value in info.std],
    )
    classifier.arch = info.arch
    classifier.sigma, classifier.made_by, classifier.seen = info.sigma, info.training, info.seen
    classifier.class_names, classifier.fit = info.class_names, info.fit
    return classifier


def _agree(path: Path, info: WeightsInfo, options: Options) -> None:
    """Refuse options that contradict a weights file of ours: its network would be another function."""
    if options.input_shape not in (None, tuple(info.input_shape)):
        raise MismatchError(
            f"{path} takes images of {tuple(info.input_shape)}, not {options.input_shape}; leave out --input"
        )
    (low, high), (other_low, other_high) = info.bounds, options.bounds
    for name, stated, own, shift in (("mean", options.mean, info.mean, 1), ("std", options.std, info.std, 0)):
        if stated is None:
            continue
        in_unit = [(value - shift * other_low) / (other_high - other_low) for value in stated]
        known = [(value - shift * low) / (high - low) for value in own]
        in_unit = in_unit * len(known) if len(in_unit) == 1 else in_unit
        if len(in_unit) != len(known) or not np.allclose(in_unit, known, atol=1e-4):
            raise MismatchError(
                f"{path} has --{name} {','.join(f'{value:g}' for value in own)}, not {','.join(f'{v:g}' for v in stated)}; "
                "leave it out: weights belong to the normalisation that they were trained with"
            )


def _load_state_dict(checkpoint: Checkpoint, arch: str | None, options: Options) -> Classifier:
    """Load a state-dict without a header of ours: `arch` says what it belongs to, or the file itself does."""
    if arch is None:
        arch = checkpoint.arch
        if arch is None or canonical_name(arch) is None:
            names = ", ".join(ARCHITECTURES)
            raise InputError(
                f"{checkpoint.path} is a state-dict; name its network with --arch: {names}, timm:NAME, torchvision:NAME or "
                "package.module:factory"
            )
    classifier = build_network(arch, options, pretrained=False)
    classes = head_classes(classifier.module, checkpoint)
    adaptable = canonical_name(arch) is not None or arch.partition(":")[0] in HUBS
    if adaptable and options.num_classes is None and classes not in (None, classifier.num_classes):
        with within_file(checkpoint.path, classes or 0):
            classifier = build_network(arch, replace(options, num_classes=classes), pretrained=False)
    normalisation = load_into(classifier.module, checkpoint, arch=arch)
    if normalisation is None or options.mean is not None or options.std is not None:
        return classifier
    normalised = Classifier(
        classifier.module,
        num_classes=classifier.num_classes,
        input_shape=classifier.input_shape,
        mean=normalisation.mean,
        std=normalisation.std,
        bounds=options.bounds,
    )
    normalised.arch = arch
    return normalised


def _shipped() -> str:
    shipped = shipped_models()
    return f"shipped with weights: {', '.join(shipped)}" if shipped else "this installation has no shipped weights"
