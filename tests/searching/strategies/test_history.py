from arquant.searching.strategies.history import History
from arquant.searching.strategies.random_search import RandomSearch
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


def test_what_is_in_flight_counts_as_tried():
    space = toy_space()
    strategy = RandomSearch(space)
    asked = strategy.ask(4)
    assert all(strategy._tried(proposal.policy) for proposal in asked)
    pairs = [space.uniform(pair) for pair in space.uniform_pairs]
    assert strategy._untried_uniform() == pairs[0]
    strategy.tell(pairs[0], None)
    assert strategy._untried_uniform() == pairs[1]
    for pair in pairs:
        strategy.tell(pair, 0.1)
    assert strategy._untried_uniform() is None
