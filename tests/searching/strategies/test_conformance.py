"""Every strategy keeps the promises of the protocol, the documented one too; `ilp`, which needs a file, in its own tests."""

import re
from pathlib import Path

import pytest

from arquant.searching.method import BUILT_IN
from arquant.searching.testing import StrategyConformance

STRATEGIES = {method.strategy.name: method.strategy for method in BUILT_IN}
SMALL = {"hidden": 16, "batch": 16, "episodes": 60, "steps": 1, "draws": 2}


def factory_of(name: str):
    strategy = STRATEGIES[name]
    small = {option: value for option, value in SMALL.items() if hasattr(strategy.defaults, option)}
    return lambda space, seed=0, options=None: strategy(space, seed, {**small, **(options or {})})


class TestEveryStrategy(StrategyConformance):
    @pytest.fixture(params=sorted(set(STRATEGIES) - {"ilp"}))
    def strategy_factory(self, request):
        return factory_of(request.param)


class TestTheDocumentedStrategy(StrategyConformance):
    @pytest.fixture
    def strategy_factory(self):
        page = (Path(__file__).parents[3] / "docs/strategies.md").read_text()
        names = {"__name__": "strategies"}  # as tests/test_documents.py runs it: a name is registered from one place
        exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
        return names["WeightRange"]
