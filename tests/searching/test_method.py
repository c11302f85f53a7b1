"""Methods: what `--strategy` names, and what a search does with each of them."""

from pathlib import Path

import pytest

from arquant.base.errors import InputError
from arquant.quantization.policy import Policy
from arquant.searching import method as module
from arquant.searching import strategy as strategies
from arquant.searching.method import BUILT_IN, Method, find_method, methods, register_method
from arquant.searching.strategies.ddpg import ArqPaper
from arquant.searching.strategies.evolve import Evolve
from arquant.searching.strategy import Strategy, register
from arquant.searching.testing import toy_space


@pytest.fixture(autouse=True)
def own_registries(monkeypatch):
    """Leave nothing behind."""
    monkeypatch.setattr(strategies, "_registry", dict(strategies._registry))
    monkeypatch.setattr(module, "_methods", dict(module._methods))


class Mine(Strategy):
    """Takes three bits.

    Always.
    """

    def _propose(self) -> Policy:
        return self.space.uniform(3)


@pytest.mark.parametrize(
    ("name", "reward", "racing", "shortlist", "quantizer", "seeding"),
    [
        ("arq", "acr-cv", False, 1, None, True),
        ("arq-ddpg", "acr-cv", True, 3, None, True),
        ("arq-paper", "irs", False, 1, None, False),
        ("haq", "val", False, 1, None, False),
        ("haq-kmeans", "val", False, 1, "kmeans", False),
        ("additive", "acr-cv", True, 3, None, True),
        ("ilp", "acr-cv", True, 3, None, True),
        ("evolve", "acr-cv", True, 3, None, True),
        ("random", "acr-cv", True, 3, None, True),
        ("uniform", "acr-cv", False, 1, None, True),
        ("pact", "acr-cv", True, 3, "pact", True),
        ("pact-dorefa", "acr-cv", True, 3, "pact-dorefa", True),
        ("limpq", "acr-cv", True, 1, None, True),
        ("nipq", "acr-cv", True, 1, None, True),
        ("hawq", "acr-cv", True, 1, None, True),
    ],
)
def test_what_the_methods_of_arquant_declare(name, reward, racing, shortlist, quantizer, seeding):
    found = find_method(name)
    assert found.name == name
    assert (found.reward, found.racing, found.shortlist, found.quantizer) == (reward, racing, shortlist, quantizer)
    assert found.strategy.seeding is seeding
    assert not found.strategy_options


def test_haq_is_the_papers_agent_with_another_reward():
    assert find_method("haq").strategy is find_method("arq-paper").strategy is ArqPaper


def test_every_method_says_what_it_is_and_where_it_comes_from():
    assert all(method.summary and method.source for method in methods().values())


@pytest.mark.parametrize(
    ("name", "hint"), [("arq_paper", "did you mean arq-paper"), ("evolv", "did you mean evolve"), ("zzz", "known are")]
)
def test_an_unknown_name_is_refused_with_a_hint(name, hint):
    with pytest.raises(InputError, match=f"unknown strategy '{name}'; {hint}"):
        find_method(name)


def test_a_registered_strategy_is_a_method_with_the_defaults():
    register("mine")(Mine)
    found = methods()["mine"]
    assert found == Method("mine", Mine, "Takes three bits.", __name__)
    assert found.strategy(toy_space()).ask()[0].policy == toy_space().uniform(3)


def test_a_method_of_a_registered_strategy_replaces_the_defaults():
    register("mine")(Mine)
    changed = Method("mine", Mine, "takes three bits", "us", "val", native={"learn": "lsq"}, strategy_options={})
    register_method(changed)
    assert find_method("mine") is changed
    register_method(changed)  # a module may be imported again


def test_a_name_is_taken_once():
    with pytest.raises(InputError, match=r"'evolve' is already there, with strategy .*Evolve"):
        register_method(Method("evolve", Mine, "", ""))
    register_method(Method("other", Evolve, "", ""))
    with pytest.raises(InputError, match="'other' is already there"):
        register_method(Method("other", Mine, "", ""))
    register("haq")(type("Haq", (Mine,), {}))
    with pytest.raises(InputError, match="has the name of the method 'haq'"):
        find_method("evolve")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"native": {"learns": "lsq"}}, "no option 'learns'; did you mean learn"),
        ({"shortlist": 0}, "at least 1, got 0"),
    ],
)
def test_impossible_methods_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Method("mine", Mine, "", "", **fields)


def test_the_page_of_strategies_has_a_row_for_every_method():
    page = (Path(__file__).parents[2] / "docs/strategies.md").read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| `")]
    assert {f"`{method.name}`" for method in BUILT_IN} <= set(rows)
