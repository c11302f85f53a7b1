"""Find what a command certifies or classifies: a model, images that it has not seen, and the noise that it is for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arquant.images.imageset import ImageSet
from arquant.loading.models import load_with_data
from arquant.loading.run_images import run_images, run_noise, run_of, run_sigma
from arquant.models.classifier import Classifier


@dataclass(frozen=True, eq=False)
class Subject:
    """A classifier and images, with the noise of the smoothed classifier."""

    classifier: Classifier
    images: ImageSet
    sigma: float
    noise: str
    run: Path | None
    """the run folder that the model is from"""


def find_subject(
    model: str | Path | Classifier, data: str | ImageSet | None, *, sigma: float | None, noise: str | None,
    images: str | None, **model_options: Any,
) -> Subject:  # fmt: skip
    """Load a model and its images.

    Args:
        data: by default the images that the run of the model kept for certification, or `sample`.
        sigma, noise: by default the run's; the noise of a model without a run is `grid`.
        images: a selection, such as `first:500`.
        model_options: keyword arguments of `load_model`. Where nothing tells the shape of the images, the data do.
    """
    run = run_of(model)
    shown = "sample" if data is None and run is None else data
    classifier, _ = load_with_data(model, shown, "certify", **model_options)
    sigma, noise = run_sigma(run, sigma, classifier), run_noise(run, noise)
    return Subject(classifier, run_images(run, "certify", classifier, data=data, images=images), sigma, noise, run)
