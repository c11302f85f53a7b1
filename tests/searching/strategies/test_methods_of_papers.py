"""The methods of other papers through a whole search: one policy within the budget, also after a kill in `prepare`."""

import json

import pytest

from arquant.base.errors import InputError, Interrupted
from arquant.quantization.policy import Policy
from arquant.searching.strategies import limpq
from tests.searching.test_search import candidates_of, load_artifact, result_of, run_search
from tests.support.small_search import quick_engines, small_classifier, small_space

PREPARING = {"limpq": {"steps": 2}, "hawq": {"draws": 2, "batch": 16}, "nipq": {"steps": 2}}
METHODS = {**PREPARING, "pact": {}, "pact-dorefa": {}}


@pytest.fixture(autouse=True)
def _quick_engines():
    with quick_engines():
        yield


def searched(out, name, **changes):
    return run_search(small_classifier(), out, strategy=name, option=METHODS[name], shortlist=1, controls=(), **changes)


@pytest.mark.parametrize("name", METHODS)
def test_a_search_examines_one_policy_and_delivers_it(tmp_path, name):
    summary = searched(tmp_path, name)
    (candidate,) = candidates_of(tmp_path)
    policy = Policy.load(tmp_path / "policy.json")
    assert small_space().contains(policy)
    assert candidate["policy"] == policy.widths()
    assert summary["ended"] == "all policies of the strategy"
    learned = {"pact": "pact", "pact-dorefa": "pact-dorefa"}.get(name, "pact")
    assert load_artifact(tmp_path / "model.safetensors").learn == learned
    if name in ("limpq", "hawq"):
        assert json.loads((tmp_path / "strategy/bops-3bit/sensitivity.json").read_text())["method"] == name


def test_a_kill_in_prepare_changes_nothing(tmp_path, monkeypatch):
    searched(tmp_path / "whole", "limpq")
    original, passes = limpq.logits_of, []

    def killed(*args, **more):
        passes.append(1)
        if len(passes) == 11:
            raise KeyboardInterrupt
        return original(*args, **more)

    monkeypatch.setattr(limpq, "logits_of", killed)
    with pytest.raises(Interrupted):
        searched(tmp_path / "killed", "limpq")
    assert not candidates_of(tmp_path / "killed")
    searched(tmp_path / "killed", "limpq")
    assert result_of(tmp_path / "killed") == result_of(tmp_path / "whole")


@pytest.mark.parametrize("name", METHODS)
def test_what_cannot_be_done_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(InputError, match="cannot be met"):
        searched(tmp_path / "run", name, budget="bops<=1.5bit")
    if name in PREPARING:
        with pytest.raises(InputError, match="use min_bits 2"):
            searched(tmp_path / "run", name, min_bits=1)
    assert not (tmp_path / "run").exists()
