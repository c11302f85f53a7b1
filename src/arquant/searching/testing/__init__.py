"""Test code that plugs into a search: the conformance suite of strategies, and a toy to try them on. It needs pytest."""

from arquant.searching.testing.search import toy_classifier, toy_context, toy_layers, toy_reward, toy_space
from arquant.searching.testing.strategies import StrategyConformance

__all__ = ["StrategyConformance", "toy_classifier", "toy_context", "toy_layers", "toy_reward", "toy_space"]
