"""What one training step computes: the loss of a noisy batch, and the answers of a teacher that it may be measured by."""

from collections.abc import Callable

import torch
from torch import Tensor

from arquant.base.errors import InputError
from arquant.base.processor import compile_alone
from arquant.models.classifier import Classifier
from arquant.models.outputs import first_of_shape
from arquant.training.attacks import Attack, moved
from arquant.training.losses import Answers, find_loss
from arquant.training.recipe import Recipe

ATTACK_STEPS, ATTACK_PATH = 7, 1.25
"""of adversarial training"""
Step = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""from noisy images, labels and, in distillation, the teacher's probabilities to the loss and how many answers were right"""


def step_function(model: Classifier, recipe: Recipe, *, compiled: bool) -> Step:
    """Return the function that a step calls and differentiates; one that attacks the network on the way is not compiled."""
    mixed, copies, smoothing = recipe.precision == "bfloat16", recipe.copies, recipe.label_smoothing
    terms = [(find_loss(name), weight) for name, weight in recipe.terms]
    attack = _attack(recipe)

    def loss_of(pixels: Tensor, target: Tensor, taught: Tensor | None) -> tuple[Tensor, Tensor]:
        if attack is not None:
            pixels, target = torch.cat([pixels, moved(model, pixels, target, attack)]), target.repeat(2)
        logits = logits_of(model, pixels, mixed=mixed)
        answers = Answers(logits, target, taught, copies, smoothing)
        (first, weight), *others = terms
        loss = first(answers, weight)
        for term, weight in others:
            loss = loss + term(answers, weight)
        right = logits.argmax(1) == target
        return loss, (right if attack is None else right[: len(right) // 2]).sum()

    return compile_alone(loss_of) if compiled and attack is None else loss_of


def _attack(recipe: Recipe) -> Attack | None:
    """Return the attack of adversarial training: ATMC's, with a random start; noisy images may lie beyond black and white."""
    if recipe.adversarial == 0:
        return None
    return Attack(recipe.adversarial, "linf", ATTACK_STEPS, path=ATTACK_PATH, random_start=True, clip=recipe.sigma == 0)


class Teaching:
    """The teacher's probabilities for the batches of a run; `answers` keeps them for the runs that follow."""

    def __init__(
        self,
        teacher: Classifier,
        recipe: Recipe,
        device: torch.device,
        answers: dict[int, Tensor] | None,
        *,
        compiled: bool,
    ) -> None:
        teacher.to(device)
        mixed = recipe.precision == "bfloat16"

        def probabilities_of(pixels: Tensor) -> Tensor:
            return logits_of(teacher, pixels, mixed=mixed).softmax(1)

        self._compute = compile_alone(probabilities_of) if compiled else probabilities_of
        self._answers = answers

    @torch.no_grad()
    def answer(self, step: int, pixels: Tensor) -> Tensor:
        """Return the probabilities for the noisy images of step `step`."""
        if self._answers is None:
            return self._compute(pixels)
        if step not in self._answers:
            self._answers[step] = self._compute(pixels)
        return self._answers[step]


def logits_of(model: Classifier, pixels: Tensor, *, mixed: bool) -> Tensor:
    """Return the logits of noisy images in units of the pixel range, in float32; `mixed` computes them in bfloat16."""
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=mixed):
        answer = model(model.from_unit(pixels))
    # some networks answer with auxiliary heads in training mode, the logits first
    shape = (len(pixels), model.num_classes)
    logits = answer if isinstance(answer, Tensor) else first_of_shape(answer, shape)
    if logits is None:
        got = type(answer).__name__
        raise InputError(f"model {model.name!r} returns no logits of shape {shape} in training mode, but {got}")
    return logits.float()
