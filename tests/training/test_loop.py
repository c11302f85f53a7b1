"""Training: batches are addressed, noise is fresh, and a killed run ends like one that was never killed."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.progress import Status
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import quantize
from arquant.quantization.quantizers import learned_sizes
from arquant.training.batches import augment, noisy_batch
from arquant.training.checkpoint import read_checkpoint
from arquant.training.loop import default_precision, train
from arquant.training.losses import Answers, consistency
from arquant.training.recipe import PRESETS, Recipe
from tests.support.small_search import image_set, small_classifier

RECIPE = Recipe(sigma=0.1, steps=12, batch=16, lr=0.05)


class Killed(BaseException):
    """Stands for the signal that ends a process."""


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(64) % 4
    images = (torch.rand(64, 3, 8, 8, generator=generator) * 60 + 60 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    return images, labels


def small_model(bounds: tuple[float, float] = (0.0, 1.0)) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    return Classifier(layers, num_classes=4, input_shape=(3, 8, 8), bounds=bounds)


def forgetful_model() -> Classifier:
    """A network that draws at random in training."""
    model = small_model()
    model.module.insert(4, nn.Dropout(0.5))  # type: ignore[operator]
    return model


def killed_after(steps: int, model: Classifier, data: tuple[Tensor, Tensor], recipe: Recipe, checkpoint: Path) -> None:
    """Train until a report of so many steps, the last of which the checkpoint lacks; reports must follow every step."""

    def kill(status: Status) -> None:
        if status.done >= steps * recipe.batch:
            raise Killed

    with pytest.raises(Killed):
        train(model, *data, recipe, compiled=False, checkpoint=checkpoint, checkpoint_seconds=0.0, report=kill)


def differing(first: Classifier, second: Classifier) -> list[str]:
    """The names of the tensors in which two networks of a kind differ."""
    there = second.state_dict()
    return [name for name, tensor in first.state_dict().items() if not torch.equal(tensor, there[name])]


def test_a_batch_is_a_function_of_seed_and_step(data: tuple[Tensor, Tensor]) -> None:
    first, _ = noisy_batch(*data, RECIPE, 5)
    again, _ = noisy_batch(*data, RECIPE, 5)
    other_step, _ = noisy_batch(*data, RECIPE, 6)
    other_seed, _ = noisy_batch(*data, replace(RECIPE, seed=1), 5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other_step)
    assert not torch.equal(first, other_seed)


def test_noise_is_fresh_for_every_batch_and_has_the_stated_size(data: tuple[Tensor, Tensor]) -> None:
    recipe = Recipe(sigma=0.5, steps=1, batch=64, augment=False)
    images, labels = data
    order = [noisy_batch(images, labels, recipe, step) for step in (0, 1)]
    clean = [noisy_batch(images, labels, replace(recipe, sigma=0.0), step)[0] for step in (0, 1)]
    noise = [batch - base for (batch, _), base in zip(order, clean, strict=True)]
    assert abs(float(noise[0].std()) - 0.5) < 0.01  # 12,288 values: standard error 0.003
    correlation = torch.corrcoef(torch.stack([n.flatten() for n in noise]))[0, 1]
    assert abs(float(correlation)) < 0.04


def test_an_epoch_visits_every_image_once(data: tuple[Tensor, Tensor]) -> None:
    images, _ = data
    numbers = torch.arange(64)
    recipe = replace(RECIPE, sigma=0.0, augment=False)
    seen = torch.cat([noisy_batch(images, numbers, recipe, step)[1] for step in range(4)])
    assert sorted(seen.tolist()) == list(range(64))


def test_augmentation_shifts_and_flips_whole_images() -> None:
    image = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).repeat(200, 1, 1, 1)
    out = augment(image, torch.Generator().manual_seed(0))
    middle = out[:, 0, 3, 3:5].long()
    differences = (middle[:, 1] - middle[:, 0]).tolist()
    assert set(differences) == {1, -1}
    assert 60 < differences.count(1) < 140
    assert out.shape == image.shape


def test_training_learns(data: tuple[Tensor, Tensor]) -> None:
    record = train(small_model(), *data, replace(RECIPE, steps=60), compiled=False)
    assert record["accuracy"] > 0.6


def test_training_is_in_units_of_the_pixel_range_whatever_the_bounds(data: tuple[Tensor, Tensor]) -> None:
    class Inputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x.detach())
            return x.mean((1, 2, 3)).unsqueeze(1) * self.scale

    wide, unit = Inputs(), Inputs()
    for module, bounds in ((wide, (-1.0, 3.0)), (unit, (0.0, 1.0))):
        model = Classifier(module, num_classes=4, input_shape=(3, 8, 8), bounds=bounds)
        train(model, *data, replace(RECIPE, steps=1), compiled=False)
    torch.testing.assert_close(wide.seen[0], unit.seen[0] * 4 - 1)


def test_a_killed_run_resumes_to_the_same_weights(
    data: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = small_model()
    train(straight, *data, RECIPE, compiled=False)

    path = tmp_path / "training.safetensors"
    monkeypatch.setattr("arquant.training.loop.REPORT_SECONDS", 0.0)
    killed_after(5, small_model(), data, RECIPE, path)
    assert path.exists()

    resumed = small_model()
    train(resumed, *data, RECIPE, compiled=False, checkpoint=path)
    assert not differing(straight, resumed)


def test_what_a_network_draws_at_random_is_a_function_of_seed_and_step(
    data: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, again, other = (forgetful_model() for _ in range(3))
    generator = torch.get_rng_state()
    train(straight, *data, RECIPE, compiled=False)
    assert torch.equal(torch.get_rng_state(), generator), "the generator of the process is left as it was"
    torch.rand(1)
    train(again, *data, RECIPE, compiled=False)
    assert not differing(straight, again)

    monkeypatch.setattr("arquant.training.loop.REPORT_SECONDS", 0.0)
    killed_after(5, forgetful_model(), data, RECIPE, tmp_path / "c.safetensors")
    torch.rand(1)
    resumed = forgetful_model()
    train(resumed, *data, RECIPE, compiled=False, checkpoint=tmp_path / "c.safetensors")
    assert not differing(straight, resumed)

    monkeypatch.setattr("arquant.training.loop.noisy_batch", lambda *args: noisy_batch(*args[:2], RECIPE, args[3]))
    train(other, *data, replace(RECIPE, seed=1), compiled=False)
    assert differing(straight, other), "the seed decides more than the batches"


@pytest.mark.slow
def test_a_compiled_network_draws_by_seed_and_step_too(data: tuple[Tensor, Tensor]) -> None:
    first, second, plain = forgetful_model(), forgetful_model(), small_model()
    for model in (first, second, plain):
        torch.rand(1)
        train(model, *data, RECIPE, compiled=True)
    assert not differing(first, second)
    assert not torch.equal(first.module[-1].weight, plain.module[-1].weight), "it does draw"  # type: ignore[index]


@pytest.mark.parametrize("steps", [3, 12, 100])
def test_the_record_is_of_the_last_steps_whatever_the_clock(
    data: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr("arquant.training.run.RECORDED_STEPS", steps)
    losses: list[float] = []

    def trained(seconds: float, checkpoint: Path | None = None) -> tuple[float, float]:
        monkeypatch.setattr("arquant.training.loop.REPORT_SECONDS", seconds)
        losses.clear()
        record = train(
            small_model(), *data, RECIPE, compiled=False, checkpoint=checkpoint,
            report=lambda status: losses.append(status.values["loss"]),
        )  # fmt: skip
        return record["loss"], record["accuracy"]

    rarely, often = trained(1e9), trained(0.0)
    assert rarely == often
    assert often[0] == pytest.approx(sum(losses[-steps:]) / len(losses[-steps:]))
    path = tmp_path / "c.safetensors"
    killed_after(8, small_model(), data, RECIPE, path)
    assert trained(0.0, path) == often, "a resumed run has the same record"


def test_a_checkpoint_without_the_latest_losses_is_resumed(
    data: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, resumed, straight = tmp_path / "c.safetensors", small_model(), small_model()
    monkeypatch.setattr("arquant.training.loop.REPORT_SECONDS", 0.0)
    killed_after(5, small_model(), data, RECIPE, path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    state = json.loads(metadata["state"])
    del state["recent"]
    save_file(load_file(path), path, {**metadata, "state": json.dumps(state)})
    record = train(resumed, *data, RECIPE, compiled=False, checkpoint=path)
    train(straight, *data, RECIPE, compiled=False)
    assert not differing(straight, resumed)
    assert math.isfinite(record["loss"])


def test_without_momentum_nesterov_changes_nothing(data: tuple[Tensor, Tensor]) -> None:
    first, second = small_model(), small_model()
    train(first, *data, replace(RECIPE, momentum=0.0), compiled=False)
    train(second, *data, replace(RECIPE, momentum=0.0, nesterov=False), compiled=False)
    assert not differing(first, second)


def test_a_checkpoint_of_another_recipe_is_refused(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    train(small_model(), *data, RECIPE, compiled=False, checkpoint=path)
    with pytest.raises(MismatchError, match=r"lr 0\.05 there, 0\.01 here"):
        train(small_model(), *data, replace(RECIPE, lr=0.01), compiled=False, checkpoint=path)


def test_a_truncated_checkpoint_is_refused(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    train(small_model(), *data, RECIPE, compiled=False, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="delete it"):
        train(small_model(), *data, RECIPE, compiled=False, checkpoint=path)


def test_a_diverging_run_is_an_error_that_says_what_to_do(data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match="smaller --lr"):
        train(small_model(), *data, replace(RECIPE, lr=1e20), compiled=False)


def test_distillation_follows_the_teacher(data: tuple[Tensor, Tensor]) -> None:
    images, labels = data
    teacher = small_model().eval()
    student = small_model()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.mul_(0.5)
    recipe = replace(RECIPE, steps=80, distill=1.0)
    train(student, images, labels, recipe, teacher=teacher, compiled=False)
    pixels, _ = noisy_batch(images, labels, recipe, 1000)
    with torch.no_grad():
        agreement = (student(pixels).argmax(1) == teacher(pixels).argmax(1)).float().mean()
    assert agreement > 0.7
    with pytest.raises(InputError, match="teacher"):
        train(student, images, labels, recipe, compiled=False)


def test_kept_answers_of_the_teacher_change_nothing_but_the_work(data: tuple[Tensor, Tensor]) -> None:
    recipe, seen = replace(RECIPE, distill=0.7), []
    teacher = small_model().eval()
    teacher.register_forward_hook(lambda *_: seen.append(1))

    def trained(answers: dict[int, Tensor] | None) -> dict[str, Tensor]:
        model = small_model()
        train(model, *data, recipe, teacher=teacher, answers=answers, compiled=False)
        return model.state_dict()

    plain, kept = trained(None), {}
    assert len(seen) == RECIPE.steps
    first, second = trained(kept), trained(kept)
    assert len(seen) == 2 * RECIPE.steps, "the second run asks the teacher nothing"
    for name, value in plain.items():
        assert torch.equal(value, first[name])
        assert torch.equal(value, second[name])


def test_a_batch_for_consistency_holds_each_image_twice_with_noise_of_its_own(data: tuple[Tensor, Tensor]) -> None:
    images, numbers = data[0], torch.arange(64)
    recipe = replace(RECIPE, sigma=0.5, consistency=1.0)
    noisy, labels = noisy_batch(images, numbers, recipe, 3)
    clean, _ = noisy_batch(images, numbers, replace(recipe, sigma=0.0), 3)
    assert noisy.shape[0] == RECIPE.batch
    assert torch.equal(labels[:8], labels[8:])
    assert torch.equal(clean[:8], clean[8:]), "both copies are the same crop"
    noise = (noisy - clean).view(2, -1)
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.13  # 1,536 values: 5 standard errors
    seen = torch.cat([noisy_batch(images, numbers, recipe, step)[1][:8] for step in range(8)])
    assert sorted(seen.tolist()) == list(range(64)), "an epoch still visits every image once"


def inconsistency(logits: Tensor, copies: int, weight: float) -> Tensor:
    return consistency(Answers(logits, torch.zeros(len(logits)), None, copies), weight)


def test_inconsistency_of_known_answers() -> None:
    sure, half = [0.0, -1e4], [0.0, 0.0]
    assert float(inconsistency(torch.tensor([sure, sure]), 2, 3.0)) == 0
    assert float(inconsistency(torch.tensor([half, half]), 2, 3.0)) == pytest.approx(0.5 * math.log(2))
    opposite = torch.tensor([[math.log(0.9), math.log(0.1)], [math.log(0.1), math.log(0.9)]])
    divergence = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert float(inconsistency(opposite, 2, 3.0)) == pytest.approx(3 * divergence + 0.5 * math.log(2))
    two_images = torch.tensor([sure, half, sure, half])
    assert float(inconsistency(two_images, 2, 3.0)) == pytest.approx(0.25 * math.log(2)), "copies are not mixed up"


def test_consistency_makes_answers_agree_under_noise(data: tuple[Tensor, Tensor]) -> None:
    def trained(weight: float) -> float:
        model, recipe = small_model(), replace(RECIPE, sigma=0.5, steps=60, consistency=weight)
        train(model, *data, recipe, compiled=False)
        pixels, _ = noisy_batch(*data, replace(recipe, consistency=1.0, batch=128), 1000)
        with torch.no_grad():
            logits = model(pixels)
        return float(inconsistency(logits, 2, 1.0) - inconsistency(logits, 2, 0.0))

    assert trained(5.0) < 0.9 * trained(0.0)


def test_schedules() -> None:
    step = PRESETS["paper-cifar"].recipe(0.5)
    assert step.total_steps(100) == 1000
    assert [round(step.lr_at(s, 1000, 100), 6) for s in (0, 499, 500, 999)] == [0.01, 0.01, 0.001, 0.001]
    cycle = Recipe(sigma=0.5, epochs=10, lr=1.0)
    rates = [cycle.lr_at(s, 1000, 100) for s in range(1000)]
    assert max(rates) == 1.0
    assert rates[0] == 0.01
    assert rates[-1] < 1e-4


def test_plateau_schedule_decays_when_an_epoch_is_not_better(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    recipe = replace(RECIPE, steps=8, schedule="plateau", lr=1e-12, decay=0.5)
    path = tmp_path / "training.safetensors"
    train(small_model(), *data, recipe, compiled=False, checkpoint=path)
    state = read_checkpoint(path)[1]
    losses = state["epoch_losses"]
    assert len(losses) == 2
    assert state["lr_factor"] == (0.5 if losses[1] >= losses[0] else 1.0)


def test_frozen_batchnorm_keeps_its_statistics(data: tuple[Tensor, Tensor]) -> None:
    model = small_model()
    before = model.module[1].running_mean.clone()  # type: ignore[index]
    train(model, *data, replace(RECIPE, freeze_batchnorm=True), compiled=False)
    assert torch.equal(before, model.module[1].running_mean)  # type: ignore[index]


@pytest.mark.parametrize(
    "change",
    [
        *({"sigma": -0.1}, {"lr": 0.0}, {"batch": 1}, {"steps": 0, "epochs": 0.0}, {"distill": 1.5}, {"momentum": 1.0}),
        *({"steps": -1}, {"epochs": -1.0}, {"weight_decay": -1e-4}, {"settle_batchnorm": -1}, {"images": -1}),
        *({"consistency": -1.0}, {"consistency": 1.0, "batch": 15}),
        *({"steps": 0, "epochs": 1e308}, {"steps": 10**400}, {"lr": 1e39}, {"lr": 1e30, "clip_lr": 1e30}),
        *({"weight_decay": 1e39}, {"decay": -1.0}, {"decay": 0.0}, {"decay": 1.5}, {"decay": math.nan}),
        *({"warm_up": 1e308}, {"warm_up": -0.1}, {"warm_up": math.nan}),
        *({"backbone_lr": -1.0}, {"label_smoothing": 1.0}, {"max_gradient": -1.0}, {"ema": 1.0}, {"ema": math.nan}),
    ],
)
def test_impossible_recipes_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError):
        replace(RECIPE, **change)  # type: ignore[arg-type]


def test_settled_batchnorm_has_the_statistics_of_fresh_noisy_batches(data: tuple[Tensor, Tensor]) -> None:
    settled, plain = small_model(), small_model()
    recipe = replace(RECIPE, settle_batchnorm=3)
    train(settled, *data, recipe, compiled=False)
    train(plain, *data, RECIPE, compiled=False)
    assert all(torch.equal(a, b) for a, b in zip(settled.parameters(), plain.parameters(), strict=True))
    first = next(part for part in settled.modules() if isinstance(part, nn.BatchNorm2d))
    seen: list[Tensor] = []
    first.register_forward_pre_hook(lambda _, args: seen.append(args[0].mean((0, 2, 3))))
    total = recipe.total_steps(len(data[0]) // recipe.batch)
    with torch.no_grad():
        for step in range(total, total + 3):
            settled(settled.from_unit(noisy_batch(*data, recipe, step)[0]))
    torch.testing.assert_close(first.running_mean, torch.stack(seen).mean(0))


def test_clips_have_a_learning_rate_of_their_own(data: tuple[Tensor, Tensor]) -> None:
    model = small_model()
    slow, fast = (quantize(model, 3, data[0], sigma=0.25, images=32) for _ in range(2))
    before = _clips(slow)
    train(slow, *data, replace(RECIPE, steps=1, clip_lr=1e-9), compiled=False)
    train(fast, *data, replace(RECIPE, steps=1, clip_lr=1.0), compiled=False)
    assert (_clips(slow) - before).abs().max() < 1e-6
    assert (_clips(fast) - before).abs().max() > 1e-4


def _clips(model: Classifier) -> Tensor:
    return torch.stack([size.detach().clone() for size in learned_sizes(model)])


def test_bfloat16_is_the_default_only_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for able, expected in (({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({}, "float32")):
        monkeypatch.setattr("torch.cpu.get_capabilities", lambda able=able: able)
        assert default_precision() == expected


@pytest.mark.parametrize(("size", "steps", "expected"), [(8, 200, True), (8, 199, False), (224, 200, False)])
def test_long_runs_on_small_images_are_compiled(
    data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch, size: int, steps: int, expected: bool
) -> None:
    asked: list[bool] = []

    def stop(*_: object, compiled: bool) -> None:
        asked.append(compiled)
        raise Killed

    monkeypatch.setattr("arquant.training.loop.step_function", stop)
    monkeypatch.setattr("arquant.training.loop.compiler_available", lambda _: True)
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    model = Classifier(pool, num_classes=4, input_shape=(3, size, size))
    with pytest.raises(Killed):
        train(model, *data, replace(RECIPE, steps=steps))
    assert asked == [expected]


def test_too_few_images_are_refused(data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match="fewer than one batch"):
        train(small_model(), *data, replace(RECIPE, batch=128), compiled=False)


def test_a_checkpoint_of_another_policy_is_refused(tmp_path):
    images = image_set(64, 12)
    recipe = Recipe(sigma=0.1, steps=2, batch=32, lr=0.01)
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    first, other = (quantize(small_classifier(), bits, images, sigma=0.1) for bits in (4, 3))
    record = train(first, pixels, labels, recipe, checkpoint=tmp_path / "c.safetensors", compiled=False)
    assert record["policy"] == {name: str(bits) for name, bits in first.policy.items()}
    before = other.policy
    with pytest.raises(MismatchError, match=r"another run \(policy\..*w4a4.* there, .*w3a3.* here"):
        train(other, pixels, labels, recipe, checkpoint=tmp_path / "c.safetensors", compiled=False)
    assert other.policy == before


class Unusual(nn.Module):
    """A module with two names, a view that only contiguous images allow, and two heads in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.net = nn.Sequential(self.stem, nn.ReLU())
        self.head, self.other = nn.Linear(256, 4), nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.net(x)
        x = x.view(x.size(0), -1)
        return (self.head(x), self.other(x)) if self.training else self.head(x)


def test_unusual_networks_are_trained_too(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    model = Classifier(Unusual(), num_classes=4, input_shape=(3, 8, 8))
    before = model.module.stem.weight.detach().clone()
    train(model, *data, RECIPE, compiled=False, checkpoint=tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").exists()
    assert not torch.equal(model.module.stem.weight, before)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor | str:
        return "no logits" if self.training else self.head(x.flatten(1))


def test_what_is_no_logits_in_training_mode_is_named(data: tuple[Tensor, Tensor]) -> None:
    model = Classifier(Words(), num_classes=4, input_shape=(3, 8, 8))
    with pytest.raises(InputError, match=r"no logits of shape \(16, 4\) in training mode, but str"):
        train(model, *data, RECIPE, compiled=False)
