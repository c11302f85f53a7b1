"""The standings of a search: every candidate so far, and the best of each budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from arquant.quantization.policy import Policy
from arquant.searching.journal_lines import Candidate
from arquant.searching.space import BitArray, Space
from arquant.searching.strategy import Proposal, Strategy


@dataclass(frozen=True, eq=False)
class Track:
    """A budget and the strategy that searches it."""

    space: Space
    strategy: Strategy

    @property
    def name(self) -> str:
        """Return the budget as it was asked for."""
        return self.space.budget.text


class Standings:
    """What is known of the candidates.

    Args:
        tracks: one per budget.
        steps: of fine-tuning, where a proposal states none.
    """

    def __init__(self, tracks: Sequence[Track], steps: int) -> None:
        self.tracks = tuple(tracks)
        self.candidates: list[Candidate] = []
        """all candidates in order; the number of each is its position"""
        self.seconds = 0.0
        """time spent on evaluations, by all runs of the study"""
        self._steps = steps
        self._known: dict[Policy, Candidate] = {}
        self._ranked: list[list[Candidate]] = [[] for _ in self.tracks]

    @property
    def examined(self) -> int:
        """Count the different policies that were evaluated, failures included."""
        return len(self._known)

    def steps(self, steps: int | None) -> int:
        """Return how many steps a proposal or candidate is fine-tuned."""
        return self._steps if steps is None else steps

    def known(self, proposal: Proposal) -> Candidate | None:
        """Return the candidate whose outcome a proposal would repeat: the same policy, with as many steps or more."""
        found = self._known.get(proposal.policy)
        return None if found is None or self.steps(found.steps) < self.steps(proposal.steps) else found

    def add(self, candidate: Candidate) -> None:
        """Take in a candidate."""
        self.candidates.append(candidate)
        self.seconds += sum(candidate.seconds.values())
        if candidate.repeat_of is None:
            self._known[candidate.policy] = candidate
            self._ranked = self._ranked_with(candidate)

    def ranking(self, track: Track) -> list[Candidate]:
        """Return the candidates within the track's budget that were scored on all votes, best first, each policy once.

        A policy that was looked at again with more steps has the later score, and comes before those with fewer steps:
        it was chosen among them, and scores after fine-tunings of different length do not compare.
        """
        return list(self._ranked[self.tracks.index(track)])

    def enters(self, candidate: Candidate, places: int) -> bool:
        """Tell whether a new candidate would be among the best of a track."""
        return any(candidate in ranked[:places] for ranked in self._ranked_with(candidate))

    def best(self, places: int) -> set[int]:
        """Return the numbers of the best candidates of every track."""
        return {candidate.number for ranked in self._ranked for candidate in ranked[:places]}

    def leaders(self) -> dict[str, dict[int, Candidate]]:
        """Return the best candidate of every track by its steps: only equally long fine-tunings are fair rivals."""
        found: dict[str, dict[int, Candidate]] = {}
        for track, ranked in zip(self.tracks, self._ranked, strict=True):
            of_track = found.setdefault(track.name, {})
            for candidate in ranked:
                of_track.setdefault(self.steps(candidate.steps), candidate)
        return found

    def results(self, track: Track) -> list[tuple[BitArray, float]]:
        """Return bits and score of every policy within the track's budget, also of those that were abandoned."""
        within = [(policy, found.value) for policy, found in self._known.items() if track.space.contains(policy)]
        return [(track.space.bits(policy), value) for policy, value in within if value is not None]

    def proposed(self, track: Track) -> int:
        """Count the candidates that a track proposed."""
        return sum(candidate.budget == track.name for candidate in self.candidates)

    def _ranked_with(self, candidate: Candidate) -> list[list[Candidate]]:
        """Return the rankings with one more candidate, where it is complete and within the budget."""
        if not candidate.complete:
            return self._ranked
        return [
            sorted(
                [*(each for each in ranked if each.policy != candidate.policy), candidate],
                key=lambda each: (-self.steps(each.steps), -(each.value or 0.0), each.number),
            )
            if track.space.contains(candidate.policy)
            else ranked
            for track, ranked in zip(self.tracks, self._ranked, strict=True)
        ]
