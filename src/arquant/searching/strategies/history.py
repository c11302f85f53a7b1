"""Remember what a strategy was told: the history, and a base class for strategies that learn from it."""

from collections.abc import Iterator
from typing import Any

from arquant.quantization.policy import Policy
from arquant.searching.space import BitArray, Space
from arquant.searching.strategy import Proposal, Strategy


class History:
    """Policies with their rewards in the order they were told; a failed one has the reward None.

    The same policy told again with the same reward is no new evidence and not added. `policy in history` is True if it
    was ever told. Iterating gives the (bits, reward) of those that did not fail.
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


class Remembering(Strategy):
    """A strategy that remembers what it was told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._history = History(self.space)

    def _learn(self, proposal: Proposal, reward: float | None) -> None:
        self._history.add(proposal.policy, reward)

    def _tried(self, policy: Policy) -> bool:
        """Return True for a policy that was told or is being evaluated."""
        return policy in self._history or any(policy == proposal.policy for proposal in self._pending)

    def _untried_uniform(self) -> Policy | None:
        """Return the first untried one of the uniform pairs that use the budget up: good policies to begin with."""
        uniform = (self.space.uniform(pair) for pair in self.space.uniform_pairs)
        return next((policy for policy in uniform if not self._tried(policy)), None)
