"""The integer program: exact against enumeration, within every budget, and its table of sensitivities."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from arquant.base.errors import FileFormatError, InputError
from arquant.searching.strategies.ilp import Ilp, least_damage, read_sensitivities
from arquant.searching.testing import StrategyConformance, toy_layers, toy_space
from tests.support.networks import layers_of

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


def sizes(space):
    return len(space.searched), space.max_bits - space.min_bits + 1


@pytest.mark.parametrize("budget", ["bops<=3bit", "bytes<=3bit", "bops<=3bit,bytes<=2.6bit"])
@pytest.mark.parametrize("seed", range(3))
def test_no_policy_does_less_damage(budget, seed):
    space = toy_space(budget, layers=toy_layers(4), max_bits=4)
    layers, count = sizes(space)
    damage = np.random.default_rng(seed).lognormal(size=(layers, count, count))
    best = np.inf
    for pairs in itertools.product(range(count * count), repeat=layers):
        bits = np.stack(np.divmod(np.array(pairs), count), axis=1) + 2
        if space.allows(bits):
            best = min(best, sum(damage[i, w - 2, a - 2] for i, (w, a) in enumerate(bits)))
    found = space.bits(least_damage(space, damage)) - 2
    assert sum(damage[i, w, a] for i, (w, a) in enumerate(found)) == pytest.approx(best, rel=1e-5)


def test_costs_that_the_solver_does_not_see_do_not_hide_a_policy():
    layers = toy_layers(6)
    tiny = [replace(layer, macs=1, macs_paper=1) for layer in layers.layers[1:3]]
    uneven = replace(layers, layers=(layers.layers[0], *tiny, *layers.layers[3:]))
    space = toy_space("bops<=3bit", layers=uneven, min_bits=3)
    damage = np.random.default_rng(0).lognormal(size=(*sizes(space), sizes(space)[1]))
    assert space.contains(least_damage(space, damage))


def test_it_is_no_worse_than_the_greedy_projection_on_resnet20():
    space = toy_space(layers=layers_of("resnet20"))
    rng = np.random.default_rng(0)
    loss = dict(zip(space.searched, rng.lognormal(size=(len(space.searched), 2)), strict=True))

    def damage(layer, bits):
        w, a = loss.get(layer.name, (0.0, 0.0))
        return float(w * 4.0**-bits.w + a * 4.0**-bits.a)

    def total(policy):
        return sum(damage(space.layers[name], bits) for name, bits in policy.items())

    errors = 4.0 ** -np.arange(2.0, 9.0)
    tables = np.stack([w * errors[:, None] + a * errors[None, :] for w, a in loss.values()])
    exact = total(least_damage(space, tables))
    greedy = total(space.budget.project_greedy(space.uniform(8), damage))
    assert 0.98 * greedy < exact <= greedy * (1 + 1e-5)


def test_nothing_is_printed(capfd):
    space = toy_space("bops<=2.7bit")
    layers, count = sizes(space)
    for seed in range(10):
        least_damage(space, np.random.default_rng(seed).lognormal(size=(layers, count, count)))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("damage", [np.zeros((5, 7, 6)), np.full((5, 7, 7), np.nan)])
def test_damage_of_another_shape_is_refused(damage):
    with pytest.raises(InputError, match=r"damage must be finite and of shape \(5, 7, 7\)"):
        least_damage(toy_space(), damage)


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
    assert values.shape == (5, 2, 3)
    assert values[1, 1, 2] == table()["layers"]["conv2"]["a"]["5"]


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
