"""Find what a command certifies or classifies: a model, images that it has not seen, and the noise that it is for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError, MismatchError
from arquant.images.folder import files_of
from arquant.images.imageset import ImageSet
from arquant.loading.models import load_with_data
from arquant.loading.pictures import is_pictures, load_pictures
from arquant.loading.plausibility import warn_of_sigma
from arquant.loading.run_images import run_images, run_noise, run_of, run_sigma
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise


@dataclass(frozen=True, eq=False)
class Subject:
    """A classifier and images, with the noise of the smoothed classifier."""

    classifier: Classifier
    images: ImageSet
    sigma: float
    noise: str
    run: Path | None
    """the run folder that the model is from"""
    names: tuple[str, ...] = ()
    """what to call each image: its file; empty if they have no names"""
    labelled: bool = True
    """False if nobody said what the images show; their labels mean nothing"""


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
    warn_of_sigma(classifier, Noise(noise, sigma).sigma)
    try:
        found = run_images(run, "certify", classifier, data=data, images=images)
    except (InputError, MismatchError) as error:
        if data is not None:
            raise
        whose = "it is sample then" if run is None else f"it is what {run} says then, or sample"
        raise type(error)(f"DATA was not given ({whose}): {error}") from error
    return Subject(classifier, found, sigma, noise, run)


def find_pictures(
    model: str | Path | Classifier, words: Sequence[str], *, sigma: float | None, noise: str | None, images: str | None,
    **model_options: Any,
) -> Subject:  # fmt: skip
    """Load a model and pictures to classify; the arguments are those of `find_subject`.

    Args:
        words: one DATA, or files and folders of pictures and npz archives, which need no labels.
    """
    if len(words) == 1 and not is_pictures(words[0]):
        found = find_subject(model, words[0], sigma=sigma, noise=noise, images=images, **model_options)
        return replace(found, names=files_of(found.images))
    run = run_of(model)
    classifier, _ = load_with_data(model, None, "certify", **model_options)
    everything, names = load_pictures(words, classifier)
    chosen = everything.select(images)
    sigma, noise = run_sigma(run, sigma, classifier), run_noise(run, noise)
    warn_of_sigma(classifier, Noise(noise, sigma).sigma)
    return Subject(
        classifier, chosen, sigma, noise, run,
        names=tuple(names[index] for index in chosen.indices), labelled=False,
    )  # fmt: skip
