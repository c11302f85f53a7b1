"""Every registered strategy keeps the promises of the protocol; `ilp`, which needs a file, in its own tests."""

import pytest

from arquant.searching.method import BUILT_IN
from arquant.searching.testing import StrategyConformance

STRATEGIES = {method.strategy.name: method.strategy for method in BUILT_IN}
SMALL = {"hidden": 16, "batch": 16, "episodes": 60}


def factory_of(name: str):
    strategy = STRATEGIES[name]
    if not hasattr(strategy.defaults, "hidden"):
        return strategy
    return lambda space, seed=0, options=None: strategy(space, seed, {**SMALL, **(options or {})})


class TestEveryStrategy(StrategyConformance):
    @pytest.fixture(params=sorted(set(STRATEGIES) - {"ilp"}))
    def strategy_factory(self, request):
        return factory_of(request.param)
