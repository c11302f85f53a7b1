"""HAWQ: curvature times rounding error, kept over a kill, and the policy that they make best."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from arquant.base.errors import InputError
from arquant.searching.strategies import hawq
from arquant.searching.strategies.hawq import Hawq, floored, rounding_error, same_input
from arquant.searching.strategies.ilp import read_sensitivities
from arquant.searching.testing import toy_context, toy_space
from tests.support.networks import layers_of


@pytest.fixture
def context(tmp_path):
    return toy_context(toy_space(), tmp_path)


def prepared(context, **options):
    strategy = Hawq(context.space, 0, {"draws": 3, "batch": 16, **options})
    strategy.prepare(context)
    return strategy


def test_the_rounding_error_is_that_of_each_output_channel():
    weight = torch.tensor([[[[1.0]], [[0.4]]], [[[10.0]], [[4.0]]]])
    assert rounding_error(weight, 2) == pytest.approx(0.4**2 + 4.0**2), "ternary: 0.4 of 1 is rounded to 0"
    third = 0.4 - 1 / 3
    assert rounding_error(weight, 3) == pytest.approx(third**2 + (10 * third) ** 2)
    assert rounding_error(torch.zeros(2, 3), 4) == 0.0


def test_negative_traces_are_raised():
    assert floored(np.array([2.0, -5.0, 6.0, 1.0])).tolist() == [2.0, 0.003, 6.0, 1.0]
    assert floored(np.array([-1.0, -2.0])).tolist() == [1.0, 1.0]


def test_sensitivities_are_average_trace_times_error(context):
    prepared(context)
    draws = context.kept("traces-0", pytest.fail, options={"first": 0, "last": 3, "batch": 16})["draws"]
    found = read_sensitivities(context.folder / "sensitivity.json", context.space)
    weight = context.classifier.module.conv3.weight.detach()
    average = floored(draws.mean(axis=0) / [context.space.layers[name].weights for name in context.space.searched])[2]
    wanted = [average * rounding_error(weight, bits) for bits in range(2, 9)]
    assert found.weights[2] == pytest.approx(wanted)
    assert not found.activations.any()


def test_weights_and_input_of_a_layer_have_the_same_width(context):
    bits = context.space.bits(prepared(context).ask()[0].policy)
    assert (bits[:, 0] == bits[:, 1]).all()
    assert len(np.unique(bits)) > 1, "the policy is not uniform"


def test_a_layer_of_higher_curvature_gets_more_bits(context, monkeypatch):
    def bits_with(factor):
        curved = np.array([1.0, 1.0, factor, 1.0, 1.0])
        monkeypatch.setattr(hawq, "trace_draw", lambda loss, blocks, generator: curved)
        fresh = replace(context, folder=context.folder / str(factor))
        return context.space.bits(prepared(fresh).ask()[0].policy)[2, 0]

    assert bits_with(1e4) > bits_with(1e-2)


def test_shortcuts_are_tied_to_the_branch_that_reads_the_same_input():
    space = toy_space(layers=layers_of("resnet20"))
    named = [[space.searched[place] for place in group] for group in same_input(space)]
    assert [set(group) for group in named] == [
        {f"layer{n}.0.conv1", f"layer{n}.0.{shortcut}"} for n, shortcut in ((2, "downsample.0"), (3, "downsample.0"))
    ]


def test_tied_layers_get_the_same_bits(context):
    assert len(same_input(context.space)[0]) == 5, "the layers of the toy all claim to read one input"
    bits = context.space.bits(prepared(context, tie_inputs=True).ask()[0].policy)
    assert (bits == bits[0]).all()


def test_a_killed_estimate_goes_on_where_it_was(context, tmp_path, monkeypatch):
    monkeypatch.setattr(hawq, "LEG", 1)
    whole = prepared(context).ask()
    again = replace(context, folder=tmp_path / "killed", work=[])
    original, calls = hawq.trace_draw, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(hawq, "trace_draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared(again)
    assert prepared(again).ask() == whole
    assert len(calls) == 4
    assert again.work == ["traces-0", "traces-1", "traces-2", "traces-2"]
    table = (context.folder / "sensitivity.json").read_text()
    assert (again.folder / "sensitivity.json").read_text() == table


def test_what_it_cannot_do_is_refused():
    with pytest.raises(InputError, match="min_bits=1"):
        Hawq(toy_space(min_bits=1))
    for wrong in ({"draws": 0}, {"batch": 1}):
        with pytest.raises(InputError, match="hawq needs"):
            Hawq(toy_space(), 0, wrong)
    attention = toy_space(layers=layers_of("vit_tiny"))
    with pytest.raises(InputError, match=r"layer '.*#qk' has none .*--keep '.*#qk=8'"):
        Hawq(attention)
    Hawq(toy_space(layers=layers_of("vit_tiny"), keep={"*#??": 8}))
