"""An exported model file, `.onnx` or OpenVINO's `.xml`, is a Classifier: it can be certified as it is.

Files that arquant wrote say what they are (`Facts`). Of any other file the number of classes and the image shape are
read off its graph where it states them; normalisation and bounds are the caller's to give.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from arquant.base.errors import FileFormatError, MismatchError
from arquant.base.seen import Seen
from arquant.engines.base import OPENVINO_FLOAT32
from arquant.engines.facts import KEY, Facts
from arquant.engines.graph_bounds import check_bounds
from arquant.engines.onnx_model import QONNX_DOMAIN
from arquant.engines.openvino_api import ops, ov
from arquant.engines.weight_files import read_onnx, weight_files
from arquant.models.allowance import check_images
from arquant.models.classifier import Classifier
from arquant.models.image_facts import tell_about_images
from arquant.models.options import ShapeUnknownError
from arquant.quantization.policy import Policy


class FileClassifier(Classifier):
    """The function that an exported file computes; `facts` is None for a file that arquant did not write."""

    def __init__(self, path: Path, facts: Facts | None, **options: Any) -> None:
        super().__init__(_FileModule(path), **options)
        self.path = path
        self.facts = facts
        self.sigma = None if facts is None else facts.sigma
        self.seen = None if facts is None else Seen.from_dict(facts.more.get("seen"), str(path))
        tell_about_images(self, {} if facts is None else facts.more, str(path))

    @property
    def policy(self) -> Policy | None:
        """The widths that the file states."""
        return None if self.facts is None or self.facts.policy is None else Policy.from_dict(self.facts.policy)

    def fingerprint(self) -> str:
        """SHA-256 over the file, the normalisation and the bounds."""
        facts = (self.num_classes, self.input_shape, self.bounds, self.mean.tolist(), self.std.tolist())
        return hashlib.sha256(repr(facts).encode() + file_digest(self.path).encode()).hexdigest()

    def openvino_model(self) -> ov.Model:
        """From pixels in the bounds to logits; the batch size is as the file has it."""
        model = read_file(self.path)
        mean, std = self.mean.cpu().numpy(), self.std.cpu().numpy()
        if (mean != 0).any() or (std != 1).any():
            (source,) = model.get_parameters()
            pixels = ops.parameter(source.get_partial_shape(), ov.Type.f32)
            normalised = ops.divide(ops.subtract(pixels, mean[None]), std[None])
            for target in source.output(0).get_target_inputs():
                target.replace_source_output(normalised.output(0))
            model = ov.Model(model.get_results(), [pixels], "normalised")
        return model


class _FileModule(nn.Module):
    """Runs the file with OpenVINO, for whoever calls the classifier as a module; engines compile it themselves."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._compiled: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    def forward(self, x: Tensor) -> Tensor:
        if self._compiled is None:
            model = read_file(self._path)
            model.reshape([-1, *x.shape[1:]])
            self._compiled = ov.Core().compile_model(model, "CPU", OPENVINO_FLOAT32)
        logits = self._compiled(x.detach().float().cpu().numpy())[0]
        return torch.from_numpy(np.array(logits)).to(x.device)

    def extra_repr(self) -> str:
        return self._path.name


def load_file_classifier(
    path: str | Path,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    input_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
) -> FileClassifier:
    """Return the classifier in an `.onnx` or `.xml` file. What a file of ours states about itself cannot be overridden.

    Raises:
        FileFormatError: the file is damaged, or is not a network from one image batch to logits.
        InputError: the file leaves its image shape open and `input_shape` is not given.
        MismatchError: an option contradicts the file.
    """
    path = Path(path)
    model = read_file(path)
    facts = facts_of(model, path)
    shape, classes = _stated(model, path)
    if facts is not None:
        _refuse(path, mean=mean, std=std)
        bounds = facts.bounds if bounds == (0.0, 1.0) else bounds
        _confirm(path, "bounds", bounds, facts.bounds)
        shape, classes = facts.input_shape, facts.num_classes
    wanted = None if input_shape is None else tuple(int(size) for size in input_shape)
    _confirm(path, "input shape", wanted, shape)
    _confirm(path, "number of classes", num_classes, classes)
    shape, classes = shape or wanted, classes or num_classes  # type: ignore[assignment]
    if shape is None or classes is None:
        raise ShapeUnknownError(f"{path} leaves its shapes open; state them with --input C,H,W and --classes N")
    if wanted is None:
        check_images(path, shape)
    return FileClassifier(
        path,
        facts,
        num_classes=classes,
        input_shape=shape,
        mean=mean,
        std=std,
        bounds=bounds,
        name=facts.name if facts else path.name,
    )


def read_file(path: Path) -> ov.Model:
    """Return the graph in the file, which must have one float input of rank 4 and one output of rank 2.

    4-bit constants become 8-bit ones: integer kernels take them, and OpenVINO 2026.4 computes wrong linear layers from
    4-bit weights where the input is quantized too.
    """
    weight_files(path)  # OpenVINO opens whatever the model names
    try:
        model = ov.Core().read_model(path)
    except RuntimeError as error:
        if _is_qonnx(path):
            raise FileFormatError(
                f"{path} is a QONNX file, for FPGA tools: neither OpenVINO nor ONNX Runtime runs it; export the model with "
                "--format onnx as well"
            ) from error
        raise FileFormatError(f"{path} cannot be read as a model: {str(error).strip().splitlines()[-1]}") from error
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise FileFormatError(
            f"{path} has {len(model.inputs)} inputs and {len(model.outputs)} outputs; a classifier has one of each"
        )
    source, sink = model.inputs[0], model.outputs[0]
    ranks = [port.get_partial_shape().rank for port in (source, sink)]
    if ranks != [4, 2] or source.get_element_type() != ov.Type.f32:
        raise FileFormatError(
            f"{path} maps {source.get_element_type().to_string()}{source.get_partial_shape()} to "
            f"{sink.get_partial_shape()}; a classifier maps float32 (N, C, H, W) to (N, classes)"
        )
    check_bounds(model, path)
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() in (ov.Type.i4, ov.Type.u4):
            _widen(node)
    model.validate_nodes_and_infer_types()
    return model


def _is_qonnx(path: Path) -> bool:
    model = read_onnx(path)
    return model is not None and QONNX_DOMAIN in {entry.domain for entry in model.opset_import}


def _widen(constant: ov.Node) -> None:
    """Replace a 4-bit constant by an 8-bit one with the same values; OpenVINO hands out two values per byte."""
    signed = constant.get_element_type() == ov.Type.i4
    packed = np.asarray(constant.get_data()).reshape(-1).view(np.uint8)
    values = np.stack((packed & 15, packed >> 4), 1).reshape(-1)[: int(np.prod(constant.get_output_shape(0)))]
    widened = (values.astype(np.int8) ^ 8) - 8 if signed else values
    new = ops.constant(widened.reshape(constant.get_output_shape(0)).astype(np.int8 if signed else np.uint8))
    for target in list(constant.output(0).get_target_inputs()):
        target.replace_source_output(new.output(0))


def facts_of(model: ov.Model, path: Path) -> Facts | None:
    """Return what the file says of itself, if arquant wrote it."""
    for place in ([KEY], ["framework", KEY]):
        if model.has_rt_info(place):
            return Facts.parse(model.get_rt_info(place).astype(str), str(path))
    return None


def file_digest(path: Path) -> str:
    """SHA-256 of the file and of those that hold its weights; raises as `weight_files` does."""
    digest = hashlib.sha256()
    for part in (path, *weight_files(path)):
        with part.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _stated(model: ov.Model, path: Path) -> tuple[tuple[int, int, int] | None, int | None]:
    """Image shape and number of classes, where the graph fixes them."""
    sizes = list(model.inputs[0].get_partial_shape())[1:]
    classes = model.outputs[0].get_partial_shape()[1]
    dynamic = any(size.is_dynamic for size in sizes)
    shape = None if dynamic else (sizes[0].get_length(), sizes[1].get_length(), sizes[2].get_length())
    return shape, None if classes.is_dynamic else classes.get_length()


def _confirm(path: Path, what: str, given: object, stated: object) -> None:
    if given is not None and stated is not None and given != stated:
        raise MismatchError(f"{path} has {what} {stated}, not {given}; leave the option out")


def _refuse(path: Path, **options: object) -> None:
    given: Mapping[str, object] = {name: value for name, value in options.items() if value is not None}
    if given:
        raise MismatchError(f"{path} normalises its input itself; leave out --{' --'.join(given)}")
