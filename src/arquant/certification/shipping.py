"""Export a model to files that other software runs, and compare their answers with the model's."""

from pathlib import Path
from typing import Any

import numpy as np

from arquant.base.errors import ArquantError, InputError, RequirementError
from arquant.certificates.bounds import check_sigma
from arquant.certification.run import examined_before
from arquant.engines.base import OPENVINO_FLOAT32
from arquant.engines.choice import make_engine
from arquant.engines.export_record import record_export
from arquant.engines.exporting import SUFFIXES, Format, export_model
from arquant.engines.files import FileClassifier, load_file_classifier
from arquant.engines.onnx_model import Container
from arquant.images.imageset import ImageSet
from arquant.loading.models import as_classifier
from arquant.loading.run_images import known_sigma, run_images, run_of, seen_by
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise, NoiseSource, noise_key

PARITY_IMAGES, PARITY_SAMPLES = 8, 64
MOST_DIFFERENT = 0.02
"""share of votes that two engines may answer differently: rounding ties and the order of float sums"""


def export_compared(
    model: str | Path | Classifier, *, format: Format = "onnx", container: Container = "int8",
    out: str | Path | None = None, sigma: float | None = None, **model_options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Write a model as ONNX, QONNX or OpenVINO IR, and compare its answers.

    Args:
        out: the file; by default one in the run folder of the model, or in the current folder.
        sigma: the noise that the model is for; by default what its file or its run says.
        model_options: keyword arguments of `load_model`.

    Returns:
        The file, its size, `different_votes`: the share of noisy images that the file and the model classify differently
        (None for QONNX, which needs its own tools to run), and `openvino_config`: what OpenVINO must be given to compile
        the function that was compared.

    Raises:
        RequirementError: the file is written, but answers too many noisy images differently.
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
    exported = export_model(
        classifier, path, format=format, container=container, sigma=sigma, more=_origin(model, classifier)
    )
    if folder is not None and path.parent.resolve() == folder.resolve():
        record_export(exported)
    different = None
    if format != "qonnx":
        images = parity_images(classifier, home)
        different = parity(classifier, load_file_classifier(exported.path), images, sigma or 0.25)
        if different > MOST_DIFFERENT:
            raise RequirementError(
                f"{exported.path} is written, but answers {different:.1%} of noisy images differently"
            )
    return {
        "file": str(exported.path),
        "format": format,
        "size_bytes": exported.size_bytes,
        "different_votes": different,
        "fingerprint": exported.facts.fingerprint,
        "openvino_config": {} if format == "qonnx" else OPENVINO_FLOAT32,
    }


def _origin(model: str | Path | Classifier, classifier: Classifier) -> dict[str, Any]:
    """Return what a certificate of the file has to know: how the model was chosen, and on which images it was made."""
    examined = examined_before(model, classifier)
    seen = seen_by(classifier.name if isinstance(model, Classifier) else model, classifier)
    origin: dict[str, Any] = {} if examined is None else {"candidates_examined": examined}
    return {**origin, "seen": seen.to_dict()} if seen.uses else origin


def parity(
    first: Classifier, second: Classifier, images: ImageSet, sigma: float, *, seed: int = 0, engine: str = "auto"
) -> float:
    """Return the share of noisy images (noise of the purpose `check`) that two classifiers answer differently.

    Args:
        engine: what runs the second; the first is run by the engine that would certify it.
    """
    source = NoiseSource(Noise("grid", sigma), noise_key(seed, "check"), first.input_shape)
    batches = np.empty((len(images), PARITY_SAMPLES, *first.input_shape), np.int16)
    for row, image in enumerate(images.images):
        source.add(image, int(images.indices[row]), 0, PARITY_SAMPLES, batches[row])
    answers = []
    for classifier, kind in ((first, "auto"), (second, engine)):
        runner = make_engine(classifier, kind=kind, batch=PARITY_SAMPLES, input_kind="levels")
        try:
            answers.append(np.concatenate([runner.labels_of(batch) for batch in batches]))
        finally:
            runner.close()
    return float(np.mean(answers[0] != answers[1]))


def parity_images(classifier: Classifier, run: Path | None) -> ImageSet:
    """Return images to compare two classifiers on: the first ones that the run certifies, else random pixels."""
    try:
        found = run_images(run, "certify", classifier)
        return found.take(np.arange(min(PARITY_IMAGES, len(found))))
    except ArquantError:  # no images of this shape at hand: random ones compare two functions as well
        pixels = np.random.default_rng(0).integers(0, 256, (PARITY_IMAGES, *classifier.input_shape), dtype=np.uint8)
        labels = np.zeros(PARITY_IMAGES, np.int64)
        return ImageSet(pixels, labels, np.arange(PARITY_IMAGES), "random pixels", classifier.num_classes)
