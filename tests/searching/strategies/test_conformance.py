"""Every registered strategy keeps the promises of the protocol; `ilp`, which needs a file, in its own tests."""

import pytest

from arquant.searching.strategy import strategies
from arquant.searching.testing import StrategyConformance

SMALL = {"hidden": 16, "batch": 16, "episodes": 60}


def factory_of(name: str):
    strategy = strategies()[name]
    if not hasattr(strategy.defaults, "hidden"):
        return strategy
    return lambda space, seed=0, options=None: strategy(space, seed, {**SMALL, **(options or {})})


class TestEveryStrategy(StrategyConformance):
    @pytest.fixture(params=sorted(set(strategies()) - {"ilp"}))
    def strategy_factory(self, request):
        return factory_of(request.param)
