"""The search loop: ask a strategy, evaluate, write the journal, tell the strategy; until a limit is reached.

The journal is the only state. A study that is opened again asks and tells its strategies through all that is written
there, finds every policy equal, and goes on: whatever killed the process, at most the candidates in flight are lost, and
the result is that of a run that was never interrupted.

Candidates come in rounds of a fixed size: all proposals of a round are asked for before the first of them is told, and
all race against the leaders that the round began with. So the result does not depend on where, or how many at a time,
they are evaluated.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from arquant.base.errors import InputError, MismatchError
from arquant.base.progress import Report, silent
from arquant.quantization.costs import Bops, WeightBytes
from arquant.quantization.policy import Policy
from arquant.searching.candidate import Evaluate
from arquant.searching.history import end_reason, trials_of
from arquant.searching.journal_lines import Candidate, End, SearchJournal, SecondLook
from arquant.searching.kept_networks import Kept, KeptNetworks
from arquant.searching.loop_progress import LoopProgress
from arquant.searching.space import Space
from arquant.searching.standings import Standings, Track
from arquant.searching.strategy import Proposal

MOST_FAILURES = 5
"""Stop the search after this many failures without a success: something is wrong with its settings."""
MOST_REPEATS = 200
"""Stop a search by the clock after this many repeated policies in a row: its strategy has nothing left to try."""
EXHAUSTED = "all policies of the strategy"
"""the reason of a loop that ends because there is nothing left to try"""


@dataclass(frozen=True)
class Limits:
    """When the loop ends; whichever comes first.

    Attributes:
        trials: policies that the strategies proposed, repeated ones included.
        hours: spent on evaluations, also by earlier runs of the study. Every budget is tried, whatever it takes.
        target_acr: an estimated ACR that is enough.
    """

    trials: int | None = None
    hours: float | None = None
    target_acr: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("hours", self.hours), ("target_acr", self.target_acr)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be positive and finite, got {value}")


class Study:
    """A search over one or several budgets, which share their evaluations and take turns.

    Args:
        tracks: one per budget.
        evaluate: from a proposal to its outcome; equal proposals must get equal scores.
        journal: what happened so far; its candidates are replayed.
        kept: where the networks of the best candidates are kept.
        steps: of fine-tuning, where a proposal states none.
        shortlist: how many networks are kept per budget.
        racing: hand a rival to `evaluate`, which may abandon a clearly worse candidate.
        round: how many proposals are asked for at once.
        ahead: is told the proposals of a round, each with its rival, before `evaluate` is asked for the first of them.
        limits: when to stop; they may change from one run of the study to the next.

    Raises:
        MismatchError: a strategy proposes other policies than those in the journal.
    """

    def __init__(
        self,
        tracks: Sequence[Track],
        evaluate: Evaluate,
        journal: SearchJournal,
        kept: KeptNetworks,
        *,
        limits: Limits,
        steps: int = 1,
        shortlist: int = 3,
        racing: bool = True,
        round: int = 1,
        ahead: Callable[[Sequence[tuple[Proposal, Kept | None]]], None] | None = None,
        report: Report = silent,
    ) -> None:
        self.tracks = tuple(tracks)
        self.journal = journal
        self.kept = kept
        self.limits = limits
        self.standings = Standings(tracks, steps)
        self.progress = LoopProgress(self.standings, report, limits.trials, limits.hours)
        self._evaluate = evaluate
        self._shortlist = shortlist
        self._racing = racing
        self._round = round
        self._ahead = ahead
        self._queue: deque[tuple[Track, Proposal]] = deque()
        self._looked_ahead = False
        self._leaders: dict[str, dict[int, Candidate]] = {}
        self._replay(trials_of(journal.lines))
        self.kept.keep_only(self._wanted())

    @property
    def candidates(self) -> list[Candidate]:
        """Return the candidates in order."""
        return self.standings.candidates

    @property
    def over(self) -> bool:
        """Tell whether a limit is reached: `run` would evaluate nothing."""
        return self._over() is not None

    def run(self) -> str:
        """Work until a limit is reached; return why the loop ended. Larger limits make a finished loop go on."""
        while (reason := self._over()) is None:
            self._step()
        if (ended := end_reason(self.journal.lines)) is not None:
            return ended
        self.journal.add(End(reason=reason))
        return reason

    def network(self, candidate: Candidate) -> Kept:
        """Return the fine-tuned network of a candidate and its votes; made again if its file is gone."""
        kept = self.kept.load(candidate.number, candidate.policy)
        if kept is None:
            kept = self._evaluate(Proposal(candidate.policy, candidate.steps), None).kept
            if kept is None:
                raise MismatchError(
                    f"candidate {candidate.number} fails now and did not when it was journaled; library or machine changed"
                )
            self.kept.save(candidate.number, candidate.policy, kept)
        return kept

    def _over(self) -> str | None:
        limits, standings = self.limits, self.standings
        if limits.trials is not None and len(self.candidates) >= limits.trials:
            return f"{limits.trials} trials"
        if limits.hours is not None and standings.seconds >= 3600 * limits.hours and self._all_tried():
            return f"{limits.hours:g} hours"
        if limits.target_acr is not None and all(map(self._reaches_target, self.tracks)):
            return f"estimated ACR {limits.target_acr:g}"
        if not self._queue and all(track.strategy.finished for track in self.tracks):
            return EXHAUSTED
        repeats = [candidate.repeat_of is not None for candidate in self.candidates[-MOST_REPEATS:]]
        if (limits.trials is None or limits.hours is not None) and len(repeats) == MOST_REPEATS and all(repeats):
            return f"{MOST_REPEATS} repeated policies in a row"
        return None

    def _reaches_target(self, track: Track) -> bool:
        best = self.standings.ranking(track)[:1]
        return bool(best and best[0].acr and best[0].acr.value >= (self.limits.target_acr or 0.0))

    def _all_tried(self) -> bool:
        """Tell whether every budget has a scored candidate, or so many failures that time will not help."""
        return all(
            self.standings.ranking(track) or track.strategy.finished or self.standings.proposed(track) >= MOST_FAILURES
            for track in self.tracks
        )

    def _next(self) -> tuple[Track, Proposal]:
        """Return the next proposal and the track that made it; ask for a round of them if none is left."""
        if not self._queue:
            first = len(self.candidates)
            turns = [self._turn(first + place) for place in range(self._round)]
            asked = {track: deque(track.strategy.ask(count)) for track, count in Counter(turns).items()}
            # a strategy may have fewer proposals than it was asked for
            self._queue.extend((track, asked[track].popleft()) for track in turns if asked[track])
            self._leaders = self.standings.leaders()
            self._looked_ahead = False
        if not self._queue:
            raise AssertionError("a strategy that is not finished must propose something")
        return self._queue.popleft()

    def _turn(self, number: int) -> Track:
        """Return whose turn it is: one budget after the other, without those whose strategy has nothing left."""
        order = [self.tracks[(number + i) % len(self.tracks)] for i in range(len(self.tracks))]
        return next((track for track in order if not track.strategy.finished), order[0])

    def _step(self) -> None:
        self.progress.begin()
        track, proposal = self._next()
        self._look_ahead(proposal)
        candidate = self._evaluated(track, proposal)
        self.journal.add(candidate)
        self._take_in(track, proposal, candidate)
        self.kept.keep_only(self._wanted())
        self.progress.end(candidate)
        self._give_up_if_all_fail()

    def _look_ahead(self, proposal: Proposal) -> None:
        """Let the rest of a round, whose rivals are known, be evaluated side by side."""
        if self._looked_ahead or self._ahead is None:
            return
        self._looked_ahead = True
        left = None if self.limits.trials is None else self.limits.trials - len(self.candidates)
        coming = dict.fromkeys([proposal, *(each for _, each in self._queue)][:left])
        fresh = [each for each in coming if self.standings.known(each) is None]
        self._ahead([(each, self._rival(each)) for each in fresh])

    def _evaluated(self, track: Track, proposal: Proposal) -> Candidate:
        """Return the journal's line on a proposal. Its network is on disk by then, if it is among the best."""
        policy, number = proposal.policy, len(self.candidates)
        head = Candidate(
            number=number, budget=track.name, policy=policy, steps=proposal.steps,
            within=tuple(other.name for other in self.tracks if other.space.contains(policy)),
            usage=round(track.space.budget.usage(policy), 6),
            cost=costs(policy, [each.space for each in self.tracks]),
        )  # fmt: skip
        known = self.standings.known(proposal)
        if known is not None:
            return replace(
                head, repeat_of=known.number, score=known.score, acr=known.acr, acr_minus_float=known.acr_minus_float,
                failure=known.failure, abandoned=known.abandoned,
            )  # fmt: skip
        outcome = self._evaluate(proposal, self._rival(proposal))
        candidate, kept = outcome.line(head), outcome.kept
        if kept is not None and self.standings.enters(candidate, self._shortlist):
            self.kept.save(number, policy, kept)
        return candidate

    def _replay(self, candidates: Sequence[Candidate]) -> None:
        """Take in what the journal has; a strategy that learns learns it again."""
        for place, candidate in enumerate(candidates):
            self.progress.replay(place, len(candidates))
            track, proposal = self._next()
            wanted = (track.name, proposal.policy, proposal.steps)
            if (candidate.budget, candidate.policy, candidate.steps) != wanted:
                raise MismatchError(
                    f"candidate {candidate.number} of {self.journal.path} is not the policy that strategy "
                    f"{track.strategy.name!r} proposes now: its code, the number of threads or a library changed; start "
                    "again with another --out"
                )
            self._take_in(track, proposal, candidate)
        if candidates:
            self.progress.replay(len(candidates), len(candidates))

    def _take_in(self, asked: Track, proposal: Proposal, candidate: Candidate) -> None:
        """Remember a candidate, and tell it to the strategy that asked, and let the others overhear."""
        self.standings.add(candidate)
        raced = candidate.abandoned is not None
        asked.strategy.tell(proposal, candidate.value, raced=raced)
        for track in self.tracks:
            if track is not asked and candidate.repeat_of is None:
                track.strategy.overhear(proposal, candidate.value, raced=raced)

    def _rival(self, proposal: Proposal) -> Kept | None:
        """Return the candidate to race against: the weakest leader among the budgets that the policy fits."""
        steps = self.standings.steps(proposal.steps)
        fitting = [track.name for track in self.tracks if track.space.contains(proposal.policy)]
        leaders = [self._leaders[name].get(steps) for name in fitting]
        found = [leader for leader in leaders if leader is not None]
        if not self._racing or len(found) < len(leaders):
            return None
        return self.network(min(found, key=lambda leader: leader.value or 0.0))

    def _wanted(self) -> set[int]:
        """Return the candidates whose networks are kept: the best, those looked at again, and rivals of this round."""
        looked_at = {line.number for line in self.journal.lines if isinstance(line, SecondLook)}
        rivals = {each.number for by_steps in self._leaders.values() for each in by_steps.values()}
        return self.standings.best(self._shortlist) | looked_at | (rivals if self._queue else set())

    def _give_up_if_all_fail(self) -> None:
        failures = [candidate.failure for candidate in self.candidates]
        if len(failures) >= MOST_FAILURES and all(failures):
            raise InputError(f"the first {len(failures)} candidates failed, the last one because {failures[-1]}")


def costs(policy: Policy, spaces: Sequence[Space]) -> dict[str, float]:
    """Return what a policy costs: bit operations in both conventions, weight bytes, and whatever the budgets limit."""
    found: dict[str, float] = {
        cost.name: cost.cost(policy, spaces[0].layers) for cost in (Bops(), Bops("paper"), WeightBytes())
    }
    for space in spaces:
        found |= space.budget.cost(policy)
    return found
