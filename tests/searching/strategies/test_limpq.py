"""LIMPQ: steps of all widths learned at once, kept over a kill, and the policy that they make best."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from arquant.base.errors import InputError
from arquant.models.classifier import Classifier
from arquant.quantization.policy import Bits
from arquant.quantization.quantized import quantize
from arquant.quantization.quantizers import ActivationQuantizer
from arquant.searching.strategies import limpq, resumable
from arquant.searching.strategies.importance import Importance
from arquant.searching.strategies.integer_program import least_damage
from arquant.searching.strategies.limpq import Limpq, lsq_bank
from arquant.searching.strategies.resumable import checkpoint_of
from arquant.searching.strategies.step_bank import StepBank, followers
from arquant.searching.testing import toy_context, toy_space
from arquant.training.loop import Diverged
from tests.support.small_search import CLASSES, SHAPE, SIGMA, image_set

OPTIONS = {"steps": 3}


@pytest.fixture
def context(tmp_path):
    return toy_context(toy_space(), tmp_path)


def prepared(context, **options):
    strategy = Limpq(context.space, 0, {**OPTIONS, **options})
    strategy.prepare(context)
    return strategy


def steps_of(context):
    return context.kept("steps", pytest.fail, options={"steps": 3, "lr": 0.01})


def test_the_gradient_of_a_step_is_the_rounding_error_inside_and_the_bound_outside():
    """LSQ: round(x/s) - x/s inside, Q_n or Q_p outside, times 1 / sqrt(count x Q_p)."""
    quantizer = ActivationQuantizer(signed=True, learn="lsq")
    quantizer.set_(3, 1.5)  # integers -3 .. 3, step 0.5
    x = torch.tensor([0.6, -0.2, 4.0, -4.0])
    integers, step = quantizer(x)
    upstream = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    (integers * step).backward(upstream)
    inside = torch.tensor([1 - 1.2, 0 + 0.4, 3.0, -3.0])
    assert float(quantizer.size.grad) == pytest.approx(float((inside * upstream).sum()) / (4 * 3) ** 0.5, rel=1e-5)


def test_the_first_steps_are_limpqs(context):
    bank = lsq_bank(context)
    found = bank.importance()
    weight = context.classifier.module.conv1.weight.detach()
    reach = max(
        abs(weight.mean() - 3 * weight.std(unbiased=False)), abs(weight.mean() + 3 * weight.std(unbiased=False))
    )
    assert found.weights[0] == pytest.approx([float(reach) / 2 ** (bits - 1) for bits in range(2, 9)], rel=1e-5)
    mean = float(bank.network.statistics["conv1", "a"].values.abs().mean())
    assert found.activations[0] == pytest.approx([2 * mean / (2**bits - 1) ** 0.5 for bits in range(2, 9)], rel=1e-5)


def test_every_width_has_steps_of_its_own(context):
    bank = lsq_bank(context)
    images = torch.rand(4, *context.classifier.input_shape, generator=torch.Generator().manual_seed(0))
    before = bank.importance()
    three = dict.fromkeys(bank.layers, Bits(3, 3))
    bank.use({**three, "conv2": Bits(2, 5)})
    assert bank.network.policy["conv2"] == Bits(2, 5)
    assert bank.network.policy["conv1"] == Bits(3, 3)
    bank.network(images).square().sum().backward()
    graded = [step.grad is not None for step in bank.steps]
    assert sum(graded) == 2 * len(bank.layers)
    with torch.no_grad():
        for step in bank.steps:
            step -= 0.0 if step.grad is None else 0.01
    changed = np.stack([before.weights - bank.importance().weights, before.activations - bank.importance().activations])
    at = list(bank.layers).index("conv2")
    wanted = np.zeros_like(changed)
    wanted[:, :, 1] = 0.01
    wanted[:, at] = 0
    wanted[0, at, 0] = wanted[1, at, 3] = 0.01
    assert changed == pytest.approx(wanted, abs=1e-6)


def test_a_batchnorm_follows_the_layer_before_it():
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip
    classifier = Classifier(module, num_classes=CLASSES, input_shape=SHAPE).eval()
    network = quantize(classifier, 3, image_set(16, 1), sigma=SIGMA, learn="lsq")
    assert [(name, norm.affine) for norm, name in followers(network, ("3", "6"))] == [("3", True)]
    bank = StepBank(network, ("3", "6"), (2, 3, 4))
    scales = []
    for w in (2, 3):
        bank.use({"3": Bits(w, 4), "6": Bits(4, 4)})
        scales.append(network.module[4].weight)
    assert scales[0] is not scales[1]
    assert network.module[4].weight in list(bank.norms)[2:4]
    assert len(bank.norms) == 6


def test_learning_moves_the_steps_and_the_policy_is_the_best_for_them(context):
    strategy = prepared(context)
    steps, first = steps_of(context), lsq_bank(context).importance()
    assert not np.allclose(steps["weights"], first.weights, rtol=1e-4)
    assert not np.allclose(steps["activations"], first.activations, rtol=1e-4)
    damage = Importance(steps["weights"], steps["activations"]).monotone().damage(2.0)
    assert strategy.ask()[0].policy == least_damage(context.space, damage)
    assert (context.folder / "sensitivity.json").is_file()


def test_a_killed_training_goes_on_from_its_checkpoint(context, tmp_path, monkeypatch):
    prepared(context)
    whole = steps_of(context)
    again = replace(context, folder=tmp_path / "killed")
    monkeypatch.setattr(resumable, "CHECKPOINT_SECONDS", 0.0)
    counted, passes = limpq.logits_of, []

    def interrupted(*args, **more):
        passes.append(1)
        if len(passes) == 13:  # in the second step: a step has eight passes
            raise KeyboardInterrupt
        return counted(*args, **more)

    monkeypatch.setattr(limpq, "logits_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared(again)
    assert checkpoint_of(again, "steps").is_file()
    prepared(again)
    assert len(passes) == 13 + 16
    found = steps_of(again)
    assert all((found[name] == whole[name]).all() for name in whole)
    assert not checkpoint_of(again, "steps").exists()


def test_a_checkpoint_of_another_training_is_not_taken_up(context):
    checkpoint_of(context, "steps").write_bytes(b"something else")
    prepared(context)


def test_fewer_images_than_a_batch_are_enough(context):
    """A candidate's batch holds two copies of each image; here there is one of each."""
    few = replace(context, recipe=replace(context.recipe, batch=64, consistency=1.0))
    assert len(few.calibrate.images) == 32
    prepared(few)


def test_another_factor_trains_nothing_anew(context):
    prepared(context)
    context.work.clear()
    few, many = (
        context.space.bits(prepared(context, weight_factor=factor).ask()[0].policy) for factor in (0.01, 100.0)
    )
    assert context.work == []
    assert many[:, 0].sum() > few[:, 0].sum()


def test_what_it_cannot_do_is_refused(context):
    with pytest.raises(InputError, match="min_bits=1"):
        Limpq(toy_space(min_bits=1))
    for wrong in ({"steps": 0}, {"lr": 0.0}, {"weight_factor": -1.0}):
        with pytest.raises(InputError, match="limpq needs"):
            Limpq(toy_space(), 0, wrong)
    with pytest.raises(Diverged, match="use a smaller lr"):
        prepared(context, lr=1e30)
