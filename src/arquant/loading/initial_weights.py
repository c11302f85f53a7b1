"""What a training starts from: a network with random weights, with its own, or with those of another MODEL that fit it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError
from arquant.base.own_files import own_file
from arquant.base.seen import Seen
from arquant.images.imageset import ImageSet
from arquant.loading.models import MODEL_FILE, has_weights, load_model, load_with_data, model_path
from arquant.loading.run_images import seen_by
from arquant.models.checkpoints import Checkpoint, Fit, load_fitting, read_checkpoint
from arquant.models.classifier import Classifier
from arquant.models.factory import runs_code
from arquant.models.weights import SCHEMA
from arquant.quantization.quantized import check_float

_OWN_SCHEMAS = (SCHEMA, "arquant.artifact")
_ENGINE_SUFFIXES = (".onnx", ".xml")


@dataclass(frozen=True)
class Start:
    """The network to train, as it is before the first step."""

    classifier: Classifier
    origin: str | None = None
    """the MODEL whose weights it has; None if they are random"""
    before: Classifier | None = None
    """that MODEL as a network of its own, if it is one"""
    fit: Fit | None = None
    """how the weights of --init fit"""

    @property
    def fresh(self) -> tuple[str, ...]:
        """Names of the tensors that begin anew although training starts from weights."""
        return () if self.fit is None else self.fit.fresh

    @property
    def identity(self) -> str:
        """Return what a checkpoint is known by: the function that training started as, or the structure of a random one."""
        return self.classifier.structure() if self.origin is None else self.classifier.fingerprint()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of the trainings that led here, first to last, each with its final fingerprint."""
        if self.before is None or not self.before.made_by:
            return []
        last = {name: value for name, value in self.before.made_by.items() if name != "history"}
        return [*self.before.made_by.get("history", []), {**last, "fingerprint": self.before.fingerprint()}]

    @property
    def seen(self) -> Seen:
        """The images that its weights are known to have been trained on."""
        return Seen() if self.origin is None else seen_by(self.origin, self.before or self.classifier)

    def remark(self) -> str | None:
        """Say what was kept of --init and what begins anew, if not all was kept."""
        if self.fit is None or not (self.fit.fresh or self.fit.unused or self.fit.overflowed):
            return None
        parts = {
            "begun anew": self.fit.fresh,
            "not used": self.fit.unused,
            "cut off at float16's end": self.fit.overflowed,
        }
        said = [f"{what}: {_listed(names)}" for what, names in parts.items() if names]
        return "; ".join([f"kept from {self.origin}: {self.fit.share:.1%} of the parameters", *said])


def find_start(model: str, data: str | ImageSet, init: str | None, options: Mapping[str, Any]) -> Start:
    """Load the network to train, with its own weights, those of `init` that fit, or random ones that are always the same.

    Tensors of `init` are kept if name and shape fit, the others begin anew. Where neither `mean` nor `std` is stated,
    the normalisation is that of `init`, to which its weights belong; a factory's network keeps its own.

    Raises:
        InputError: both `model` and `init` name weights.
        MismatchError: fewer than half of the parameters fit.
    """
    if init is None:
        classifier = _network(model, data, options)
        return Start(classifier, model, classifier) if has_weights(model) else Start(classifier)
    if has_weights(model):
        raise InputError(
            f"MODEL {model} and --init {init} both name weights: leave one out, or name a network alone as MODEL"
        )
    classifier = _network(model, data, options)
    checkpoint, before = _weights_of(init, model, classifier, options.get("arch"))
    fit = load_fitting(classifier.module, checkpoint, arch=model)
    if own := _normalisation(fit, before, classifier, options, model):
        classifier = _network(model, data, {**options, "num_classes": classifier.num_classes, **own})
        load_fitting(classifier.module, checkpoint, arch=model)
    classifier.check()
    return Start(classifier, init, before, fit)


def _network(model: str, data: str | ImageSet, options: Mapping[str, Any]) -> Classifier:
    classifier, _ = load_with_data(model, data, "calibrate", weights_required=False, **options)
    check_float(classifier)
    return classifier


def _weights_of(init: str, model: str, network: Classifier, arch: str | None) -> tuple[Checkpoint, Classifier | None]:
    """Return the tensors of `init`, and the network they belong to where `init` says which one it is."""
    options: dict[str, Any] = {"bounds": network.bounds}
    path = model_path(init)
    file = path / MODEL_FILE if path is not None and path.is_dir() else path
    if file is None and not has_weights(init):
        options["input_shape"] = network.input_shape  # of a hub or a factory, which build for it
    elif file is not None and file.suffix not in _ENGINE_SUFFIXES and (file == path or file.exists()):
        checkpoint = read_checkpoint(own_file(file.parent, file.name) if file != path else file)
        if checkpoint.metadata.get("schema") not in _OWN_SCHEMAS:
            return checkpoint, None
        if checkpoint.arch == (arch or model):
            options["arch"] = checkpoint.arch  # which the user has named, so that its code may run
    before = load_model(init, **options)
    check_float(before)
    return Checkpoint(Path(init), before.module.state_dict()), before


def _normalisation(
    fit: Fit, before: Classifier | None, classifier: Classifier, options: Mapping[str, Any], model: str
) -> dict[str, list[float]]:
    """Return the mean and std to load the network with instead of its own, in the units of its bounds; empty for its own."""
    if options.get("mean") is not None or options.get("std") is not None or runs_code(model):
        return {}
    if before is None:
        stored = fit.normalisation
        return {} if stored is None else {"mean": list(stored.mean), "std": list(stored.std)}
    (low, high), (own_low, own_high) = before.bounds, classifier.bounds
    scale = (own_high - own_low) / (high - low)
    mean, std = own_low + (before.mean - low) * scale, before.std * scale
    if mean.shape != classifier.mean.shape or (mean.equal(classifier.mean) and std.equal(classifier.std)):
        return {}
    return {"mean": mean.flatten().tolist(), "std": std.flatten().tolist()}


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
