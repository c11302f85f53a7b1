"""Compare the votes of a model and of a file made of it: the same noisy images, seed and tolerance in `export` and `check`."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from arquant.base.errors import ArquantError
from arquant.base.progress import Report, Status, silent
from arquant.engines.base import NO_CLASS, Engine
from arquant.engines.choice import make_engine
from arquant.images.imageset import ImageSet
from arquant.loading.run_images import run_images
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise, NoiseSource, noise_key

Labels = npt.NDArray[np.int64]

PARITY_IMAGES = 8
STAGES = (64, 512)
"""noisy images of each image: more are drawn only where few leave it open whether answers near a tie moved by chance"""
MOST_MOVED = 0.02
"""share of an image's votes, on average, that rounding ties and the order of float sums may move to other classes"""
USUAL_SIGMA = 0.25
"""noise to compare with where nothing says which the model is for"""
_NAMES = {"auto": "the certifying engine", "onnxruntime": "ONNX Runtime"}


@dataclass(frozen=True)
class Parity:
    """How two engines answered the same noisy images.

    Attributes:
        different: share of single answers that differ; near a tie of two classes they may, in both directions.
        moved: share of votes that one class has gained or lost in the end, the class with most of them, averaged over the
            images. A certificate is made of nothing but these counts, so this is what is judged.
        images: what the noisy images were made of.
        votes: noisy images in all.
    """

    different: float
    moved: float
    images: str
    votes: int

    @property
    def close(self) -> bool:
        """Tell whether certificates of the one are, up to rounding, those of the other."""
        return self.moved <= MOST_MOVED

    def problem(self, name: str, engine: str) -> str:
        """Say what is wrong with the file `name` and what to do."""
        return (
            f"{name} has other votes than the model in {engine_name(engine)}: {self}; the model's certificates are not "
            f"those of the file: certify the file itself (arquant certify {name} DATA --engine {engine}), or export another "
            "format"
        )

    def __str__(self) -> str:
        return (
            f"{self.moved:.2%} of votes moved to another class (at most {MOST_MOVED:.0%}), {self.different:.2%} of "
            f"{self.votes:,} noisy images answered differently ({self.images})"
        )


def parity(
    first: Classifier,
    second: Classifier,
    images: ImageSet,
    sigma: float,
    *,
    engines: Sequence[str] = ("auto",),
    report: Report = silent,
) -> dict[str, Parity]:
    """Compare the votes of two classifiers, with noise of the purpose `check` and the seed 0, by engine of the second.

    Args:
        engines: what runs the second, one after the other until one is not close; the first is run, once for all of them, by
            the engine that would certify it.
        report: called with the noisy images that both have answered, of those that the present stage wants.
    """
    source = NoiseSource(Noise("grid", sigma), noise_key(0, "check"), first.input_shape)
    noisy = lru_cache(maxsize=1)(partial(_noisy, images, source))
    found: dict[str, Parity] = {}
    with _opened(first, "auto") as own:
        own_labels = cache(lambda begin: _labels(own, noisy(begin)))
        for engine in engines:
            named = f"compare in {engine_name(engine)}"
            report(Status(named, 0, len(images) * STAGES[0], "noisy images"))
            with _opened(second, engine) as other:
                answers = np.empty((2, len(images), 0), np.int64)
                for begin in range(0, STAGES[-1], STAGES[0]):
                    both = np.stack([own_labels(begin), _labels(other, noisy(begin))])
                    answers = np.concatenate([answers, both], axis=2)
                    drawn = answers.shape[2]
                    wanted = next(stage for stage in STAGES if stage >= drawn)
                    report(Status(named, len(images) * drawn, len(images) * wanted, "noisy images"))
                    found[engine] = _compared(answers, first.num_classes, images.name)
                    if drawn in STAGES and found[engine].close:
                        break
            if not found[engine].close:
                break
    return found


def _labels(engine: Engine, noisy: npt.NDArray[np.int16]) -> Labels:
    return np.stack([engine.labels_of(batch) for batch in noisy])


def _opened(classifier: Classifier, kind: str) -> closing[Engine]:
    return closing(make_engine(classifier, kind=kind, batch=STAGES[0], input_kind="levels"))


def engine_name(engine: str) -> str:
    """Return what an engine that a model was compared in is called."""
    return _NAMES.get(engine, engine)


def parity_engines(file: Path) -> tuple[str, ...]:
    """Return what runs an exported file here: the engine that would certify it and, of ONNX, ONNX Runtime if installed."""
    installed = file.suffix == ".onnx" and find_spec("onnxruntime") is not None
    return ("auto", "onnxruntime") if installed else ("auto",)


def parity_images(classifier: Classifier, run: Path | None) -> ImageSet:
    """Return images to compare two classifiers on: some that the run certifies, of its whole range, else random pixels."""
    try:
        return run_images(run, "certify", classifier).select(f"most:{PARITY_IMAGES}")
    except ArquantError:  # no images of this shape at hand: random ones compare two functions as well
        pixels = np.random.default_rng(0).integers(0, 256, (PARITY_IMAGES, *classifier.input_shape), dtype=np.uint8)
        labels = np.zeros(PARITY_IMAGES, np.int64)
        return ImageSet(pixels, labels, np.arange(PARITY_IMAGES), "random pixels", classifier.num_classes)


def _noisy(images: ImageSet, source: NoiseSource, begin: int) -> npt.NDArray[np.int16]:
    """Return a chunk of noisy images of each image, as (image, sample, channel, row, column) of levels."""
    batches = np.empty((len(images), STAGES[0], *images.shape), np.int16)
    for row, image in enumerate(images.images):
        source.add(image, int(images.indices[row]), begin, STAGES[0], batches[row])
    return batches


def _compared(answers: Labels, classes: int, name: str) -> Parity:
    """Compare labels (engine, image, sample)."""
    counts = [[np.bincount(labels - NO_CLASS, minlength=classes - NO_CLASS) for labels in rows] for rows in answers]
    apart = np.abs(np.subtract(counts[0], counts[1])).max(axis=1)
    different = float(np.mean(answers[0] != answers[1]))
    return Parity(different, float(apart.mean() / answers.shape[2]), name, answers[0].size)
