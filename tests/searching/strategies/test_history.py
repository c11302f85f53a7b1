from arquant.searching.strategies.history import History
from arquant.searching.testing import toy_space


def test_order_failures_and_repetitions():
    space = toy_space()
    a, b, c = (space.uniform(pair) for pair in space.uniform_pairs)
    history = History(space)
    for policy, reward in ((a, 0.3), (b, None), (a, 0.3), (a, 0.4), (b, None)):
        history.add(policy, reward)
    assert [(bits.tolist(), reward) for bits, reward in history] == [
        (space.bits(a).tolist(), 0.3),
        (space.bits(a).tolist(), 0.4),
    ]
    assert a in history
    assert b in history
    assert c not in history
    assert history.untried_uniform() == c


def test_round_trip():
    space = toy_space()
    history, other = History(space), History(space)
    assert history.arrays()["history.bits"].shape == (0, len(space.searched), 2)
    for pair, reward in zip(space.uniform_pairs, (0.1, None, -2.0), strict=True):
        history.add(space.uniform(pair), reward)
    other.load(history.arrays())
    assert [(bits.tolist(), reward) for bits, reward in other] == [(bits.tolist(), reward) for bits, reward in history]
    assert other.untried_uniform() is None
