"""Layers of the networks we define, found once per test session."""

from functools import cache

from arquant.layers import Layers, find_layers
from arquant.models.zoo import load_model


@cache
def layers_of(name: str) -> Layers:
    return find_layers(load_model(name, weights_required=False))
