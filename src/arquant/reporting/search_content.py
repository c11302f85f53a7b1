"""The content of a search as reports show it: candidates, winners, and who leads. All scores are estimates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A line of a search's journal. Its score and its ACR are estimates on few votes: they rank and prove nothing.

    Attributes:
        budget, within: the one that it was proposed for, and all that it is within.
        outcome: scored, abandoned (lost a race), failed or repeated.
        score, standard_error, estimate: what the search maximised, and its name.
        acr: None if it was abandoned or failed.
        widths: `w2a4` for a uniform pair, `mixed w2-8, a3-8` for others.
        steps: of its fine-tuning; None if unknown. Scores after different numbers of steps do not compare.
    """

    number: int
    budget: str
    within: tuple[str, ...]
    outcome: str
    score: float | None
    standard_error: float | None
    estimate: str
    acr: float | None
    bops: float | None
    widths: str = ""
    steps: int | None = None

    @property
    def is_uniform(self) -> bool:
        """Tell whether all searched layers have the same two widths."""
        return bool(self.widths) and not self.widths.startswith("mixed")


@dataclass(frozen=True)
class Winner:
    """The candidate that a search chose within a budget, and why, in a sentence."""

    budget: str
    number: int
    why: str


@dataclass(frozen=True, eq=False)
class Search:
    """The content of a search's journal.

    Attributes:
        folder: of the journal, as the user named it.
        candidates: in the order in which they were tried.
        facts: what the search was about, how long it took, how many candidates it examined, how it ended.
        winners: one per budget that has one.
    """

    folder: str
    candidates: tuple[Candidate, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    winners: tuple[Winner, ...] = ()

    @property
    def budgets(self) -> tuple[str, ...]:
        """Return the budgets that candidates were proposed for."""
        return tuple(dict.fromkeys(candidate.budget for candidate in self.candidates))

    @property
    def best_uniform(self) -> Candidate | None:
        """Return the uniform pair with the best score, of those that were fine-tuned longest."""
        return _leader([c for c in self.candidates if c.is_uniform])

    def leader(self, budget: str) -> Candidate | None:
        """Return the candidate that leads within a budget: the best score, of those that were fine-tuned longest."""
        return _leader([c for c in self.candidates if budget in c.within])


def _leader(candidates: Sequence[Candidate]) -> Candidate | None:
    scored = [c for c in candidates if c.outcome == "scored" and c.score is not None]
    return max(scored, key=lambda c: (c.steps or 0, c.score or 0.0), default=None)


def spelled_widths(bits: Sequence[tuple[int, int]]) -> str:
    """Return the (w, a) of a network's layers as `w4a4` or `mixed w2-8, a3-8`; its first and last layer are left out."""
    ws, as_ = zip(*(bits[1:-1] or bits), strict=True)
    if len(set(ws)) == len(set(as_)) == 1:
        return f"w{ws[0]}a{as_[0]}"
    return f"mixed w{_span(ws)}, a{_span(as_)}"


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)}-{max(values)}"
