"""Does an engine compute the function that it was made for? A short test before any of its votes count."""

import numpy as np
import numpy.typing as npt
import torch

from arquant.base.errors import InputError
from arquant.engines.base import BUFFER_TYPES, GraphEngine
from arquant.engines.torch import LabelsFromPixels
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import QuantizedClassifier

_TEST_IMAGES, _TIES = 16, 1
_CLEAR = 0.1
"""lead of the best class, as a share of the range of the logits, that no rounding takes away"""
_FAR = 0.1
"""error of logits, as a share of the largest, that no rounding makes"""
UNFAITHFUL = (
    "it cannot follow a network that decides by its pixels or at random, or compiled it wrongly; use --engine torch"
)
WRONGLY_COMPILED = "it compiled the file wrongly for several threads; use --threads 1 or --engine onnxruntime"


def traced_faithfully(engine: GraphEngine, classifier: Classifier, kind: str) -> GraphEngine:
    """Return the engine, unless its answers to test images differ from PyTorch's, where those are clear, or its logits by much.

    Tracing follows one path through a network: what the network decides by its pixels, or at random, becomes a constant.
    Such a graph is another function, and its certificates would not be the network's. A quantized network may differ in one
    answer: where a value lies half-way between two integers, the last digit decides. Logits tell of kernels that compute other
    numbers also where all test images have one answer: they may differ by a tenth of the largest, at the median of the images.

    A file has no PyTorch network. There OpenVINO with several threads is compared with one thread: where a strided 1x1
    convolution is quantized as other tools do it, OpenVINO 2026.4 now and then compiles it wrongly, with several streams only.
    """
    from_file = is_file(classifier)
    if from_file and (kind != "openvino" or engine.workers == 1):
        return engine
    images = _test_images(engine)
    try:
        found = _answers(engine, images)
    except Exception as error:  # the engines' own, without a common base
        engine.close()
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise InputError(f"{kind} cannot run model {classifier.name!r}: {reason}; use --engine torch") from error
    logits = _alone(engine, classifier, images) if from_file else _by_torch(engine, classifier, images)
    quantized = isinstance(classifier, QuantizedClassifier) or is_quantized_file(classifier)
    ties = _TIES if quantized else 0
    wrong = unlikeness(found, _logits_by(engine, images), logits, name=classifier.name, ties=ties)
    if wrong:
        engine.close()
        raise InputError(f"{kind} {wrong}: {WRONGLY_COMPILED if from_file else UNFAITHFUL}")
    return engine


def unlikeness(labels: npt.NDArray[np.int64], found: np.ndarray, logits: np.ndarray, *, name: str, ties: int) -> str:
    """Say how labels (times asked, images) and logits that were found differ from a network's own; empty if they do not.

    Args:
        logits: the network's, (images, classes).
        name: of the network.
        ties: how many clear answers may differ.
    """
    second, best = np.sort(logits, axis=1)[:, -2:].T
    clear = best - second > _CLEAR * np.ptp(logits, axis=1)
    different = int((labels != logits.argmax(1))[:, clear].sum(axis=1).max())
    if different > ties:
        return f"answers otherwise than model {name!r} for {different} of {len(logits)} test images"
    typical = _typical_error(found, logits)
    if typical > _FAR:
        return f"computes other logits than model {name!r}, by {typical:.0%} of the largest for half of the images"
    return ""


def _typical_error(found: np.ndarray, logits: np.ndarray) -> float:
    """Return the largest error of an image's logits as a share of their largest size: the median over the images."""
    largest, errors = np.abs(logits).max(axis=1), np.abs(found - logits).max(axis=1)
    return float(np.median(np.divide(errors, largest, out=np.zeros_like(errors), where=largest > 0)))


def _test_images(engine: GraphEngine) -> np.ndarray:
    """Noisy images from black to white, as the engine's buffers hold them."""
    brightness = np.linspace(0, 1, _TEST_IMAGES)[:, None, None, None]
    unit = brightness + np.random.default_rng(0).normal(0, 0.25, (_TEST_IMAGES, *engine.input_shape))
    values = np.rint(255 * unit) if engine.input_kind == "levels" else unit
    return values.astype(BUFFER_TYPES[engine.input_kind])


def _batches(images: np.ndarray, size: int) -> list[np.ndarray]:
    return [images[first : first + size] for first in range(0, len(images), size)]


def _answers(engine: GraphEngine, images: np.ndarray) -> npt.NDArray[np.int64]:
    """Return the engine's labels of the images, as often as it has workers, so that each of them may answer."""
    parts = _batches(images, engine.batch)
    answers: list[npt.NDArray[np.int64]] = []

    def collect() -> None:
        labels = engine.collect()
        if labels.shape != (engine.batch,):
            raise ValueError(f"it gives {labels.size} answers for {engine.batch} images")
        answers.append(labels[: len(parts[len(answers) % len(parts)])])

    try:
        for part in parts * engine.workers:
            if engine.in_flight == engine.depth:
                collect()
            buffer = engine.buffer()
            buffer[: len(part)] = part
            engine.submit(buffer)
        while engine.in_flight:
            collect()
    finally:
        engine.drop()
    return np.concatenate(answers).reshape(engine.workers, len(images))


def _by_torch(engine: GraphEngine, classifier: Classifier, images: np.ndarray) -> np.ndarray:
    network, was_training = LabelsFromPixels(classifier, engine.input_kind), classifier.training
    with torch.no_grad():
        logits = network.eval().logits(torch.from_numpy(images).to(classifier.mean.device)).cpu()
    classifier.train(was_training)
    return logits.numpy()


def _alone(engine: GraphEngine, classifier: Classifier, images: np.ndarray) -> np.ndarray:
    """Return the logits of a file in OpenVINO with one thread."""
    from arquant.engines.openvino import OpenVinoEngine

    alone = OpenVinoEngine(classifier, batch=engine.batch, input_kind=engine.input_kind, threads=1)
    try:
        return _logits_by(alone, images)
    finally:
        alone.close()


def _logits_by(engine: GraphEngine, images: np.ndarray) -> np.ndarray:
    buffer, logits = engine.buffer(), []
    for part in _batches(images, engine.batch):
        buffer[: len(part)] = part
        logits.append(engine.logits_of(buffer)[: len(part)])
    engine.release(buffer)
    return np.concatenate(logits)


def is_file(classifier: Classifier) -> bool:
    """Tell whether this is an exported file."""
    from arquant.engines.files import FileClassifier

    return isinstance(classifier, FileClassifier)


def is_quantized_file(classifier: Classifier) -> bool:
    """Tell whether this is an exported file that states its widths."""
    from arquant.engines.files import FileClassifier

    return isinstance(classifier, FileClassifier) and classifier.policy is not None
