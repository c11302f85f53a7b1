"""The strategy of a table: its one policy, and the file of sensitivities."""

import json

import numpy as np
import pytest

from arquant.base.errors import FileFormatError, InputError
from arquant.searching.strategies.ilp import Ilp, read_sensitivities
from arquant.searching.testing import StrategyConformance, toy_layers, toy_space

WIDTHS = range(1, 9)


def table(layers=None, change=lambda layers: None):
    rng = np.random.default_rng(0)
    names = (layers or toy_layers()).names
    rows = {
        name: {kind: {str(b): float(rng.lognormal()) * 4.0**-b for b in WIDTHS} for kind in ("w", "a")}
        for name in names
    }
    change(rows)
    return {"schema": "arquant.sensitivity", "version": 1, "layers": rows}


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table()))
    return path


class TestIlp(StrategyConformance):
    @pytest.fixture
    def strategy_factory(self, written):
        return lambda space, seed=0, options=None: Ilp(space, seed, {"table": str(written), **(options or {})})


def test_one_policy_and_then_no_more(written):
    strategy = Ilp(toy_space(), 0, {"table": str(written)})
    assert not strategy.finished
    asked = strategy.ask(3)
    assert len(asked) == 1
    strategy.tell(asked[0], 0.1)
    assert strategy.finished
    assert strategy.ask() == asked


def test_the_factor_shifts_bits_to_the_weights(written):
    space = toy_space()
    few, many = (
        space.bits(Ilp(space, 0, {"table": str(written), "weight_factor": factor}).ask()[0].policy)
        for factor in (0.01, 100)
    )
    assert many[:, 0].sum() > few[:, 0].sum()
    assert many[:, 1].sum() < few[:, 1].sum()


def test_sensitivities_are_read_in_order(written):
    space = toy_space(min_bits=3, max_bits=5)
    values = read_sensitivities(written, space)
    assert values.weights.shape == values.activations.shape == (5, 3)
    assert values.activations[1, 2] == table()["layers"]["conv2"]["a"]["5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no valid JSON"),
        ("[]", 'it needs "schema": "arquant.sensitivity"'),
        (json.dumps({**table(), "version": 2}), "version 2 of arquant.sensitivity"),
        (json.dumps({**table(), "layers": 3}), "layer 'conv1' needs a finite number for 'w' at 2 bits"),
        (json.dumps(table(change=lambda rows: rows.pop("conv3"))), "layer 'conv3' needs a finite number"),
        (json.dumps(table(change=lambda rows: rows["conv3"]["a"].pop("7"))), "for 'a' at 7 bits"),
        (json.dumps(table(change=lambda rows: rows["conv2"]["w"].update({"4": "x"}))), "for 'w' at 4 bits"),
        (json.dumps(table(change=lambda rows: rows["conv2"]["w"].update({"4": float("nan")}))), "for 'w' at 4 bits"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(FileFormatError) as caught:
        read_sensitivities(path, toy_space())
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_sensitivities(tmp_path / "none.json", toy_space())
    with pytest.raises(InputError, match="needs the option 'table'"):
        Ilp(toy_space())
