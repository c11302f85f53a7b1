import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from arquant.base.errors import InputError
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import quantize
from arquant.training.checkpoint import identity_of
from arquant.training.loop import train
from arquant.training.losses import LOSSES, Answers, cross_entropy, distillation, find_loss, register_loss
from arquant.training.recipe import Recipe
from tests.support.small_search import SIGMA, image_set, small_classifier

STEPS: dict[str, Any] = {"sigma": SIGMA, "steps": 3, "batch": 16, "lr": 0.05}


def finetuned(recipe: Recipe, **options: Any) -> tuple[Classifier, float]:
    images, classifier = image_set(64, 7), small_classifier()
    model = quantize(classifier, 3, image_set(64, 8), sigma=SIGMA)
    teacher = classifier if recipe.distill > 0 else None
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    record = train(model, pixels, labels, recipe, teacher=teacher, **{"compiled": False, **options})
    return model, float(record["loss"])


def digest(model: Classifier) -> str:
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.contiguous().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize(("distill", "consistency"), [(0.0, 0.0), (0.7, 0.0), (0.0, 1.0), (1.0, 2.0)])
def test_the_losses_add_up_to_the_written_formulas(distill: float, consistency: float) -> None:
    copies = 2 if consistency else 1
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(copies * 6, 4))
    answers = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    taught, labels = rng.dirichlet(np.ones(4), len(logits)), np.tile(np.arange(6) % 4, copies)
    wanted = (1 - distill) * -np.log(answers[np.arange(len(labels)), labels]).mean()
    wanted += distill * -(taught * np.log(answers)).sum(1).mean()
    if consistency:
        each = answers.reshape(2, 6, 4)
        average = each.mean(0)
        wanted += consistency * (average * np.log(average / each)).sum(2).mean()
        wanted += 0.5 * -(average * np.log(average)).sum(1).mean()
    given = Answers(torch.from_numpy(logits), torch.from_numpy(labels), torch.from_numpy(taught), copies)
    recipe = Recipe(**STEPS, distill=distill, consistency=consistency)
    found = sum(float(find_loss(name)(given, weight)) for name, weight in recipe.terms)
    assert found == pytest.approx(wanted, rel=1e-9)


@pytest.fixture
def shrinking() -> Iterator[str]:
    @register_loss("shrinking")
    def shrink(answers: Answers, weight: float) -> Tensor:
        return weight * answers.logits.square().mean()

    yield "shrinking"
    del LOSSES["shrinking"]


def test_a_loss_of_ones_own_is_trained_by(shrinking: str) -> None:
    def size(model: Classifier) -> float:
        images = torch.from_numpy(image_set(32, 9).images) / 255
        with torch.no_grad():
            return float(model(model.from_unit(images)).square().mean())

    plain, _ = finetuned(Recipe(**STEPS))
    weighed, _ = finetuned(Recipe(**STEPS, losses=((shrinking, 0.0),)))
    shrunk, _ = finetuned(Recipe(**STEPS, losses=((shrinking, 0.5),)))
    assert digest(weighed) == digest(plain)
    assert size(shrunk) < 0.9 * size(plain)


def test_a_compiled_step_holds_all_losses_in_one_graph(shrinking: str) -> None:
    terms = Recipe(**STEPS, distill=0.5, consistency=1.0, losses=((shrinking, 0.5),)).terms

    def added(logits: Tensor, target: Tensor, taught: Tensor) -> Tensor:
        answers = Answers(logits, target, taught, 2)
        return torch.stack([find_loss(name)(answers, weight) for name, weight in terms]).sum()

    logits, target = torch.randn(8, 4), torch.arange(8) % 4
    given = (logits, target, torch.randn(8, 4).softmax(1))
    captured = torch.compile(added, fullgraph=True, backend="eager")
    torch.testing.assert_close(captured(*given), added(*given))


def test_an_unknown_loss_is_refused_before_the_first_step() -> None:
    with pytest.raises(InputError, match="unknown loss 'nothing'"):
        finetuned(Recipe(**STEPS, losses=(("nothing", 1.0),)))


def test_distillation_needs_a_teacher() -> None:
    answers = Answers(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), None, 1)
    with pytest.raises(InputError, match="teacher"):
        distillation(answers, 1.0)
    assert float(cross_entropy(answers, 2.0)) == pytest.approx(2 * float(torch.tensor(3.0).log()))


def test_a_run_without_further_losses_is_known_as_before() -> None:
    data = torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)
    assert "losses" not in identity_of(small_classifier(), Recipe(**STEPS), *data)["recipe"]
    other = Recipe(**STEPS, losses=(("consistency", 1.0),))
    assert "losses" in identity_of(small_classifier(), other, *data)["recipe"]
