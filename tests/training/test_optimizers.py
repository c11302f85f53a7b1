"""AdamW, rates by layer, averages: each does what it says, and a killed run with all of them ends like one never killed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arquant.models.architectures.vit import VisionTransformer
from arquant.models.classifier import Classifier
from arquant.training.batches import noisy_batch
from arquant.training.loop import Look, train
from arquant.training.optimizers import last_layer, make_optimizer
from arquant.training.recipe import PRESETS, Recipe
from tests.training.test_loop import RECIPE, differing, killed_after, small_model
from tests.training.test_loop import data as data

EVERYTHING = replace(
    RECIPE,
    optimizer="adamw",
    lr=0.01,
    weight_decay=0.05,
    backbone_lr=0.3,
    label_smoothing=0.1,
    max_gradient=1.0,
    ema=0.9,
)


def small_transformer() -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = VisionTransformer(4, image_size=8, patch=4, dim=12, depth=1, heads=3, hidden=24)
    return Classifier(module, num_classes=4, input_shape=(3, 8, 8))


def group_of(model: Classifier, recipe: Recipe, name: str, **options: Any) -> dict[str, Any]:
    """The optimizer's group of a parameter."""
    parameter = model.module.get_parameter(name)
    groups = make_optimizer(model, recipe, **options).param_groups
    [found] = [group for group in groups if any(parameter is each for each in group["params"])]
    return found


@pytest.mark.parametrize("recipe", [EVERYTHING, replace(EVERYTHING, optimizer="sgd")], ids=["adamw", "sgd"])
@pytest.mark.parametrize("make", [small_model, small_transformer])
def test_a_killed_run_with_everything_resumes_to_the_same_weights(
    data: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, make: Any
) -> None:
    straight, resumed, path = make(), make(), tmp_path / "c.safetensors"
    train(straight, *data, recipe, compiled=False)
    monkeypatch.setattr("arquant.training.loop.REPORT_SECONDS", 0.0)
    killed_after(5, make(), data, recipe, path)
    train(resumed, *data, recipe, compiled=False, checkpoint=path)
    assert not differing(straight, resumed)
    again = make()
    train(again, *data, recipe, compiled=False, checkpoint=path)
    assert not differing(straight, again), "a finished run gives its result again"


def test_adamw_decays_matrices_and_kernels_only() -> None:
    model, recipe = small_transformer(), replace(RECIPE, optimizer="adamw", weight_decay=0.05)
    decays = {name: group_of(model, recipe, name)["weight_decay"] for name, _ in model.module.named_parameters()}
    decayed = {name for name, decay in decays.items() if decay == 0.05}
    assert {name for name, decay in decays.items() if decay == 0} == decays.keys() - decayed
    layers = {name for name, layer in model.module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    assert decayed == {f"{name}.weight" for name in layers}
    sgd = replace(recipe, optimizer="sgd")
    assert {group_of(model, sgd, name)["weight_decay"] for name in decays} == {0.05}, "as in all published recipes"


def test_adamw_makes_the_steps_of_pytorchs_own(data: tuple[Tensor, Tensor]) -> None:
    ours, theirs = small_model(), small_model().train()
    recipe = replace(RECIPE, optimizer="adamw", steps=3, schedule="constant", lr=0.01, weight_decay=0.0)
    train(ours, *data, recipe, compiled=False)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.0)
    for step in range(3):
        pixels, labels = noisy_batch(*data, recipe, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(pixels), labels).backward()
        optimizer.step()
    for name, wanted in theirs.named_parameters():
        if (
            name != "module.0.bias"
        ):  # BatchNorm takes it out again: its gradient is rounding, of which AdamW makes full steps
            torch.testing.assert_close(ours.get_parameter(name), wanted, rtol=1e-4, atol=1e-5)


def test_the_backbone_learns_more_slowly_than_the_head() -> None:
    model, recipe = small_transformer(), replace(RECIPE, backbone_lr=0.1)
    assert last_layer(model) == {"module.head.weight", "module.head.bias"}
    factors = {name: group_of(model, recipe, name)["factor"] for name in ("head.bias", "norm.bias", "cls_token")}
    assert factors == {"head.bias": 1.0, "norm.bias": 0.1, "cls_token": 0.1}
    begun = group_of(model, recipe, "norm.bias", head={"module.norm.bias"})
    assert begun["factor"] == 1.0
    assert group_of(model, recipe, "head.bias", head={"module.norm.bias"})["factor"] == 0.1


def test_a_backbone_at_rate_zero_stays_as_it_was(data: tuple[Tensor, Tensor]) -> None:
    model, before = small_model(), small_model()
    train(model, *data, replace(RECIPE, backbone_lr=0.0), compiled=False)
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before.get_parameter(name))}
    assert changed == {"module.4.weight", "module.4.bias"}


def test_gradients_are_scaled_down_to_a_norm(data: tuple[Tensor, Tensor]) -> None:
    recipe = replace(RECIPE, steps=1, momentum=0.0, weight_decay=0.0, schedule="constant", lr=1.0, max_gradient=1e-3)
    model, before = small_model(), small_model()
    train(model, *data, recipe, compiled=False)
    moved = [(a - b).detach().flatten() for a, b in zip(model.parameters(), before.parameters(), strict=True)]
    assert float(torch.cat(moved).norm()) == pytest.approx(1e-3, rel=0.05)


def test_the_result_is_the_average_of_weights_and_statistics(data: tuple[Tensor, Tensor]) -> None:
    recipe = replace(RECIPE, steps=3, ema=0.9)
    after = [small_model() for _ in range(4)]
    for steps in (1, 2, 3):
        constant = replace(recipe, schedule="constant", steps=steps, ema=0.0)
        train(after[steps], *data, constant, compiled=False)
    model = small_model()
    train(model, *data, replace(recipe, schedule="constant"), compiled=False)
    for name in ("module.0.weight", "module.1.running_var"):
        states = [each.state_dict()[name] for each in after]
        wanted = states[0]
        for step in (1, 2, 3):
            wanted = wanted.lerp(states[step], 1 - (1 + step) / (10 + step))
        torch.testing.assert_close(model.state_dict()[name], wanted)


def test_a_look_sees_the_average_and_changes_nothing(data: tuple[Tensor, Tensor]) -> None:
    recipe, seen = replace(RECIPE, ema=0.9), []
    model, plain = small_model(), small_model()

    def look() -> bool:
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return True

    train(model, *data, recipe, compiled=False, look=Look(0.5, look))
    train(plain, *data, recipe, compiled=False)
    assert not differing(model, plain)
    half = small_model()
    train(half, *data, recipe, compiled=False, look=Look(0.5, lambda: False))
    assert all(torch.equal(value, seen[0][name]) for name, value in half.state_dict().items())


def test_smoothed_labels_hold_the_network_back(data: tuple[Tensor, Tensor]) -> None:
    def confidence(smoothing: float) -> float:
        model = small_model()
        train(model, *data, replace(RECIPE, steps=60, label_smoothing=smoothing), compiled=False)
        with torch.no_grad():
            return float(model(data[0].float() / 255).softmax(1).max(1).values.mean())

    assert confidence(0.3) < confidence(0.0) - 0.05


def test_what_later_versions_added_is_recorded_only_where_it_says_something() -> None:
    added = {"optimizer", "backbone_lr", "label_smoothing", "max_gradient", "ema"}
    assert not added & RECIPE.facts().keys()
    assert added <= EVERYTHING.facts().keys()
    assert PRESETS["vit"].recipe(0.5).facts()["optimizer"] == "adamw"
