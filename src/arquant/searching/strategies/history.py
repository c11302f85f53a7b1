"""What a strategy was told so far, and a base class for strategies that remember just that."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from arquant.quantization.policy import Policy
from arquant.searching.space import BitArray, Space
from arquant.searching.strategy import Arrays, State, Strategy


class History:
    """Policies with their rewards in the order they were told; a failed one has the reward None.

    The same policy told again with the same reward is no new evidence and not added. `policy in history` tells whether
    it was ever told. Iterating gives the (bits, reward) of those that did not fail.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._results: dict[tuple[Policy, float | None], BitArray] = {}
        self._seen: set[Policy] = set()

    def add(self, policy: Policy, reward: float | None) -> None:
        """Append one result."""
        self._results.setdefault((policy, reward), self._space.bits(policy))
        self._seen.add(policy)

    def __contains__(self, policy: Policy) -> bool:
        return policy in self._seen

    def __iter__(self) -> Iterator[tuple[BitArray, float]]:
        return ((bits, reward) for (_, reward), bits in self._results.items() if reward is not None)

    def untried_uniform(self) -> Policy | None:
        """The first of the uniform pairs that use the budget up which was not told yet: good policies to begin with."""
        uniform = (self._space.uniform(pair) for pair in self._space.uniform_pairs)
        return next((policy for policy in uniform if policy not in self._seen), None)

    def arrays(self) -> Arrays:
        """All results as two arrays; NaN marks a failure."""
        bits = np.array(list(self._results.values()), dtype=np.int8).reshape(-1, len(self._space.searched), 2)
        rewards = [np.nan if reward is None else reward for _, reward in self._results]
        return {"history.bits": bits, "history.rewards": np.array(rewards, dtype=np.float64)}

    def load(self, arrays: Arrays) -> None:
        """Replace all results by those that `arrays` returned."""
        self._results, self._seen = {}, set()
        rows = zip(arrays["history.bits"].astype(np.int64), arrays["history.rewards"].tolist(), strict=True)
        for bits, reward in rows:
            self.add(self._space.policy(bits), None if np.isnan(reward) else reward)


class Remembering(Strategy):
    """A strategy whose only memory is the history of what it was told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._history = History(self.space)

    def _learn(self, policy: Policy, reward: float | None) -> None:
        self._history.add(policy, reward)

    def _save(self) -> State:
        return {}, self._history.arrays()

    def _load(self, data: dict[str, Any], arrays: Arrays) -> None:
        self._history.load(arrays)
