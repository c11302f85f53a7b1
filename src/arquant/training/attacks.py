"""Attacks on classifiers: images moved, within a distance, to where the network is wrong. FGSM and PGD, in l2 and l-infinity.

An attack shows what can go wrong; that it fails proves nothing. Against a smoothed classifier it follows the gradient of the
mean loss over noisy copies, against a plain network that of the image itself. Distances are in units of the pixel range.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from arquant.base.errors import InputError
from arquant.models.classifier import Classifier

Norm = Literal["l2", "linf"]
_TINY = 1e-30
_MOST_COPIES = 512
"""noisy images in memory at once"""


@dataclass(frozen=True)
class Attack:
    """How far images are moved, and how."""

    epsilon: float
    """largest distance"""
    norm: Norm = "l2"
    steps: int = 20
    path: float = 2.5
    """length of all steps together, as a multiple of epsilon"""
    random_start: bool = False
    """begin at a random place within the distance, not at the image"""
    sigma: float = 0.0
    """standard deviation of the Gaussian noise under which the network is attacked; 0 attacks the plain network"""
    draws: int = 1
    """noisy copies of an image per step"""
    grid: bool = False
    """the network rounds noisy images to the 255th part; gradients pass that unchanged"""
    clip: bool = True
    """stay between black and white"""

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError(f"epsilon must be positive, got {self.epsilon}")
        if self.steps < 1 or self.draws < 1 or self.sigma < 0 or self.path <= 0:
            raise InputError(f"an attack needs steps and draws of at least 1, sigma >= 0 and path > 0, got {self}")


def fgsm(epsilon: float, norm: Norm = "linf") -> Attack:
    """Return the one-step attack: the whole distance along the gradient (its sign in l-infinity). Goodfellow et al., 2015."""
    return Attack(epsilon, norm, steps=1, path=1.0)


def pgd(epsilon: float, norm: Norm = "linf", steps: int = 20, *, random_start: bool = True) -> Attack:
    """Return projected gradient descent in `steps` steps. Madry et al., 2018."""
    return Attack(epsilon, norm, steps=steps, random_start=random_start)


def moved(
    classifier: Classifier, images: Tensor, target: Tensor, attack: Attack, *, generator: torch.Generator | None = None
) -> Tensor:
    """Return the images, each moved by at most epsilon to where the loss of its target is large.

    The classifier computes in eval mode, and is left as it was; its parameters get no gradients.

    Args:
        images: (N, C, H, W) in units of the pixel range.
        target: the class of each, int64 (N,), that the attack leads away from.
        generator: of noise and random starts; PyTorch's own if not given.
    """
    size = max(1, _MOST_COPIES // attack.draws)
    with _still(classifier):
        parts = [
            _moved(classifier, some, wanted, attack, generator)
            for some, wanted in zip(torch.split(images, size), torch.split(target, size), strict=True)
        ]
    return torch.cat(parts)


def _moved(
    classifier: Classifier, images: Tensor, target: Tensor, attack: Attack, generator: torch.Generator | None
) -> Tensor:
    project, direction = _GEOMETRY[attack.norm]
    delta = torch.zeros_like(images)
    if attack.random_start:
        drawn = 2 * torch.rand(images.shape, generator=generator).to(images) - 1
        delta = _kept_inside(images, project(attack.epsilon * drawn, attack.epsilon), clip=attack.clip)
    for _ in range(attack.steps):
        gradient = _gradient(classifier, images + delta, target, attack, generator)
        delta = delta + attack.path * attack.epsilon / attack.steps * direction(gradient)
        delta = _kept_inside(images, project(delta, attack.epsilon), clip=attack.clip)
    return images + delta


def _kept_inside(images: Tensor, delta: Tensor, *, clip: bool) -> Tensor:
    """Return a move after which pixels lie between black and white; for pixels that did before, it is no longer."""
    return (images + delta).clamp(0, 1) - images if clip else delta


@torch.enable_grad()
def _gradient(
    classifier: Classifier, images: Tensor, target: Tensor, attack: Attack, generator: torch.Generator | None
) -> Tensor:
    """Return the gradient of the mean loss over an image's noisy copies, image by image."""
    images = images.detach().requires_grad_()
    copies = images.repeat_interleave(attack.draws, 0)
    if attack.sigma > 0:
        copies = copies + attack.sigma * torch.randn(copies.shape, generator=generator).to(copies)
    if attack.grid:
        copies = copies + (torch.round(255 * copies) / 255 - copies).detach()
    logits = classifier(classifier.from_unit(copies))
    # in float64, since the probabilities of a network that is sure round to 1 and 0, and their gradient to nothing
    loss = F.cross_entropy(logits.double(), target.repeat_interleave(attack.draws), reduction="sum") / attack.draws
    (gradient,) = torch.autograd.grad(loss, images)
    return gradient


def _within_l2(delta: Tensor, radius: float) -> Tensor:
    return delta * (radius / _lengths(delta).clamp_min(radius))


def _within_linf(delta: Tensor, radius: float) -> Tensor:
    return delta.clamp(-radius, radius)


def _along(gradient: Tensor) -> Tensor:
    return gradient / _lengths(gradient).clamp_min(_TINY)


def _lengths(each: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(each.flatten(1), dim=1)
    return found.view(-1, 1, 1, 1)


_GEOMETRY: dict[str, tuple[Callable[[Tensor, float], Tensor], Callable[[Tensor], Tensor]]] = {
    "l2": (_within_l2, _along),
    "linf": (_within_linf, torch.sign),
}
"""the nearest move within a distance, and the direction of steepest ascent"""


@contextmanager
def _still(classifier: Classifier) -> Iterator[None]:
    """Hold a classifier in eval mode, with parameters that take no gradients; give it back as it was."""
    modes = [(module, module.training) for module in classifier.modules()]
    learned = [parameter for parameter in classifier.parameters() if parameter.requires_grad]
    classifier.eval()
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter in learned:
            parameter.requires_grad_(True)


def pixel_deflection(images: Tensor, *, deflections: int = 200, window: int = 10, seed: int = 0) -> Tensor:
    """Return the images with some pixels replaced by others near them: a defence without any guarantee.

    Prakash et al., 2018, the deflection itself: places are drawn evenly, not by an activation map, and no wavelets smooth
    the result.

    Args:
        images: (N, C, H, W).
        deflections: pixels replaced in each image, one after the other.
        window: largest distance, along each axis, to the pixel that takes its place.
    """
    count, _, height, width = images.shape
    generator, found, rows = torch.Generator().manual_seed(seed), images.clone(), torch.arange(count)

    def near(place: Tensor, end: int) -> Tensor:
        offset = torch.randint(-window, window + 1, (count,), generator=generator)
        return (place + offset).clamp(0, end - 1)

    for _ in range(deflections):
        y, x = (torch.randint(end, (count,), generator=generator) for end in (height, width))
        found[rows, :, y, x] = found[rows, :, near(y, height), near(x, width)]
    return found
