"""Search with ARQ's agent: a DDPG actor walks the layers and asks for their bits, a critic learns the reward.

From top to bottom: the options, the state of a step, the networks, the replay buffer, one update, and the strategy, whose
`_propose` is a walk and whose `_learn` a number of updates. `ArqPaper` is the paper's algorithm to the letter, with HAQ's
values where the paper is silent; `Arq` is ours. `docs/paper-vs-code.md` numbers every difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from arquant.base.errors import InputError
from arquant.base.threads import torch_threads
from arquant.models.tracing.layer import Layer
from arquant.quantization.policy import Policy
from arquant.searching.space import BitArray
from arquant.searching.strategies.additive import AdditiveModel, propose
from arquant.searching.strategies.history import Remembering
from arquant.searching.strategies.random_search import TRIES
from arquant.searching.strategy import Proposal, register

Floats = NDArray[np.float32]
STATE_SIZE = 10
HAQ_EPISODES = 600


@dataclass(frozen=True)
class Config:
    """Options of the agent. The values are the paper's or, where it is silent, HAQ's; `arq` has others."""

    episodes: int = HAQ_EPISODES
    """Planned length of the run. Warm-up and noise decay are stated for 600 episodes and scaled to this many."""
    warmup: int = 21
    """Episodes before the actor acts and learns, in a run of 600; their actions are random."""
    noise: float = 0.5
    """Standard deviation of the exploration noise when the warm-up ends: truncated normal on [0, 1]."""
    noise_decay: float = 0.99
    """Factor of the noise per episode, in a run of 600."""
    hidden: int = 300
    """Width of both hidden layers of actor and critic."""
    actor_lr: float = 1e-4
    """Adam's learning rate for the actor."""
    critic_lr: float = 1e-3
    """Adam's learning rate for the critic."""
    tau: float = 0.01
    """Share by which the target networks follow the networks per update."""
    gamma: float = 1.0
    """Discount. Every step carries the whole reward: 1 counts it once per remaining step, 0 exactly once."""
    batch: int = 64
    """Transitions per update; an episode is followed by as many updates as it has transitions."""
    memory: int = 64
    """Episodes that the replay buffer holds."""
    walk_fixed: bool = True
    """Let the agent act on fixed layers too, although their bits do not change."""
    executed: bool = False
    """Put the bits that were evaluated into the replay buffer, not the raw actions from before the projection."""
    normalise: bool = False
    """Centre and scale rewards by those in the buffer, instead of subtracting a moving mean."""
    fit: bool = False
    """Spend the whole budget where the actor asks for most (`Space.fit`), instead of lowering bits back to front."""
    unseen: bool = False
    """Walk again, up to 20 times and with ever more noise, while the policy was tried before."""
    seeds: bool = False
    """Begin with the uniform pairs that fit the budget; needs `executed`."""
    guided: float = 0.0
    """Share of the episodes, after the seeds and beside the warm-up, proposed by the additive model; needs `executed`."""
    explore: float = 0.5
    """How far those proposals stray from what the model thinks best; see the strategy `additive`."""

    def __post_init__(self) -> None:
        for name in ("episodes", "hidden", "batch", "memory"):
            if getattr(self, name) < 1:
                raise InputError(f"option {name!r} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "noise", "actor_lr", "critic_lr", "explore"):
            if getattr(self, name) < 0:
                raise InputError(f"option {name!r} must not be negative, got {getattr(self, name)}")
        for name in ("noise_decay", "tau", "gamma", "guided"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"option {name!r} must be from 0 to 1, got {getattr(self, name)}")
        if (self.seeds or self.guided) and not self.executed:
            raise InputError("options 'seeds' and 'guided' bring policies without actions: they need executed=true")


def layer_facts(layers: Sequence[Layer]) -> Floats:
    """Return the first nine numbers of the state, for the weight and then the activation step of each layer: (2 layers, 9).

    Index, input and output channels, kernel, stride, size of the feature map, weights, depthwise or not, each scaled to
    [0, 1] over the layers (constant ones as they are, like HAQ); then 0 for a weight, 1 for an activation step. As in
    HAQ, what is no convolution has kernel 1, stride 0, and its input channels as feature size.
    """
    rows = []
    for index, layer in enumerate(layers):
        conv = layer.kind == "conv"
        kernel, stride = (prod(layer.kernel) ** 0.5, prod(layer.stride) ** 0.5) if conv else (1.0, 0.0)
        feature = prod(layer.input_size) if conv else layer.in_channels
        sizes = (layer.in_channels, layer.out_channels, kernel, stride, feature, layer.weights)
        rows.append((index, *sizes, float(layer.depthwise)))
    table = np.array(rows, dtype=np.float64)
    low, high = table.min(axis=0), table.max(axis=0)
    table = np.where(high > low, (table - low) / np.where(high > low, high - low, 1.0), table)
    kind = np.tile([[0.0], [1.0]], (len(rows), 1))
    return np.concatenate([np.repeat(table, 2, axis=0), kind], axis=1).astype(np.float32)


def _linear(inputs: int, outputs: int, rng: np.random.Generator) -> nn.Linear:
    """Return a layer with PyTorch's default initialisation, drawn from `rng` instead of the global generator."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(-1, 1, tuple(parameter.shape)) / np.sqrt(inputs)))
    return layer


def actor_network(hidden: int, rng: np.random.Generator) -> nn.Sequential:
    """Return a network from states (n, 10) to the actions in [0, 1] that it prefers there, (n, 1)."""
    first, second, last = _linear(STATE_SIZE, hidden, rng), _linear(hidden, hidden, rng), _linear(hidden, 1, rng)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Sigmoid())


class Critic(nn.Module):
    """Maps a state (n, 10) and an action (n, 1) to the reward they lead to, and later ones as `gamma` discounts them."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.state = _linear(STATE_SIZE, hidden, rng)
        self.action = _linear(1, hidden, rng)
        self.second = _linear(hidden, hidden, rng)
        self.last = _linear(hidden, 1, rng)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the values, (n, 1)."""
        hidden = torch.relu(self.second(torch.relu(self.state(state) + self.action(action))))
        value: Tensor = self.last(hidden)
        return value


class Replay:
    """The latest episodes; all steps of one carry its reward."""

    def __init__(self, size: int, steps: int) -> None:
        self.size = size
        self.states: Floats = np.empty((0, steps, STATE_SIZE), dtype=np.float32)
        self.actions: Floats = np.empty((0, steps), dtype=np.float32)
        self.rewards: Floats = np.empty(0, dtype=np.float32)

    def add(self, states: Floats, actions: Floats, reward: float) -> None:
        """Append states (steps, 10), actions (steps,) and their reward; the oldest episode beyond `size` goes."""
        self.states = np.concatenate([self.states, states[None]])[-self.size :]
        self.actions = np.concatenate([self.actions, actions[None]])[-self.size :]
        self.rewards = np.append(self.rewards, np.float32(reward))[-self.size :]

    def sample(self, count: int, rng: np.random.Generator) -> list[Tensor]:
        """Draw transitions evenly: state, action, reward, next state, and 0 for a last step, else 1; each (count, .)."""
        steps = self.actions.shape[1]
        drawn = rng.choice(self.actions.size, count, replace=self.actions.size < count)
        episode, step = np.divmod(drawn, steps)
        after = np.minimum(step + 1, steps - 1)
        goes_on = (step + 1 < steps).astype(np.float32)
        columns = (self.actions[episode, step], self.rewards[episode], goes_on)
        action, reward, more = (torch.from_numpy(column)[:, None] for column in columns)
        state, following = (torch.from_numpy(self.states[episode, place]) for place in (step, after))
        return [state, action, reward, following, more]


class Agent:
    """Actor, critic, the targets that follow them, and their optimizers."""

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self._config, self._rng = config, rng
        # The targets' own draws are replaced at once. They are drawn because published searches drew them.
        self.actor, self.actor_target = (actor_network(config.hidden, rng) for _ in range(2))
        self.critic, self.critic_target = (Critic(config.hidden, rng) for _ in range(2))
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.critic_target.load_state_dict(self.critic.state_dict())
        self._actor_step = torch.optim.Adam(self.actor.parameters(), config.actor_lr)
        self._critic_step = torch.optim.Adam(self.critic.parameters(), config.critic_lr)
        self.baseline: float | None = None

    def act(self, state: Floats) -> float:
        """Return the actor's choice in a state."""
        with torch.no_grad():
            return float(self.actor(torch.from_numpy(state)[None]))

    def update(self, replay: Replay) -> None:
        """Make one step of the critic, then of the actor, then of the targets."""
        state, action, reward, following, goes_on = replay.sample(self._config.batch, self._rng)
        with torch.no_grad():
            later = self.critic_target(following, self.actor_target(following))
            target = self._advantage(reward, replay) + self._config.gamma * goes_on * later
        _descend(self._critic_step, mse_loss(self.critic(state, action), target))
        _descend(self._actor_step, -self.critic(state, self.actor(state)).mean())
        for network, follower in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            for new, old in zip(network.parameters(), follower.parameters(), strict=True):
                old.data.lerp_(new.data, self._config.tau)

    def _advantage(self, reward: Tensor, replay: Replay) -> Tensor:
        if self._config.normalise:
            scale = float(replay.rewards.std()) or 1.0
            return ((reward - float(replay.rewards.mean())) / scale).clamp(-3.0, 3.0)
        mean = float(reward.mean())
        self.baseline = mean if self.baseline is None else self.baseline + 0.5 * (mean - self.baseline)
        return reward - self.baseline


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def truncated_normal(mean: float, deviation: float, rng: np.random.Generator) -> float:
    """Draw from the normal distribution around `mean`, conditioned on [0, 1]."""
    if deviation < 1e-9:
        return min(max(mean, 0.0), 1.0)
    low, high = ndtr(-mean / deviation), ndtr((1.0 - mean) / deviation)
    return float(np.clip(mean + deviation * ndtri(low + rng.random() * (high - low)), 0.0, 1.0))


@register("arq-paper")
class ArqPaper(Remembering):
    """ARQ to the letter: one episode per policy, a weight and an activation step per layer, one reward for all of them.

    A failed evaluation is learned as the lowest reward told so far; before there is one, it is forgotten.
    """

    defaults = Config()
    seeding = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: Config = self.options
        self._config = config
        self._pace = config.episodes / HAQ_EPISODES
        self._warmup = round(config.warmup * self._pace)
        self._walked = self.space.layers.names if config.walk_fixed else self.space.searched
        self._is_searched = np.array([name in self.space.searched for name in self._walked])
        self._facts = self._steps_facts()
        self._replay = Replay(config.memory, len(self._facts))
        self._agent = Agent(config, self.rng)
        self._actions: dict[Policy, Floats] = {}
        """The raw actions of the walks in flight."""
        self._learned = 0

    def _steps_facts(self) -> Floats:
        """Return what the agent sees of every step of a walk, but for the action before it."""
        return layer_facts([self.space.layers[name] for name in self._walked])

    @property
    def noise(self) -> float:
        """Standard deviation of the exploration noise now; the first episode after the warm-up has it decayed once."""
        past = max(0, self.answered - self._warmup + 1) / self._pace
        return float(self._config.noise * self._config.noise_decay**past)

    def _propose(self) -> Policy:
        if self._config.seeds and (seed := self._untried_uniform()) is not None:
            return seed
        warming = self.answered < self._warmup
        results = list(self._history)
        if results and self._config.guided and (warming or self.rng.random() < self._config.guided):
            return propose(AdditiveModel(self.space, results), self._tried, self._config.explore, self.rng)
        for attempt in range(TRIES if self._config.unseen else 1):
            actions = self._walk(None if warming else max(self.noise, 0.01 * attempt) * 1.2**attempt)
            policy = self._policy(actions)
            if not self._tried(policy):
                break
        self._actions.setdefault(policy, actions)
        return policy

    def _walk(self, noise: float | None) -> Floats:
        """Pass over the layers once: the actor's actions with noise, or random ones for None; each is in the next state."""
        actions = np.empty(len(self._facts), dtype=np.float32)
        previous = 1.0
        with torch_threads(1):  # the networks are too small for more, and no result may depend on how many there are
            for step, facts in enumerate(self._facts):
                if noise is None:
                    actions[step] = self.rng.random()
                else:
                    choice = self._agent.act(np.append(facts, np.float32(previous)))
                    actions[step] = truncated_normal(choice, noise, self.rng)
                previous = float(self._bits(actions[step : step + 1])[0]) / self.space.max_bits
        return actions

    def _wishes(self, actions: Floats) -> NDArray[np.float64]:
        low, high = self.space.min_bits, self.space.max_bits
        return np.asarray(low - 0.5 + actions.astype(np.float64) * (high - low + 1))

    def _bits(self, actions: Floats) -> BitArray:
        return np.clip(np.rint(self._wishes(actions)), self.space.min_bits, self.space.max_bits).astype(np.int64)

    def _policy(self, actions: Floats) -> Policy:
        if self._config.fit:
            return self.space.fit(self._wishes(actions).reshape(-1, 2)[self._is_searched])
        asked = self.space.policy(self._bits(actions).reshape(-1, 2)[self._is_searched])
        return self.space.budget.project_back_to_front(asked)

    def _learn(self, proposal: Proposal, reward: float | None) -> None:
        super()._learn(proposal, reward)
        value = min((told for _, told in self._history), default=None) if reward is None else reward
        walked = self._actions.pop(proposal.policy, None)
        actions = self._executed(proposal.policy) if self._config.executed else walked
        if value is None or actions is None:
            return
        self._replay.add(self._states(actions), actions, value)
        if self.answered > self._warmup:
            self._learned += 1
            with torch_threads(1):
                for _ in range(len(self._facts)):
                    self._agent.update(self._replay)

    def _learn_raced(self, proposal: Proposal, reward: float) -> None:
        """Remember it for the additive model, but store no transition: its reward is not on the others' scale."""
        super()._learn(proposal, reward)
        self._actions.pop(proposal.policy, None)

    def _executed(self, policy: Policy) -> Floats:
        """Return the actions, in the middle of their intervals, that ask for the bits of `policy`."""
        low, high = self.space.min_bits, self.space.max_bits
        bits = np.array([(policy[name].w, policy[name].a) for name in self._walked]).ravel()
        return np.clip((bits - low + 0.5) / (high - low + 1), 0.0, 1.0).astype(np.float32)

    def _states(self, actions: Floats) -> Floats:
        """Return the states (steps, 10) in which these actions were taken."""
        previous = np.append(1.0, self._bits(actions[:-1]) / self.space.max_bits).astype(np.float32)
        return np.concatenate([self._facts, previous[:, None]], axis=1)

    def describe(self) -> dict[str, Any]:
        """Return the facts of `Strategy.describe`, after how many episodes the networks were updated, and the noise now."""
        return {**super().describe(), "warmup": self._warmup, "episodes_learned": self._learned, "noise": self.noise}


@register("arq-ddpg")
class ArqDdpg(ArqPaper):
    """Ours: the agent learns from what was really evaluated, starts from uniform policies and spends the whole budget.

    Its episodes alternate at random with proposals of the additive model, from whose results the agent learns too.
    """

    defaults = Config(
        episodes=150,
        gamma=0.0,
        memory=10_000,
        walk_fixed=False,
        executed=True,
        normalise=True,
        fit=True,
        unseen=True,
        seeds=True,
        guided=0.5,
    )
    seeding = True
