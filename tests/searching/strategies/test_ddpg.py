"""The agent: its state, actions, schedule and learning, as the paper and HAQ state them; and what `arq` does instead."""

import numpy as np
import pytest
import torch
from scipy.stats import truncnorm

from arquant.base.errors import InputError
from arquant.base.threads import torch_threads
from arquant.quantization.policy import Bits
from arquant.searching.strategies.ddpg import Agent, ArqDdpg, ArqPaper, Config, Replay, layer_facts, truncated_normal
from arquant.searching.testing import toy_layers, toy_reward, toy_space

TINY = {"hidden": 16, "batch": 16, "episodes": 60}
SPACE = toy_space()
LAYERS = len(SPACE.layers)
SEARCHED = len(SPACE.searched)


def tell(strategy, episodes, reward=None):
    reward = reward or toy_reward(strategy.space)
    policies = []
    for _ in range(episodes):
        policies.append(strategy.ask()[0].policy)
        strategy.tell(policies[-1], reward(policies[-1]))
    return policies


def weights(strategy):
    networks = (strategy._agent.actor, strategy._agent.critic)
    return [parameter.detach().clone() for network in networks for parameter in network.parameters()]


# State and actions


def test_the_facts_of_a_layer():
    facts = layer_facts(toy_layers().layers)
    assert facts.shape == (2 * LAYERS, 9)
    assert facts[:, 8].tolist() == [0, 1] * LAYERS
    assert (facts[0::2, :8] == facts[1::2, :8]).all()
    conv2 = dict(
        zip(("index", "in", "out", "kernel", "stride", "feature", "weights", "depthwise"), facts[4], strict=False)
    )
    assert conv2 == pytest.approx(
        {
            "index": 2 / 6,
            "in": 13 / 29,
            "out": 8 / 24,
            "kernel": 1.0,
            "stride": 0.5,
            "feature": (64 - 16) / (256 - 16),
            "weights": 0.0,
            "depthwise": 1.0,
        },
        abs=1e-2,
    )


def test_facts_that_are_constant_stay_as_they_are():
    facts = layer_facts(toy_layers().layers[4:6])
    assert facts[0, 3] == facts[2, 3] == 3.0


def test_ten_numbers_and_the_previous_action_in_bits():
    strategy = ArqPaper(SPACE)
    actions = np.linspace(0, 1, 2 * LAYERS, dtype=np.float32)
    states = strategy._states(actions)
    assert states.shape == (2 * LAYERS, 10)
    assert states[0, 9] == 1.0
    assert states[1:, 9] * 8 == pytest.approx(strategy._bits(actions)[:-1])


@pytest.mark.parametrize(
    ("low", "high", "action", "bits"),
    [
        (2, 8, 0.0, 2),
        (2, 8, 1.0, 8),
        (2, 8, 0.5, 5),
        (2, 8, 0.13, 2),
        (2, 8, 0.15, 3),
        (1, 8, 0.0, 1),
        (2, 7, 1.0, 7),
        (3, 5, 1.0, 5),
        (4, 4, 0.7, 4),
    ],
)
def test_actions_become_bits_within_the_range(low, high, action, bits):
    strategy = ArqPaper(toy_space("bops<=100%", min_bits=low, max_bits=high), 0, TINY)
    assert strategy._bits(np.array([action], dtype=np.float32)).tolist() == [bits]


def test_executed_actions_ask_for_what_was_executed():
    strategy = ArqDdpg(SPACE)
    policy = SPACE.fit(np.arange(2.0 * SEARCHED).reshape(-1, 2))
    assert (strategy._bits(strategy._executed(policy)).reshape(-1, 2) == SPACE.bits(policy)).all()


@pytest.mark.parametrize(("mean", "deviation"), [(0.5, 0.5), (0.05, 0.3), (0.97, 0.1)])
def test_the_noise_is_truncated_normal(mean, deviation):
    rng = np.random.default_rng(0)
    drawn = np.array([truncated_normal(mean, deviation, rng) for _ in range(4000)])
    expected = truncnorm(-mean / deviation, (1 - mean) / deviation, mean, deviation)
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert drawn.mean() == pytest.approx(expected.mean(), abs=4 * expected.std() / 4000**0.5)
    assert drawn.std() == pytest.approx(expected.std(), rel=0.05)


def test_without_noise_the_actor_decides():
    assert truncated_normal(0.3, 0.0, np.random.default_rng(0)) == 0.3


# Schedule


def test_the_schedule_of_haq():
    strategy = ArqPaper(SPACE)
    noise = {}
    for told in (21, 22, 599):
        strategy.answered = told
        noise[told] = strategy.noise
    assert strategy._warmup == 21
    assert noise == pytest.approx({21: 0.5 * 0.99, 22: 0.5 * 0.99**2, 599: 0.5 * 0.99**579})


def test_the_schedule_is_scaled_to_a_shorter_run():
    long, short = ArqPaper(SPACE), ArqPaper(SPACE, 0, {"episodes": 150})
    assert short._warmup == 5
    long.answered, short.answered = 600 - 1, 150 - 1
    assert short.noise == pytest.approx(long.noise, rel=0.05)


def test_results_of_other_budgets_do_not_advance_the_schedule():
    alone, beside = (ArqDdpg(toy_space(), seed=0, options={"episodes": 30, "hidden": 16}) for _ in range(2))
    others = tell(ArqDdpg(toy_space(), seed=1, options={"hidden": 16}), 12)
    tell(alone, 10)
    for policy in others:
        beside.tell(policy, toy_reward(beside.space)(policy))
    tell(beside, 10)
    assert (beside.told, beside.answered, beside.noise) == (alone.told + 12, 10, alone.noise)


def test_nothing_is_learned_during_the_warm_up():
    strategy = ArqPaper(SPACE, 0, TINY)
    before = weights(strategy)
    tell(strategy, strategy._warmup)
    assert all(torch.equal(*pair) for pair in zip(before, weights(strategy), strict=True))
    assert strategy.describe()["episodes_learned"] == 0
    tell(strategy, 1)
    assert not all(torch.equal(*pair) for pair in zip(before, weights(strategy), strict=True))
    assert strategy.describe()["episodes_learned"] == 1


def test_episodes_that_were_abandoned_are_not_counted_as_learned():
    strategy = ArqDdpg(SPACE, 0, TINY)
    tell(strategy, strategy._warmup + 1)
    strategy.tell(strategy.ask()[0], 0.1, raced=True)
    assert strategy.describe()["episodes_learned"] == 1


def test_the_warm_up_covers_the_whole_range():
    strategy = ArqPaper(toy_space("bops<=100%"))
    bits = np.stack([strategy.space.bits(policy) for policy in tell(strategy, 21)])
    counts = np.bincount(bits.ravel(), minlength=9)[2:]
    assert counts.min() > 0.5 * counts.mean()


# Replay and learning


def test_the_replay_buffer_forgets_the_oldest_episode():
    replay = Replay(2, 3)
    for reward in (1.0, 2.0, 3.0):
        replay.add(np.full((3, 10), reward, np.float32), np.full(3, reward, np.float32), reward)
    assert replay.rewards.tolist() == [2.0, 3.0]
    assert replay.states[:, 0, 0].tolist() == replay.actions[:, 0].tolist() == [2.0, 3.0]


def test_samples_are_transitions():
    replay = Replay(5, 4)
    for episode in range(5):
        steps = np.arange(4, dtype=np.float32)
        replay.add(np.tile(10 * episode + steps[:, None], (1, 10)), steps / 4, float(episode))
    state, action, reward, following, goes_on = (
        part.numpy()[:, 0] for part in replay.sample(20, np.random.default_rng(0))
    )
    assert sorted(state.tolist()) == sorted(10 * e + t for e in range(5) for t in range(4))
    assert (reward == state // 10).all()
    assert (4 * action == state % 10).all()
    assert (goes_on == (state % 10 < 3)).all()
    assert (following == np.where(goes_on, state + 1, state)).all()


def test_the_letter_keeps_raw_actions_of_all_layers_and_ours_the_executed_bits():
    paper, ours = ArqPaper(SPACE, 0, TINY), ArqDdpg(SPACE, 0, TINY)
    asked = paper.ask()[0].policy
    raw = paper._actions[asked]
    paper.tell(asked, 0.1)
    assert (paper._replay.actions[0] == raw).all()
    assert len(raw) == 2 * LAYERS
    assert not (paper._bits(raw).reshape(-1, 2)[1:-1] == SPACE.bits(asked)).all()
    asked = ours.ask()[0].policy
    ours.tell(asked, 0.1)
    assert (ours._bits(ours._replay.actions[0]).reshape(-1, 2) == SPACE.bits(asked)).all()


def test_the_letter_projects_from_back_to_front():
    strategy = ArqPaper(SPACE, 0, TINY)
    asked = strategy.ask()[0].policy
    wanted = SPACE.policy(strategy._bits(strategy._actions[asked]).reshape(-1, 2)[1:-1])
    assert not SPACE.budget.allows(wanted)
    assert asked == SPACE.budget.project_back_to_front(wanted)


def test_all_steps_carry_the_reward_and_a_moving_mean_is_subtracted():
    agent = Agent(Config(hidden=4), np.random.default_rng(0))
    replay = Replay(4, 2)
    reward = torch.tensor([[1.0], [3.0]])
    assert agent._advantage(reward, replay).tolist() == [[-1.0], [1.0]]
    assert agent._advantage(reward + 2, replay).tolist() == [[0.0], [2.0]]
    assert agent.baseline == 3.0


def test_ours_normalises_by_the_rewards_in_the_buffer():
    agent = Agent(Config(hidden=4, normalise=True), np.random.default_rng(0))
    replay = Replay(10, 2)
    for reward in (1.0, 2.0, 3.0):
        replay.add(np.zeros((2, 10), np.float32), np.zeros(2, np.float32), reward)
    scaled = agent._advantage(torch.tensor([[1.0], [2.0], [100.0]]), replay)
    assert scaled.ravel().tolist() == pytest.approx([-1.2247, 0.0, 3.0], abs=1e-3)


@pytest.mark.parametrize("normalise", [False, True])
def test_the_actor_learns_which_action_is_rewarded(normalise):
    """Weights should be few and activations many: reward = -|a_w - 0.2| - |a_a - 0.8|, told for random actions."""
    rng = np.random.default_rng(0)
    agent = Agent(Config(hidden=32, gamma=0.0, actor_lr=1e-3, normalise=normalise), rng)
    states = np.zeros((2, 10), dtype=np.float32)
    states[1, 8] = 1.0
    replay = Replay(400, 2)
    for _ in range(400):
        actions = rng.random(2).astype(np.float32)
        replay.add(states, actions, float(-abs(actions[0] - 0.2) - abs(actions[1] - 0.8)))
    with torch_threads(1):
        for _ in range(500):
            agent.update(replay)
    assert agent.act(states[0]) < 0.4 < 0.6 < agent.act(states[1])


def test_the_targets_follow_slowly():
    agent = Agent(Config(hidden=8, tau=0.1, actor_lr=0.0, critic_lr=0.0), np.random.default_rng(0))
    with torch.no_grad():
        agent.actor[-2].bias.fill_(1.0)
        agent.actor_target[-2].bias.fill_(0.0)
    replay = Replay(4, 2)
    replay.add(np.zeros((2, 10), np.float32), np.zeros(2, np.float32), 1.0)
    agent.update(replay)
    assert agent.actor_target[-2].bias.item() == pytest.approx(0.1)


def test_a_failure_is_learned_as_the_worst_reward():
    strategy = ArqPaper(SPACE, 0, TINY)
    for reward in (None, 0.5, -0.25, None):
        strategy.tell(strategy.ask()[0], reward)
    assert strategy._replay.rewards.tolist() == [0.5, -0.25, -0.25]


# Ours


def test_ours_begins_with_the_uniform_pairs_and_repeats_nothing():
    policies = tell(ArqDdpg(SPACE, 0, TINY), 30)
    assert policies[:3] == [SPACE.uniform(bits) for bits in (Bits(3, 3), Bits(2, 4), Bits(4, 2))]
    assert len(set(policies)) == 30


def test_ours_learns_from_what_others_found():
    strategy = ArqDdpg(SPACE, 0, TINY)
    tell(strategy, 5)
    strategy.tell(SPACE.fit(np.arange(2.0 * SEARCHED).reshape(-1, 2)), 0.7)
    assert strategy._replay.rewards[-1] == np.float32(0.7)
    assert len(strategy._replay.rewards) == 6


def test_without_executed_bits_foreign_results_are_not_learned():
    strategy = ArqDdpg(SPACE, 0, {**TINY, "executed": False, "seeds": False, "guided": 0})
    (asked,) = strategy.ask()
    strategy.tell(SPACE.fit(np.arange(2.0 * SEARCHED).reshape(-1, 2)), 0.7)
    assert len(strategy._replay.rewards) == 0
    strategy.tell(asked, 0.1)
    assert strategy._replay.rewards.tolist() == [np.float32(0.1)]


def test_the_share_of_guided_episodes(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "arquant.searching.strategies.ddpg.propose",
        lambda *args: calls.append(1) or SPACE.fit(args[3].random((SEARCHED, 2))),
    )
    tell(ArqDdpg(SPACE, 0, {**TINY, "guided": 0.25, "noise_decay": 1}), 43)
    assert 4 <= len(calls) <= 18


def test_each_walk_of_a_round_is_learned_with_its_own_actions():
    strategy = ArqPaper(SPACE, 0, TINY)
    asked = strategy.ask(4)
    walks = {proposal: strategy._actions[proposal.policy] for proposal in asked}
    for reward, proposal in enumerate(reversed(asked)):
        strategy.tell(proposal, float(reward))
    assert strategy._replay.rewards.tolist() == list(range(len(asked)))
    assert (strategy._replay.actions == np.stack([walks[proposal] for proposal in reversed(asked)])).all()
    assert not strategy._actions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "'episodes' must be at least 1, got 0"),
        ({"noise": -0.1}, "'noise' must not be negative"),
        ({"gamma": 1.1}, "'gamma' must be from 0 to 1, got 1.1"),
        ({"seeds": True}, "need executed=true"),
        ({"guided": 0.5}, "need executed=true"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        ArqPaper(SPACE, 0, options)


def test_noise_may_end_with_the_warm_up():
    agent = ArqDdpg(SPACE, 0, {**TINY, "noise_decay": 0})
    assert agent.describe()["noise"] == Config.noise
    tell(agent, 12)
    assert agent.noise == 0
