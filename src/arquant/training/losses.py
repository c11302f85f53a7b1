"""Losses by name. A recipe's weights say which of them a training step adds up, and with what weights.

A loss of your own is one function, registered under a name that `Recipe.losses` then refers to:

    @register_loss("margin")
    def margin(answers: Answers, weight: float) -> Tensor:
        best = answers.logits.topk(2).values
        return -weight * (best[:, 0] - best[:, 1]).mean()

    Recipe(sigma=0.5, steps=1000, losses=(("margin", 0.1),))
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from arquant.base.errors import InputError
from arquant.base.registry import registering

ENTROPY_WEIGHT = 0.5
"""of the averaged answer of an image's copies, where their consistency is asked for: Jeong and Shin's value"""


class Answers(NamedTuple):
    """What a loss sees of a training step."""

    logits: Tensor
    """(copies x images, classes) of the noisy images; of several copies, the first of every image come first"""
    target: Tensor
    """the labels, (copies x images,)"""
    taught: Tensor | None
    """the teacher's probabilities for the same noisy images, where the recipe distils"""
    copies: int
    """noisy copies of each image"""
    smoothing: float = 0.0
    """share of a label's probability that is spread over all classes"""


Loss = Callable[[Answers, float], Tensor]
"""from the answers and the weight to the weighted loss, a scalar"""
LOSSES: dict[str, Loss] = {}


def register_loss(name: str) -> Callable[[Loss], Loss]:
    """Register a loss under a name; the last one registered counts."""
    return registering(LOSSES, name)


def find_loss(name: str) -> Loss:
    """Return the loss of this name."""
    if name not in LOSSES:
        raise InputError(f"unknown loss {name!r}; registered are {', '.join(sorted(LOSSES))}")
    return LOSSES[name]


@register_loss("cross-entropy")
def cross_entropy(answers: Answers, weight: float) -> Tensor:
    """Return the cross-entropy against the labels, smoothed as the recipe says."""
    return weight * F.cross_entropy(answers.logits, answers.target, label_smoothing=answers.smoothing)


@register_loss("distillation")
def distillation(answers: Answers, weight: float) -> Tensor:
    """Return the cross-entropy against the teacher's probabilities."""
    if answers.taught is None:
        raise InputError("the loss distillation needs a teacher; state its weight as the recipe's `distill`")
    return weight * F.cross_entropy(answers.logits, answers.taught)


@register_loss("consistency")
def consistency(answers: Answers, weight: float) -> Tensor:
    """Return how much the answers for noisy copies of an image differ; certified radii grow as it falls.

    It is `weight` times the mean divergence KL(average || answer of a copy), plus ENTROPY_WEIGHT times the entropy of the
    average (Jeong and Shin, "Consistency regularization for certified robustness of smoothed classifiers", 2020).
    """
    logits = answers.logits
    each = logits.log_softmax(1).view(answers.copies, -1, logits.shape[1])
    average = each.logsumexp(0) - math.log(answers.copies)
    entropy = -(average.exp() * average).sum(1)
    divergence = (average.exp() * (average - each)).sum(2).mean(0)
    return (weight * divergence + ENTROPY_WEIGHT * entropy).mean()
