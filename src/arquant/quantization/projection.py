"""Lowering bit-widths until costs fit: the arithmetic behind `Budget.project_*`. Arrays only, no names."""

import numpy as np
from numpy.typing import NDArray

_SLACK = 1e-13
_DOWN = ((0, 1), (1, 0), (1, 1))


class Descent:
    """Bits [layer, (w, a)] on their way down.

    Args:
        costs: shares [limit, layer, w - 1, a - 1].
        amounts: what each limit allows.
        bits: where to start; `free` says which layers may change, `min_bits` how far down.
    """

    def __init__(
        self,
        costs: NDArray[np.float64],
        amounts: NDArray[np.float64],
        bits: NDArray[np.int64],
        free: NDArray[np.bool_],
        min_bits: int,
    ) -> None:
        self.costs = costs
        self.scale = np.maximum(np.abs(amounts), np.finfo(np.float64).tiny)
        self.amounts = amounts + _SLACK * self.scale
        self.start = bits
        self.bits = bits.copy()
        self.free = free
        self.min_bits = min_bits
        self.everywhere = np.arange(len(bits))

    def shares(self, bits: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the costs [limit, layer] of given bits."""
        shares: NDArray[np.float64] = self.costs[:, self.everywhere, bits[:, 0] - 1, bits[:, 1] - 1]
        return shares

    def exceeded(self) -> NDArray[np.bool_]:
        """Return which limits the current bits exceed."""
        over: NDArray[np.bool_] = self.shares(self.bits).sum(axis=1) > self.amounts
        return over

    def back_to_front(self) -> None:
        """From the last layer to the first: `a` - 1, then `w` - 1; again until nothing is exceeded."""
        force, over = False, self.exceeded()
        while over.any():
            moved = False
            for place in np.flatnonzero(self.free)[::-1]:
                for column in (1, 0):
                    if self.bits[place, column] <= self.min_bits or not (force or self._relieves(place, column, over)):
                        continue
                    self.bits[place, column] -= 1
                    moved, over = True, self.exceeded()
                    if not over.any():
                        return
            if force and not moved:
                return
            force = not moved

    def _relieves(self, place: int, column: int, over: NDArray[np.bool_]) -> bool:
        w, a = self.bits[place] - 1
        now = self.costs[over, place, w, a]
        return bool((self.costs[over, place, w - (column == 0), a - (column == 1)] < now).any())

    def least_damage(self, damage: NDArray[np.float64]) -> None:
        """Take the step with the least `damage` [layer, w - 1, a - 1] per relief until nothing is exceeded."""
        over = self.exceeded()
        while over.any():
            best: tuple[float, float, int, tuple[int, int]] | None = None
            for step in _DOWN:
                places, harm, relief = self._options(step, damage, over)
                if not len(places):
                    continue
                ratio = np.where(relief > 0, harm / np.where(relief > 0, relief, 1.0), np.inf)
                chosen = int(np.lexsort((harm, ratio))[0])
                option = (float(ratio[chosen]), float(harm[chosen]), int(places[chosen]), step)
                best = option if best is None else min(best, option)
            if best is None:
                return
            self.bits[best[2]] -= best[3]
            over = self.exceeded()

    def _options(
        self, step: tuple[int, int], damage: NDArray[np.float64], over: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return where the step down is possible, with its harm and its relief of the exceeded limits (in shares of them)."""
        lower = self.bits - np.array(step)
        places = np.flatnonzero(self.free & ((lower >= self.min_bits) | (np.array(step) == 0)).all(axis=1))
        lower = np.maximum(lower, 1)
        gained = (self.shares(self.bits) - self.shares(lower))[over] / self.scale[over, None]
        harm = self._damage(damage, lower) - self._damage(damage, self.bits)
        return places, harm[places], gained.sum(axis=0)[places]

    def _damage(self, damage: NDArray[np.float64], bits: NDArray[np.int64]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = damage[self.everywhere, bits[:, 0] - 1, bits[:, 1] - 1]
        return values

    def give_back(self, damage: NDArray[np.float64]) -> None:
        """Raise bits again, never above the start, while that lowers the damage and exceeds nothing; best first."""
        if self.exceeded().any():
            return
        while True:
            best: tuple[float, int, tuple[int, int]] | None = None
            totals = self.shares(self.bits).sum(axis=1)
            for step in ((1, 0), (0, 1)):
                higher = np.minimum(self.bits + np.array(step), self.start)
                change = totals[:, None] + self.shares(higher) - self.shares(self.bits)
                fits = (change <= self.amounts[:, None]).all(axis=0) & (higher != self.bits).any(axis=1)
                relief = self._damage(damage, self.bits) - self._damage(damage, higher)
                for place in np.flatnonzero(fits & self.free & (relief > 0)):
                    option = (float(relief[place]), int(place), step)
                    best = option if best is None else max(best, option)
            if best is None:
                return
            self.bits[best[1]] += best[2]
