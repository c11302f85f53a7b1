"""NIPQ: widths learned by gradients under a cost penalty, kept over a kill, fitted to the budget."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from arquant.base.errors import InputError
from arquant.quantization.noise_proxy import NoiseProxy
from arquant.searching.strategies import nipq, resumable
from arquant.searching.strategies.nipq import Nipq, Usage, widths_of, with_proxies
from arquant.searching.strategies.resumable import checkpoint_of
from arquant.searching.testing import toy_context, toy_space

OPTIONS = {"steps": 3}


@pytest.fixture
def context(tmp_path):
    return toy_context(toy_space(), tmp_path)


def prepared(context, **options):
    strategy = Nipq(context.space, 0, {**OPTIONS, **options})
    strategy.prepare(context)
    return strategy


def widths_in(strategy, context):
    facts = {**vars(strategy.options), "budget": context.space.budget.text}
    return context.kept("widths", pytest.fail, options=facts)["widths"]


@pytest.mark.parametrize("budget", ["bops<=3bit", "bytes<=3bit", "bops<=3bit,bytes<=2.3bit", "bops@paper<=4bit"])
def test_usage_of_whole_widths_is_that_of_the_policy(budget):
    space = toy_space(budget)
    bits = np.random.default_rng(0).integers(2, 9, (len(space.searched), 2))
    shares = space.costs[:, np.arange(len(bits)), bits[:, 0] - 1, bits[:, 1] - 1].sum(axis=1)
    wanted = float((shares / space.free_amounts).max())
    assert float(Usage(space)(torch.from_numpy(bits).float())) == pytest.approx(wanted, rel=1e-5)


def test_usage_grows_with_weight_and_activation_bits_as_bit_operations_do():
    """The released code multiplies by the constant 32 in place of the activations' bits: no gradient reached them."""
    space = toy_space("bops<=3bit")
    proxies = [tuple(NoiseProxy(1.0, signed=True, low=2, high=8) for _ in range(2)) for _ in space.searched]
    with torch.no_grad():
        proxies[0][0].width.fill_(-1.3)
    widths = widths_of(proxies)
    Usage(space)(widths).backward()
    macs = [space.layers[name].macs for name in space.searched]
    for (w, a), count in zip(proxies, macs, strict=True):
        for mine, other in ((w, a), (a, w)):
            sigmoid = torch.sigmoid(mine.width.detach())
            slope = 6 * float(sigmoid * (1 - sigmoid))
            wanted = count * float(other.bits.detach()) * slope / float(space.free_amounts[0])
            assert float(mine.width.grad) == pytest.approx(wanted, rel=1e-4)
            assert float(mine.width.grad) > 0


def test_the_tightest_of_several_limits_counts():
    space = toy_space("bops<=3bit,bytes<=2bit")
    widths = torch.full((len(space.searched), 2), 2.5, requires_grad=True)
    Usage(space)(widths).backward()
    assert (widths.grad[:, 0] > 0).all()
    assert not widths.grad[:, 1].any(), "bytes do not depend on activations"


def test_proxies_take_the_place_of_the_searched_quantizers_only(context):
    network, proxies = with_proxies(context)
    assert len(proxies) == 5
    assert isinstance(network.quantizer("conv3").w, NoiseProxy)
    assert proxies[2] == (network.quantizer("conv3").w, network.quantizer("conv3").a)
    assert [each.signed for each in proxies[0]] == [True, False]
    assert not isinstance(network.quantizer("conv0").a, NoiseProxy)
    calibrated = context.quantized()
    calibrated.set_policy_(context.space.uniform(5))
    wanted = [
        float(calibrated.quantizer("conv1").w.clip.detach()),
        float(calibrated.quantizer("conv1").a.clip.detach()),
    ]
    assert [float(each.clip.detach()) for each in proxies[0]] == pytest.approx(wanted, rel=1e-4)
    assert widths_of(proxies).detach().tolist() == [[5.0, 5.0]] * 5


def test_widths_come_down_to_the_budget_and_differ(context):
    """They begin at 2.8 times the budget."""
    strategy = prepared(context, steps=60)
    widths = widths_in(strategy, context)
    assert float(Usage(context.space)(torch.from_numpy(widths).float())) == pytest.approx(1.0, abs=0.25)
    assert widths.std() > 0.05
    assert strategy.ask()[0].policy == context.space.fit(widths)


def test_a_killed_training_goes_on_from_its_checkpoint(context, tmp_path, monkeypatch):
    whole = widths_in(prepared(context), context)
    again = replace(context, folder=tmp_path / "killed")
    monkeypatch.setattr(resumable, "CHECKPOINT_SECONDS", 0.0)
    original, passes = nipq.logits_of, []

    def interrupted(*args, **more):
        passes.append(1)
        if len(passes) == 3:
            raise KeyboardInterrupt
        return original(*args, **more)

    monkeypatch.setattr(nipq, "logits_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared(again)
    assert checkpoint_of(again, "widths").is_file()
    found = widths_in(prepared(again), again)
    assert len(passes) == 4
    assert (found == whole).all()
    assert not checkpoint_of(again, "widths").exists()


def test_budgets_do_not_share_widths(context):
    prepared(context)
    context.work.clear()
    prepared(replace(context, space=toy_space("bops<=4bit")))
    assert context.work == ["widths"]


def test_what_it_cannot_do_is_refused():
    with pytest.raises(InputError, match="min_bits=1"):
        Nipq(toy_space(min_bits=1))
    for wrong in ({"steps": 0}, {"lr": 0.0}, {"width_lr": 0.0}, {"penalty": -1.0}):
        with pytest.raises(InputError, match="nipq needs"):
            Nipq(toy_space(), 0, wrong)
