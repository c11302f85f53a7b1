"""Layers of the networks we define, found once per test session."""

from functools import cache

from arquant.loading.models import load_model
from arquant.models.tracing.layers import Layers, find_layers


@cache
def layers_of(name: str) -> Layers:
    return find_layers(load_model(name, weights_required=False))
