"""Test suites for code that plugs into arquant. They need pytest."""

from arquant.searching.testing.search import toy_layers, toy_reward, toy_space
from arquant.searching.testing.strategies import StrategyConformance

__all__ = ["StrategyConformance", "toy_layers", "toy_reward", "toy_space"]
