"""Write a classifier to a file that other software runs: ONNX (QDQ), QONNX, or OpenVINO's IR.

Normalisation is inside: the file takes float32 pixels in the classifier's bounds, any number of images at a time. What
the file is (classes, shape, bounds, sigma, fingerprint, policy) is stored in it, and `arquant.engines.files` reads it
back as a Classifier.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import onnx

from arquant.base.errors import InputError
from arquant.engines.facts import KEY, Facts
from arquant.engines.files import FileClassifier
from arquant.engines.onnx_model import Container, onnx_model
from arquant.engines.openvino import logits_model
from arquant.engines.openvino_api import ov
from arquant.models.classifier import Classifier
from arquant.models.image_facts import about_images
from arquant.quantization.quantized import QuantizedClassifier

Format = Literal["onnx", "qonnx", "openvino"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "qonnx": ".onnx", "openvino": ".xml"}


@dataclass(frozen=True)
class Exported:
    """A file that was written; `size_bytes` counts the weights file of an OpenVINO model too."""

    path: Path
    format: Format
    size_bytes: int
    facts: Facts


def export_model(
    classifier: Classifier,
    path: str | Path,
    *,
    format: Format = "onnx",
    container: Container = "int8",
    sigma: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> Exported:
    """Write the classifier; an existing file is replaced in one step.

    Args:
        path: ends in `.onnx`, or in `.xml` for OpenVINO, which puts the weights beside it in a `.bin`.
        format: onnx has quantize/dequantize pairs and standard operators only; qonnx is for FPGA tools.
        container: onnx only: int4 stores weights of up to 4 bits in half the space, int8 is what kernels are fast for.
        sigma: noise the classifier was made for, to be recorded.
        more: further facts to record, JSON values.
    """
    path = Path(path)
    if format not in get_args(Format):
        raise InputError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
    if container not in get_args(Container):
        raise InputError(f"container must be int8 or int4, got {container!r}")
    if path.suffix != SUFFIXES[format]:
        raise InputError(f"a file of format {format} ends in {SUFFIXES[format]}, got {path.name!r}")
    if format == "qonnx" and not isinstance(classifier, QuantizedClassifier):
        raise InputError(f"model {classifier.name!r} is not quantized: there is nothing QONNX could say; use onnx")
    facts = _facts(classifier, sigma, more or {})
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export") as folder:
        draft = Path(folder) / path.name
        if format == "openvino":
            _write_openvino(classifier, draft, facts)
        else:
            _write_onnx(classifier, draft, facts, format, container)
        size = 0
        for part in sorted(Path(folder).iterdir()):  # the .bin before the .xml that needs it
            size += part.stat().st_size
            os.replace(part, path.parent / part.name)
    return Exported(path, format, size, facts)


def _facts(classifier: Classifier, sigma: float | None, more: Mapping[str, Any]) -> Facts:
    if isinstance(classifier, FileClassifier) and classifier.facts is not None:  # the same function in another form
        stated = classifier.facts
        return replace(stated, sigma=stated.sigma if sigma is None else sigma, more={**stated.more, **more})
    policy = classifier.policy.to_dict() if isinstance(classifier, QuantizedClassifier) else None
    return Facts(
        name=classifier.name,
        num_classes=classifier.num_classes,
        input_shape=classifier.input_shape,
        bounds=classifier.bounds,
        fingerprint=classifier.fingerprint(),
        sigma=sigma,
        policy=policy,
        more={**more, **about_images(classifier)},
    )


def _write_onnx(classifier: Classifier, path: Path, facts: Facts, format: Format, container: Container) -> None:
    model = onnx_model(classifier, style="qonnx" if format == "qonnx" else "qdq", container=container)
    onnx.helper.set_model_props(model, {KEY: facts.to_json()})
    onnx.checker.check_model(model, full_check=format == "onnx")
    onnx.save(model, path)


def _write_openvino(classifier: Classifier, path: Path, facts: Facts) -> None:
    model = logits_model(classifier, batch=-1)
    model.set_rt_info(facts.to_json(), [KEY])
    ov.save_model(model, path, compress_to_fp16=False)
