"""What a strategy was told so far, in order."""

from collections.abc import Iterator

import numpy as np

from arquant.policy import Policy
from arquant.space import BitArray, Space
from arquant.strategy import Arrays


class History:
    """Policies with their rewards in the order they were told; a failed one has the reward None.

    `policy in history` tells whether it was ever told. Iterating gives the (bits, reward) of the successful ones.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._rows: list[tuple[BitArray, float | None]] = []
        self._seen: set[Policy] = set()

    def add(self, policy: Policy, reward: float | None) -> None:
        """Append one result."""
        self._rows.append((self._space.bits(policy), reward))
        self._seen.add(policy)

    def __contains__(self, policy: Policy) -> bool:
        return policy in self._seen

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[BitArray, float]]:
        return ((bits, reward) for bits, reward in self._rows if reward is not None)

    def best(self, count: int) -> list[BitArray]:
        """Bits of the `count` distinct policies with the highest mean reward, best first; ties to the older one."""
        rewards: dict[bytes, list[float]] = {}
        for bits, reward in self:
            rewards.setdefault(bits.tobytes(), []).append(reward)
        ranked = sorted(rewards, key=lambda key: -float(np.mean(rewards[key])))[:count]
        return [np.frombuffer(key, dtype=np.int64).reshape(-1, 2) for key in ranked]

    def arrays(self) -> Arrays:
        """All rows as two arrays; NaN marks a failure."""
        bits = np.array([bits for bits, _ in self._rows], dtype=np.int8).reshape(-1, len(self._space.searched), 2)
        rewards = [np.nan if reward is None else reward for _, reward in self._rows]
        return {"history.bits": bits, "history.rewards": np.array(rewards, dtype=np.float64)}

    def load(self, arrays: Arrays) -> None:
        """Replace all rows by those that `arrays` returned."""
        self._rows, self._seen = [], set()
        rows = zip(arrays["history.bits"].astype(np.int64), arrays["history.rewards"].tolist(), strict=True)
        for bits, reward in rows:
            self.add(self._space.policy(bits), None if np.isnan(reward) else reward)
