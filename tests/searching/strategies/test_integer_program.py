"""The integer program: exact against enumeration, within every budget, with forbidden pairs and ties."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.searching.strategies.integer_program import least_damage
from arquant.searching.testing import toy_layers, toy_space
from tests.support.networks import layers_of


def sizes(space):
    return len(space.searched), space.max_bits - space.min_bits + 1


def total_of(damage, bits):
    return sum(damage[i, w - 2, a - 2] for i, (w, a) in enumerate(bits))


def best_of_all(space, damage, allowed=lambda bits: True):
    """Return the least damage of all policies that are there."""
    layers, count = sizes(space)
    best = np.inf
    for pairs in itertools.product(range(count * count), repeat=layers):
        bits = np.stack(np.divmod(np.array(pairs), count), axis=1) + 2
        if allowed(bits) and space.allows(bits):
            best = min(best, total_of(damage, bits))
    return best


@pytest.mark.parametrize("budget", ["bops<=3bit", "bytes<=3bit", "bops<=3bit,bytes<=2.6bit"])
@pytest.mark.parametrize("seed", range(3))
def test_no_policy_does_less_damage(budget, seed):
    space = toy_space(budget, layers=toy_layers(4), max_bits=4)
    layers, count = sizes(space)
    damage = np.random.default_rng(seed).lognormal(size=(layers, count, count))
    found = space.bits(least_damage(space, damage))
    assert total_of(damage, found) == pytest.approx(best_of_all(space, damage), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_forbidden_pairs_and_ties_are_respected(seed):
    space = toy_space("bops<=3bit", layers=toy_layers(4), max_bits=4)
    layers, count = sizes(space)
    damage = np.random.default_rng(seed).lognormal(size=(layers, count, count))
    damage[:, ~np.eye(count, dtype=bool)] = np.inf
    diagonal = space.bits(least_damage(space, damage))
    assert (diagonal[:, 0] == diagonal[:, 1]).all()
    assert total_of(damage, diagonal) == pytest.approx(best_of_all(space, damage), rel=1e-5)
    tied = space.bits(least_damage(space, damage, [(0, 2)]))
    assert (tied[0] == tied[2]).all()
    wanted = best_of_all(space, damage, lambda bits: (bits[0] == bits[2]).all())
    assert total_of(damage, tied) == pytest.approx(wanted, rel=1e-5)


def test_costs_that_the_solver_does_not_see_do_not_hide_a_policy():
    layers = toy_layers(6)
    tiny = [replace(layer, macs=1, macs_paper=1) for layer in layers.layers[1:3]]
    uneven = replace(layers, layers=(layers.layers[0], *tiny, *layers.layers[3:]))
    space = toy_space("bops<=3bit", layers=uneven, min_bits=3)
    damage = np.random.default_rng(0).lognormal(size=(*sizes(space), sizes(space)[1]))
    assert space.contains(least_damage(space, damage))
    tied = space.bits(least_damage(space, damage, [(0, 1, 2)]))
    assert space.contains(space.policy(tied))
    assert (tied[:3] == tied[0]).all()


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


@pytest.mark.parametrize("damage", [np.zeros((5, 7, 6)), np.full((5, 7, 7), np.nan), np.full((5, 7, 7), np.inf)])
def test_damage_of_another_shape_is_refused(damage):
    with pytest.raises(InputError, match=r"damage must be finite and of shape \(5, 7, 7\)"):
        least_damage(toy_space(), damage)
