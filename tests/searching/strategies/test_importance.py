"""Tables of importance: how they become damage, and how they are made monotone."""

import numpy as np
import pytest

from arquant.searching.strategies.ilp import read_sensitivities
from arquant.searching.strategies.importance import Importance, falling
from arquant.searching.testing import toy_layers, toy_space


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([3.0, 2.0, 1.0], [3.0, 2.0, 1.0]),
        ([3.0, 1.0, 2.0], [3.0, 1.5, 1.5]),
        ([1.0, 2.0, 6.0], [3.0, 3.0, 3.0]),
        ([5.0, 1.0, 1.0, 4.0, 0.0], [5.0, 2.0, 2.0, 2.0, 0.0]),
    ],
)
def test_the_nearest_falling_sequence(values, wanted):
    assert falling(np.array(values)).tolist() == wanted


def test_no_falling_sequence_is_nearer():
    rng = np.random.default_rng(0)
    values = rng.normal(size=6)
    found = falling(values)
    others = -np.sort(-(found + rng.normal(0, 0.3, (2000, 6))), axis=1)
    assert (np.diff(found) <= 0).all()
    assert ((others - values) ** 2).sum(axis=1).min() > ((found - values) ** 2).sum()


def test_damage_is_the_weighted_sum_of_both():
    found = Importance(np.array([[4.0, 1.0]]), np.array([[10.0, 20.0]]))
    assert found.damage(2.0).tolist() == [[[18.0, 28.0], [12.0, 22.0]]]
    assert found.monotone().activations.tolist() == [[15.0, 15.0]]


def test_a_saved_table_is_one_that_ilp_reads(tmp_path):
    space = toy_space(layers=toy_layers(3), max_bits=3)
    found = Importance(np.array([[4.0, 1.0], [3.0, 2.0]]), np.array([[8.0, 7.0], [6.0, 5.0]]))
    found.save(tmp_path / "table.json", space, {"method": "limpq"})
    again = read_sensitivities(tmp_path / "table.json", space)
    assert (again.weights == found.weights).all()
    assert (again.activations == found.activations).all()
