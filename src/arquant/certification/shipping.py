"""Export a model to files that other software runs, and compare their answers with the model's."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError, RequirementError
from arquant.base.progress import Report, silent
from arquant.certificates.bounds import check_sigma
from arquant.certification.parity import USUAL_SIGMA, Parity, parity, parity_engines, parity_images
from arquant.certification.run import examined_before
from arquant.engines.base import OPENVINO_FLOAT32
from arquant.engines.export_record import record_export
from arquant.engines.exporting import SUFFIXES, Format, export_model
from arquant.engines.files import FileClassifier, load_file_classifier
from arquant.engines.onnx_model import Container
from arquant.loading.models import as_classifier
from arquant.loading.run_images import known_sigma, run_of, seen_by
from arquant.models.classifier import Classifier


def export_compared(
    model: str | Path | Classifier, *, format: Format = "onnx", container: Container = "int8",
    out: str | Path | None = None, sigma: float | None = None, report: Report = silent,
    note: Callable[[str], None] = lambda _: None, **model_options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Write a model as ONNX, QONNX or OpenVINO IR, and compare its answers.

    Args:
        out: the file; by default one in the run folder of the model, or in the current folder.
        sigma: the noise that the model is for; by default what its file or its run says.
        report, note: called with the progress of the comparison, and with what cannot be counted when it begins.
        model_options: keyword arguments of `load_model`.

    Returns:
        The file, its size, `different_votes`: the share of noisy images that the file and the model classify differently
        (None for QONNX, which needs its own tools to run), `parity`: what `check` says of the file too, by the engine that
        ran it, and `openvino_config`: what OpenVINO must be given to compile the function that was compared.

    Raises:
        RequirementError: the file is written, but has too many votes for other classes.
    """
    if container != "int8" and format != "onnx":
        raise InputError(f"--container {container} belongs to --format onnx, not to {format}")
    classifier = as_classifier(model, **model_options)
    if isinstance(classifier, FileClassifier) and format != "openvino":
        raise InputError(f"{model} is a network of OpenVINO's or ONNX's own: only --format openvino can be made of it")
    home = run_of(model)
    folder = home or (Path(model) if not isinstance(model, Classifier) and Path(model).is_dir() else None)
    sigma = known_sigma(home, classifier) if sigma is None else sigma
    if sigma is not None:
        check_sigma(sigma)
    name = "model.qonnx" if format == "qonnx" else "model"
    path = Path(out) if out is not None else (folder or Path()) / f"{name}{SUFFIXES[format]}"
    note(f"writing {path}: seconds, minutes for a large network")
    exported = export_model(
        classifier, path, format=format, container=container, sigma=sigma, more=_origin(model, classifier)
    )
    if folder is not None and path.parent.resolve() == folder.resolve():
        record_export(exported)
    found: dict[str, Parity] = {}
    if format != "qonnx":
        images, written = parity_images(classifier, home), load_file_classifier(exported.path)
        engines = parity_engines(exported.path)
        found = parity(classifier, written, images, sigma or USUAL_SIGMA, engines=engines, report=report)
        for engine, one in found.items():
            if not one.close:
                raise RequirementError(f"{exported.path} is written, but {one.problem(path.name, engine)}")
    return {
        "file": str(exported.path),
        "format": format,
        "size_bytes": exported.size_bytes,
        "different_votes": found["auto"].different if found else None,
        "parity": {engine: {**asdict(one), "text": str(one)} for engine, one in found.items()},
        "fingerprint": exported.facts.fingerprint,
        "openvino_config": {} if format == "qonnx" else OPENVINO_FLOAT32,
    }


def _origin(model: str | Path | Classifier, classifier: Classifier) -> dict[str, Any]:
    """Return what a certificate of the file has to know: how the model was chosen, and on which images it was made."""
    examined = examined_before(model, classifier)
    seen = seen_by(classifier.name if isinstance(model, Classifier) else model, classifier)
    origin: dict[str, Any] = {} if examined is None else {"candidates_examined": examined}
    return {**origin, "seen": seen.to_dict()} if seen.uses else origin
