"""Report how far the loop of a search is: for a progress bar, and for a log."""

import time
from dataclasses import dataclass, field

from arquant.base.progress import MINUTES, Report, Status, duration
from arquant.searching.journal_lines import Candidate
from arquant.searching.standings import Standings, Track


@dataclass
class LoopProgress:
    """Reports on a loop.

    Args:
        trials, hours: the limits of the loop.
    """

    standings: Standings
    report: Report
    trials: int | None
    hours: float | None
    _began: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Report that a candidate begins."""
        self._began = time.monotonic()
        self.report(self._status(0.0, {}))

    def part(self, part: Status) -> None:
        """Report how far the candidate in flight is: fine-tuning counts as half of it, voting as the other."""
        share = 0.5 * (part.stage == "votes") + 0.5 * part.done / max(part.total, 1)
        self.report(self._status(share, {"now": f"{part.stage} {part.done / max(part.total, 1):.0%}"}))

    def end(self, candidate: Candidate) -> None:
        """Report a finished candidate, with the values that a log keeps."""
        self.report(self._status(0.0, {}, self._values(candidate)))

    def replay(self, done: int, total: int) -> None:
        """Report how much of the journal is taken in."""
        self.report(Status("replay", done, total, "candidates"))

    @property
    def seconds_left(self) -> float | None:
        """Estimate how long the loop still takes, at the pace so far; None where nothing tells."""
        done, spent = len(self.standings.candidates), self.standings.seconds
        spans = [] if self.trials is None or not done else [(self.trials - done) * spent / done]
        spans += [] if self.hours is None else [3600 * self.hours - spent]
        return max(0.0, min(spans)) if spans else None

    def _values(self, candidate: Candidate) -> dict[str, float]:
        """Return what a log keeps of a candidate; it has one curve of the best, that of the first budget."""
        values = {"seconds": sum(candidate.seconds.values()), "budget used": candidate.usage or 0.0}
        found = {"score": candidate.score, "acr": candidate.acr}
        values |= {name: estimate.value for name, estimate in found.items() if estimate is not None}
        best = [ranked[0].value for ranked in map(self.standings.ranking, self.standings.tracks) if ranked]
        first = {} if not best or best[0] is None else {"best": best[0]}
        return {**values, **first, "examined": float(self.standings.examined)}

    def _status(self, share: float, details: dict[str, str], values: dict[str, float] | None = None) -> Status:
        standings = self.standings
        number, several = len(standings.candidates), len(standings.tracks) > 1
        ranked = [(track, standings.ranking(track)) for track in standings.tracks]
        bests = [f"{track.name} " * several + _as_best(found[0], track) for track, found in ranked if found]
        shown = {**details, **({"best": "; ".join(bests)} if bests else {})}
        if self.trials is not None:
            return Status("search", number + share, self.trials, "candidates", shown, values or {}, number)
        each = {"each": duration(standings.seconds / number)} if number else {}
        shown = {"candidates": str(number), **each, **shown}
        spent = standings.seconds + (time.monotonic() - self._began if share else 0.0)
        return Status("search", spent / 60, 60 * (self.hours or 0.0), MINUTES, shown, values or {}, number)


def _as_best(candidate: Candidate, track: Track) -> str:
    """Say the score with its interval, and how much of the budget the candidate uses."""
    score = candidate.score
    if score is None:
        raise AssertionError("only scored candidates are ranked")
    used = f", {candidate.usage:.1%} of the budget" if candidate.usage and candidate.budget == track.name else ""
    interval = "" if score.low is None or score.high is None else f" [{score.low:.4f}, {score.high:.4f}]"
    return f"{score.value:.4f}{interval}{used}"
