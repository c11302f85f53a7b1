"""FGSM and PGD against closed forms on a linear network, and that they leave the network as it was; pixel deflection."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import quantize
from arquant.training.attacks import Attack, fgsm, moved, pgd, pixel_deflection
from arquant.training.batches import noisy_batch
from arquant.training.loop import train
from arquant.training.recipe import PRESETS, Recipe
from arquant.training.step import step_function
from tests.support.small_search import SIGMA, image_set, small_classifier

SHAPE = (1, 4, 4)


def linear(seed: int = 0) -> tuple[Classifier, Tensor]:
    """A network of two classes and the direction in image space along which the first one wins."""
    layer = nn.Linear(16, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(2, 16, generator=torch.Generator().manual_seed(seed)))
    weight = (layer.weight[0] - layer.weight[1]).detach() / 0.5
    return Classifier(nn.Sequential(nn.Flatten(), layer), num_classes=2, input_shape=SHAPE, std=[0.5]).eval(), weight


def images(count: int = 5) -> Tensor:
    return 0.5 + 0.1 * torch.rand((count, *SHAPE), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "attack", [fgsm(0.3, "l2"), pgd(0.3, "l2", 10, random_start=False), Attack(0.3, "l2", sigma=0.5, draws=4)]
)
def test_in_l2_the_whole_way_is_along_the_weights(attack: Attack) -> None:
    network, weight = linear()
    x = images()
    there = moved(
        network, x, torch.zeros(len(x), dtype=torch.int64), attack, generator=torch.Generator().manual_seed(2)
    )
    expected = x - (0.3 * weight / weight.norm()).view(SHAPE)
    assert torch.allclose(there, expected, atol=1e-6)


@pytest.mark.parametrize("attack", [fgsm(0.1), pgd(0.1, steps=10)])
def test_in_linf_every_pixel_goes_the_whole_way(attack: Attack) -> None:
    network, weight = linear()
    x = images()
    there = moved(network, x, torch.ones(len(x), dtype=torch.int64), attack, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(there, x + 0.1 * weight.sign().view(SHAPE), atol=1e-6)


def test_the_class_flips_just_beyond_the_distance_to_the_plane() -> None:
    """The margin of a linear classifier over the norm of its weights is the exact radius."""
    network, weight = linear()
    x = images(20)
    with torch.no_grad():
        logits = network(x)
    klass, margin = logits.argmax(1), (logits[:, 0] - logits[:, 1]).abs()
    for i in range(len(x)):
        radius = float(margin[i] / weight.norm())
        for scale, flips in ((0.99, False), (1.01, True)):
            attack = Attack(scale * radius, "l2", 10, clip=False)
            with torch.no_grad():
                answer = network(moved(network, x[i : i + 1], klass[i : i + 1], attack)).argmax(1)
            assert bool(answer != klass[i]) is flips


def test_a_network_that_is_sure_still_has_a_gradient() -> None:
    network, weight = linear()
    network.get_parameter("module.1.weight").data.mul_(6)
    x = images()
    with torch.no_grad():
        margins = network(x).diff(dim=1).abs()
    assert float(margins.min()) > 17, "the probability is 1 in float32"
    klass = network(x).argmax(1)
    there = moved(network, x, klass, fgsm(0.3, "l2"))
    sign = (2.0 * klass - 1).view(-1, 1, 1, 1)
    assert torch.allclose(there, x + sign * (0.3 * weight / weight.norm()).view(SHAPE), atol=1e-4)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_attacked_images_stay_images_within_the_distance(norm: Any) -> None:
    network, _ = linear()
    x = torch.rand((8, *SHAPE), generator=torch.Generator().manual_seed(3))
    there = moved(network, x, torch.zeros(8, dtype=torch.int64), pgd(0.4, norm))
    assert float(there.min()) >= 0
    assert float(there.max()) <= 1
    order = 2 if norm == "l2" else float("inf")
    assert float((there - x).flatten(1).norm(p=order, dim=1).max()) <= 0.4 + 1e-6


def test_the_network_is_left_as_it_was() -> None:
    network = Classifier(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)),
        num_classes=2,
        input_shape=SHAPE,
    ).train()
    network.get_submodule("module.1").eval()  # frozen, as a recipe may have it
    frozen = network.get_parameter("module.3.weight").requires_grad_(False)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    moved(network, images(), torch.zeros(5, dtype=torch.int64), pgd(0.1))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert not network.get_submodule("module.1").training
    assert not frozen.requires_grad
    assert network.get_parameter("module.0.weight").requires_grad
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_long_list_of_images_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = linear()
    x, target = images(7), torch.zeros(7, dtype=torch.int64)
    whole = moved(network, x, target, Attack(0.2))
    monkeypatch.setattr("arquant.training.attacks._MOST_COPIES", 3)
    assert torch.allclose(moved(network, x, target, Attack(0.2)), whole)


@pytest.mark.parametrize("fields", [{"epsilon": 0.0}, {"epsilon": float("nan")}, {"epsilon": 1.0, "steps": 0}])
def test_impossible_attacks_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Attack(**fields)


def test_pixel_deflection_only_copies_near_pixels() -> None:
    places = torch.arange(64.0).view(1, 1, 8, 8).repeat(2, 3, 1, 1)
    found = pixel_deflection(places, deflections=1, window=2, seed=4)
    for before, after in zip(places, found, strict=True):
        changed = (before != after).any(0).nonzero()
        assert len(changed) <= 1
        for y, x in changed.tolist():
            from_y, from_x = divmod(int(after[0, y, x]), 8)
            assert abs(from_y - y) <= 2
            assert abs(from_x - x) <= 2
            assert len(set(after[:, y, x].tolist())) == 1, "all channels come from one pixel"
    many = pixel_deflection(places, deflections=100, window=3)
    assert (many != places).any()
    assert set(many.flatten().tolist()) <= set(places.flatten().tolist())
    assert torch.equal(many, pixel_deflection(places, deflections=100, window=3))


def test_adversarial_training_counts_images_and_attacked_images_alike() -> None:
    network, _ = linear()
    x, target = images(6), torch.tensor([0, 1, 0, 1, 1, 0])
    recipe = Recipe(sigma=0.0, steps=1, batch=6, adversarial=0.1)
    loss, right = step_function(network, recipe, compiled=True)(x, target, None)
    with torch.no_grad():
        there = moved(network, x, target, Attack(0.1, "linf", 7, path=1.25))  # from a random start it gets no further
        clean = F.cross_entropy(network(x), target)
        worst = F.cross_entropy(network(there), target)
    assert int(right) == int((network(x).argmax(1) == target).sum())
    assert float(clean) < float(loss.detach()) <= 0.5 * float(clean + worst) + 1e-6
    assert loss.requires_grad


def test_adversarial_training_makes_a_network_withstand_the_attack() -> None:
    data = image_set(48, 7)
    pixels, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    held, target = pixels.float() / 255, labels

    def accuracy(**changes: Any) -> float:
        network = quantize(small_classifier(), 8, data, sigma=SIGMA)
        recipe = Recipe(sigma=0.0, steps=20, batch=24, lr=0.05, augment=False, **changes)
        train(network, pixels, labels, recipe, compiled=False)
        there = moved(network, held, target, pgd(0.12, steps=10), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            return float((network(there).argmax(1) == target).float().mean())

    assert accuracy(adversarial=0.12) > accuracy() + 0.05


def test_adversarial_training_has_neither_teacher_nor_copies() -> None:
    plain = Recipe(sigma=0.0, steps=1)
    for partly in (replace(plain, distill=0.5), replace(plain, consistency=1.0)):
        with pytest.raises(InputError, match="labels alone"):
            replace(partly, adversarial=0.1)
    assert PRESETS["atmc"].recipe(0.0).adversarial == pytest.approx(4 / 255)
    assert "adversarial" not in Recipe(sigma=0.5, steps=1).facts(), "recipes of earlier versions stay what they were"


def test_noise_on_the_grid_is_on_the_grid() -> None:
    data = image_set(16, 7)
    source = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    plain, rounded = (
        noisy_batch(*source, Recipe(sigma=SIGMA, steps=1, batch=16, grid=grid), 0)[0] for grid in (False, True)
    )
    assert torch.equal(rounded, torch.round(255 * rounded) / 255)
    assert not torch.equal(plain, rounded)
    assert float((plain - rounded).abs().max()) <= 0.5 / 255 + 1e-6
    assert PRESETS["icr"].recipe(SIGMA).grid
    assert "grid" not in Recipe(sigma=SIGMA, steps=1).facts()
