"""What a search can do ahead, side by side: workers compute results before they are asked for, one by one, in order.

A search asks for one result after the other, and each may depend on those before. Where it knows a few of its next questions,
it hands them out; when it then asks, the answers are there. So it does the same as in one process, only sooner.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from arquant.engines.pool import Pool

Request = tuple[str, Hashable, tuple[Any, ...]]
"""what is asked for, what the answer will be known by, and the arguments of the question"""


@dataclass(frozen=True)
class Done:
    """An answer, which may be None."""

    result: Any


class CandidatePool:
    """Workers that answer requests ahead.

    Args:
        open_pool: starts the workers, when they are first needed.
    """

    def __init__(self, open_pool: Callable[[], Pool]) -> None:
        self._open = open_pool
        self._pool: Pool | None = None
        self._done: dict[tuple[str, Hashable], Done] = {}

    def work_ahead(self, requests: Sequence[Request], on_done: Callable[[int, int], None]) -> None:
        """Answer requests; forget earlier answers that nobody has taken.

        Args:
            on_done: told how many of how many are answered.
        """
        self._done.clear()
        if not requests:
            return
        if self._pool is None:
            self._pool = self._open()
        waiting = iter(requests)

        def receive(request: Request, result: Any) -> None:
            what, key, _ = request
            self._done[what, key] = Done(result)
            on_done(len(self._done), len(requests))

        self._pool.run(lambda: next(waiting, None), receive)

    def taken(self, what: str, key: Hashable) -> Done | None:
        """Return an answer and forget it; None if there is none."""
        return self._done.pop((what, key), None)

    def close(self) -> None:
        """End the workers, and leave their places to others; the answers stay."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
