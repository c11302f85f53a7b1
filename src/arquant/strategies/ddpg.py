"""ARQ's agent, whole: a DDPG actor that walks the layers and asks for their bits, and a critic that learns the reward.

Registered three times: `arq-paper`, the paper's algorithm to the letter with HAQ's values where the paper is silent;
`haq`, the same agent with the reward `val`; `arq`, ours. `docs/paper-vs-code.md` numbers every difference; S1, S2, ...
below refer to it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from arquant.errors import InputError
from arquant.layer import Layer
from arquant.policy import Policy
from arquant.strategies.additive import AdditiveModel, propose
from arquant.strategies.history import History
from arquant.strategies.random_search import TRIES
from arquant.strategy import Arrays, State, Strategy, register

Floats = NDArray[np.float32]
STATE_SIZE = 10
HAQ_EPISODES = 600


@dataclass(frozen=True)
class Config:
    """Options of the agent. These values are the paper's or, where it is silent, HAQ's; `Arq` has others."""

    episodes: int = HAQ_EPISODES
    """Planned length of the run. Warm-up and decay of the noise, which are stated for 600, are scaled to it."""
    warmup: int = 21
    """Episodes of random actions, without learning, in a run of 600."""
    noise: float = 0.5
    """Standard deviation of the exploration noise when the warm-up ends: truncated normal on [0, 1]."""
    noise_decay: float = 0.99
    """Factor of the noise per episode in a run of 600."""
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
    ours: bool = False
    """Improve on the paper: S11 to S17 of `docs/paper-vs-code.md`."""
    guided: float = 0.0
    """Share of the episodes that the additive model proposes instead of the actor; only if `ours`."""
    explore: float = 0.5
    """How far those proposals stray; see the strategy `additive`."""
    screen: int = 1
    """Walks of the actor per episode; the additive model chooses the one to evaluate; only if `ours`."""

    def __post_init__(self) -> None:
        for name in ("episodes", "hidden", "batch", "memory", "screen"):
            if getattr(self, name) < 1:
                raise InputError(f"option {name!r} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "noise", "actor_lr", "critic_lr", "explore"):
            if getattr(self, name) < 0:
                raise InputError(f"option {name!r} must not be negative, got {getattr(self, name)}")
        for name in ("noise_decay", "tau", "gamma", "guided"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"option {name!r} must be from 0 to 1, got {getattr(self, name)}")


class Actor(nn.Module):
    """State (n, 10) -> action in [0, 1], shape (n, 1)."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.first = _linear(STATE_SIZE, hidden, rng)
        self.second = _linear(hidden, hidden, rng)
        self.last = _linear(hidden, 1, rng)

    def forward(self, state: Tensor) -> Tensor:
        """The action preferred in each state."""
        hidden = torch.relu(self.second(torch.relu(self.first(state))))
        return torch.sigmoid(self.last(hidden))


class Critic(nn.Module):
    """State (n, 10) and action (n, 1) -> value (n, 1)."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.state = _linear(STATE_SIZE, hidden, rng)
        self.action = _linear(1, hidden, rng)
        self.second = _linear(hidden, hidden, rng)
        self.last = _linear(hidden, 1, rng)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """What the action leads to: its reward, and later ones as `gamma` discounts them."""
        hidden = torch.relu(self.second(torch.relu(self.state(state) + self.action(action))))
        value: Tensor = self.last(hidden)
        return value


def _linear(inputs: int, outputs: int, rng: np.random.Generator) -> nn.Linear:
    """A layer with PyTorch's default initialisation, drawn from `rng` instead of the global generator."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(-1, 1, tuple(parameter.shape)) / np.sqrt(inputs)))
    return layer


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

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Evenly drawn transitions: state, action, reward, next state, and 0 for a last step, else 1."""
        steps = self.actions.shape[1]
        drawn = rng.choice(self.actions.size, count, replace=self.actions.size < count)
        episode, step = np.divmod(drawn, steps)
        after = np.minimum(step + 1, steps - 1)
        goes_on = (step + 1 < steps).astype(np.float32)
        parts = (self.states[episode, step], self.actions[episode, step], self.rewards[episode])
        state, action, reward = (torch.from_numpy(part) for part in parts)
        return (
            state,
            action[:, None],
            reward[:, None],
            torch.from_numpy(self.states[episode, after]),
            torch.from_numpy(goes_on)[:, None],
        )


class Agent:
    """Actor, critic, the targets that follow them, and their optimizers."""

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self._config, self._rng = config, rng
        self.actor, self.actor_target = Actor(config.hidden, rng), Actor(config.hidden, rng)
        self.critic, self.critic_target = Critic(config.hidden, rng), Critic(config.hidden, rng)
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), config.actor_lr),
            "critic": torch.optim.Adam(self.critic.parameters(), config.critic_lr),
        }
        self.baseline: float | None = None

    def act(self, state: Floats) -> float:
        """The actor's choice in a state."""
        with torch.no_grad():
            return float(self.actor(torch.from_numpy(state)[None]))

    def update(self, replay: Replay) -> None:
        """One step of the critic, then of the actor, then of the targets."""
        state, action, reward, following, goes_on = replay.sample(self._config.batch, self._rng)
        with torch.no_grad():
            later = self.critic_target(following, self.actor_target(following))
            target = self._advantage(reward, replay) + self._config.gamma * goes_on * later
        self._step("critic", mse_loss(self.critic(state, action), target))
        self._step("actor", -self.critic(state, self.actor(state)).mean())
        for network, follower in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            for new, old in zip(network.parameters(), follower.parameters(), strict=True):
                old.data.lerp_(new.data, self._config.tau)

    def _step(self, which: str, loss: Tensor) -> None:
        self.optimizers[which].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers[which].step()

    def _advantage(self, reward: Tensor, replay: Replay) -> Tensor:
        if self._config.ours:  # S13
            scale = float(replay.rewards.std()) or 1.0
            return ((reward - float(replay.rewards.mean())) / scale).clamp(-3.0, 3.0)
        mean = float(reward.mean())
        self.baseline = mean if self.baseline is None else self.baseline + 0.5 * (mean - self.baseline)
        return reward - self.baseline

    def arrays(self) -> Arrays:
        """Networks and optimizers by name."""
        found: Arrays = {}
        for name in ("actor", "critic", "actor_target", "critic_target"):
            found |= {f"{name}.{key}": value.numpy() for key, value in getattr(self, name).state_dict().items()}
        for name, optimizer in self.optimizers.items():
            for index, slots in optimizer.state_dict()["state"].items():
                found |= {f"{name}_adam.{index}.{key}": value.numpy() for key, value in slots.items()}
        return found

    def load(self, arrays: Arrays) -> None:
        """Put back what `arrays` returned."""
        for name in ("actor", "critic", "actor_target", "critic_target"):
            network = getattr(self, name)
            network.load_state_dict({key: torch.tensor(arrays[f"{name}.{key}"]) for key in network.state_dict()})
        for name, optimizer in self.optimizers.items():
            slots: dict[int, dict[str, Tensor]] = {}
            for key in (key for key in arrays if key.startswith(f"{name}_adam.")):
                _, index, slot = key.split(".")
                slots.setdefault(int(index), {})[slot] = torch.tensor(arrays[key])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})


@register("arq-paper")
class ArqPaper(Strategy):
    """ARQ to the letter: one episode per policy, a weight and an activation step per layer, one reward for all of them.

    A failed evaluation is learned as the lowest reward told so far; before there is one, it is forgotten.
    """

    defaults = Config()
    reward = "irs"
    racing = False
    seeding = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: Config = self.options
        self._pace = config.episodes / HAQ_EPISODES
        self._warmup = round(config.warmup * self._pace)
        self._walked = self.space.searched if config.ours else self.space.layers.names  # S16
        self._static = static_state([self.space.layers[name] for name in self._walked], ours=config.ours)
        self._history = History(self.space)
        self._replay = Replay(config.memory, len(self._static))
        self._agent = Agent(config, self.rng)
        self._episode = 0
        self._actions: Floats | None = None

    @property
    def noise(self) -> float:
        """Standard deviation of the exploration noise in the present episode, after the warm-up."""
        after = self._episode - self._warmup + 1
        return float(max(self.options.noise * self.options.noise_decay ** (after / self._pace), 1e-6))

    def _propose(self) -> Policy:
        self._actions = self._walk(random=self._episode < self._warmup)
        return self.space.budget.project_back_to_front(self.space.policy(self._searched(self._bits(self._actions))))

    def _walk(self, *, random: bool) -> Floats:
        """One pass over the layers; the previous action, in bits, is part of the next state."""
        actions = np.empty(len(self._static), dtype=np.float32)
        previous = 1.0
        for step, static in enumerate(self._static):
            if random:
                actions[step] = self.rng.random()
            else:
                choice = self._agent.act(np.append(static, np.float32(previous)))
                actions[step] = truncated_normal(choice, self.noise, self.rng)
            previous = self._bits(actions[step]) / self.space.max_bits
        return actions

    def _wishes(self, actions):
        low, high = self.space.min_bits, self.space.max_bits
        return low - 0.5 + np.asarray(actions, dtype=np.float64) * (high - low + 1)

    def _bits(self, actions):
        return np.clip(np.rint(self._wishes(actions)), self.space.min_bits, self.space.max_bits).astype(np.int64)

    def _searched(self, steps):
        return steps.reshape(-1, 2)[[name not in self.space.fixed for name in self._walked]]

    def _states(self, bits):
        previous = np.append(1.0, bits[:-1] / self.space.max_bits).astype(np.float32)
        return np.concatenate([self._static, previous[:, None]], axis=1)

    def _transitions(self, policy: Policy):
        return self._states(self._bits(self._actions)), self._actions

    def _learn(self, policy: Policy, reward: float | None) -> None:
        self._history.add(policy, reward)
        if reward is None:
            reward = min((told for _, told in self._history), default=None)
        if reward is not None:
            self._replay.add(*self._transitions(policy), reward)
            if self._episode >= self._warmup:
                with _one_thread():
                    for _ in range(len(self._static)):
                        self._agent.update(self._replay)
        self._episode += 1
        self._actions = None

    def _save(self) -> State:
        arrays = {**self._agent.arrays(), **self._history.arrays()}
        return {}, arrays


@register("haq")
class Haq(ArqPaper):
    """The paper's HAQ."""
    reward = "val"


@register("arq")
class Arq(ArqPaper):
    """Ours."""

    defaults = Config(episodes=150, memory=10000, ours=True, gamma=0.0, guided=0.5, screen=1)
    seeding = True
    racing = True
    reward = "acr-cv"

    def _propose(self):
        for pair in self.space.uniform_pairs:
            if (policy := self.space.uniform(pair)) not in self._history:
                return policy
        results = list(self._history)
        model = AdditiveModel(self.space, results) 
        if self._episode < self._warmup or self.rng.random() < self.options.guided:
            self.src='m'
            return propose(model, self._history, self.options.explore, self.rng)
        self.src='a'
        best=None
        for k in range(max(TRIES,self.options.screen)):
            policy = self.space.fit(self._wishes(self._walk(random=False)).reshape(-1,2))
            if policy in self._history: continue
            v=model.predict(self.space.bits(policy))
            if best is None or v>best[0]: best=(v,policy)
            if k+1>=self.options.screen: break
        return best[1] if best else policy

    def _transitions(self, policy):
        low, high = self.space.min_bits, self.space.max_bits
        bits = self.space.bits(policy).ravel()
        return self._states(bits), ((bits - low + 0.5) / (high - low + 1)).astype(np.float32)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The networks are too small for several threads, and sums must not depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

def truncated_normal(mean, sigma, rng):
    low, high = ndtr(-mean / sigma), ndtr((1 - mean) / sigma)
    return float(np.clip(mean + sigma * ndtri(low + rng.random() * (high - low)), 0.0, 1.0))


def static_state(layers, *, ours) -> Floats:
    rows = np.array([_facts(k, layer) for k, layer in enumerate(layers)], dtype=np.float64)
    low, high = rows.min(0), rows.max(0)
    rows = np.where(high > low, (rows - low) / np.where(high > low, high - low, 1.0), 0.0 if ours else rows)
    flag = np.tile([0.0, 1.0], len(layers))[:, None]
    return np.concatenate([np.repeat(rows, 2, axis=0), flag], axis=1).astype(np.float32)


def _facts(k, layer):
    conv = layer.kind == "conv"
    return (k, layer.in_channels, layer.out_channels, layer.kernel[0] if conv else 1, layer.stride[0] if conv else 0,
        layer.input_size[0] * layer.input_size[1] if conv else layer.in_channels, layer.weights, float(layer.depthwise))
