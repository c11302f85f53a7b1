"""Layers are grouped by what the network shows, not by their names."""

from collections import defaultdict

import pytest

from arquant.loading.models import load_model
from arquant.models.tracing.layers import find_layers
from arquant.searching.strategies.groups import group_layers


def grouped(name, *, most=6, **options):
    """The groups of one of our networks, without its first and last layer: the names in each."""
    layers = list(find_layers(load_model(name, weights_required=False, **options)))[1:-1]
    found = defaultdict(list)
    for label, layer in zip(group_layers(layers, most), layers, strict=True):
        found[int(label)].append(layer)
    return [found[number] for number in range(len(found))]


def test_resnet20_has_its_three_stages():
    groups = grouped("resnet20")
    assert [{layer.name.split(".")[0] for layer in group} for group in groups] == [{"layer1"}, {"layer2"}, {"layer3"}]


def test_a_transformer_is_cut_by_depth_and_attention_is_apart():
    groups = grouped("vit_tiny")
    assert 3 < len(groups) <= 6
    kinds = [{layer.kind for layer in group} for group in groups]
    assert all(len(kind) == 1 for kind in kinds)
    assert kinds.count({"linear"}) == 3


def test_depthwise_layers_are_apart_from_dense_ones():
    groups = grouped("mobilenetv2", input_shape=(3, 96, 96))
    assert len(groups) == 6
    assert all(len({layer.depthwise for layer in group}) == 1 for group in groups)
    assert {layer.depthwise for group in groups for layer in group} == {True, False}


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_there_are_no_more_groups_than_asked_for(most):
    groups = grouped("resnet20", most=most)
    assert len(groups) == min(most, 3)
    assert sum(map(len, groups)) == 20
