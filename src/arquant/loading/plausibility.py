"""Warn of settings that are allowed, but hardly ever meant: noise, normalisation and outputs of another kind than usual."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from arquant.models.classifier import Classifier
from arquant.models.outputs import logits_of

log = logging.getLogger("arquant")

_LARGE_SIGMA = 1.0
"""more than from black to white"""


def warn_of_sigma(classifier: Classifier, sigma: float) -> None:
    """Warn if sigma is in other units than those of the pixel range, or not the one that the model was made for."""
    if sigma > _LARGE_SIGMA:
        log.warning(
            "sigma %g is more than from black to white, which is 1.0: if it is in grey levels, state %.4g",
            sigma,
            sigma / 255,
        )
    elif classifier.sigma not in (None, sigma):
        log.warning(
            "%s was made for sigma %g, not %g: votes and radii suffer, down to none; train or fine-tune it for %g, or use %g",
            classifier.name, classifier.sigma, sigma, sigma, classifier.sigma,
        )  # fmt: skip


def warn_of_normalisation(
    name: str, mean: Sequence[float] | None, std: Sequence[float] | None, bounds: tuple[float, float]
) -> None:
    """Warn if one of mean and std was stated without the other, or mean lies outside the pixel values."""
    if (mean is None) != (std is None):
        stated, other = ("std", "mean") if mean is None else ("mean", "std")
        log.warning("%s: %s was stated without %s, which stays as it is; most networks have both", name, stated, other)
    outside = [value for value in mean or () if not bounds[0] <= value <= bounds[1]]
    if outside:
        log.warning(
            "%s: mean %g lies outside the pixel values %g..%g: state it in their units (divided by 255?), or the right bounds",
            name, outside[0], *bounds,
        )  # fmt: skip


def warn_of_outputs(classifier: Classifier) -> None:
    """Warn if a network returns probabilities, or not a tensor but something that logits were taken from."""
    generator, was_training = torch.Generator().manual_seed(0), classifier.training
    images = classifier.from_unit(torch.rand(2, *classifier.input_shape, generator=generator)).to(
        classifier.mean.device
    )
    try:
        with torch.no_grad():
            output = classifier.eval().module((images - classifier.mean) / classifier.std)
    finally:
        classifier.train(was_training)
    if not isinstance(output, Tensor):
        log.warning(
            "%s returns a %s: what is called logits in it, or its first matrix, is taken as them; if that is not right, let it "
            "return logits only", classifier.name, type(output).__name__,
        )  # fmt: skip
    logits = logits_of(output)
    if _are_probabilities(logits):
        log.warning(
            "%s returns probabilities (each row sums to 1): certificates are those of the logits, but losses of training and "
            "fine-tuning are not; let it return what comes before its softmax", classifier.name,
        )  # fmt: skip


def _are_probabilities(logits: Tensor) -> bool:
    sums = logits.sum(dim=1)
    return bool((logits >= 0).all()) and bool(torch.isclose(sums, torch.ones_like(sums), atol=1e-4).all())
