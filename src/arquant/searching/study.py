"""The search loop: ask a strategy, evaluate, write the journal, tell the strategy; until a limit is reached.

The journal is the only state. A study that is opened again asks and tells its strategies through all that is written
there, finds every policy equal, and goes on: whatever killed the process, at most the candidate in flight is lost, and
the result is that of a run that was never interrupted.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arquant.base.errors import InputError, MismatchError
from arquant.base.journal import Journal, Record
from arquant.base.progress import MINUTES, Report, Status, duration, silent
from arquant.quantization.costs import Bops, WeightBytes
from arquant.quantization.policy import Policy
from arquant.searching.candidate import Evaluate, Outcome
from arquant.searching.history import end_reason
from arquant.searching.kept_networks import Kept, KeptNetworks
from arquant.searching.space import BitArray, Space
from arquant.searching.strategy import Strategy

MOST_FAILURES = 5
"""so many failures, and no success, end a search: something is wrong with its settings"""
MOST_REPEATS = 200
"""so many repeated policies in a row end a search without a number of trials: its strategy has nothing left to try"""
EXHAUSTED = "all policies of the strategy"
"""why a loop ends that has nothing left to try"""


@dataclass(frozen=True)
class Limits:
    """When the loop ends; whichever comes first.

    Attributes:
        trials: policies that the strategies proposed, repeated ones included.
        hours: spent on evaluations, those of earlier runs of the study included. Every budget is tried, whatever it takes.
        target_acr: an estimated ACR that is enough.
    """

    trials: int | None = None
    hours: float | None = None
    target_acr: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("hours", self.hours), ("target_acr", self.target_acr)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be positive and finite, got {value}")


@dataclass(frozen=True, eq=False)
class Track:
    """A budget and the strategy that searches it."""

    space: Space
    strategy: Strategy

    @property
    def name(self) -> str:
        """The budget as it was asked for."""
        return self.space.budget.text


class Study:
    """A search over one or several budgets, which share their evaluations and take turns.

    Args:
        tracks: one per budget.
        evaluate: from a policy to its outcome; equal policies must get equal scores.
        journal: what happened so far; its candidates are replayed.
        kept: where the networks of the best candidates are kept.
        shortlist: how many networks are kept per budget.
        racing: hand the best candidate so far to `evaluate`, which may abandon a clearly worse one.
        limits: when to stop; they may change from one run of the study to the next.

    Raises:
        MismatchError: a strategy proposes other policies than those in the journal.
    """

    def __init__(
        self,
        tracks: Sequence[Track],
        evaluate: Evaluate,
        journal: Journal,
        kept: KeptNetworks,
        *,
        limits: Limits,
        shortlist: int = 3,
        racing: bool = True,
        report: Report = silent,
    ) -> None:
        self.tracks = tuple(tracks)
        self.journal = journal
        self.kept = kept
        self.limits = limits
        self.report = report
        self.candidates: list[Record] = []
        """the journal's lines on candidates, in order; the number of each is its position"""
        self._evaluate = evaluate
        self._shortlist = shortlist
        self._racing = racing
        self._known: dict[Policy, Record] = {}
        self._ranked: list[list[Record]] = [[] for _ in self.tracks]
        self._seconds = 0.0
        self._began = time.monotonic()
        self._replay([record for record in journal.records if record["kind"] == "candidate"])
        self.kept.keep_only(self._wanted())

    @property
    def examined(self) -> int:
        """How many different policies were evaluated, failures included."""
        return len(self._known)

    @property
    def seconds(self) -> float:
        """Time spent on evaluations, by all runs of this study."""
        return self._seconds

    @property
    def over(self) -> bool:
        """Whether a limit is reached: `run` would evaluate nothing."""
        return self._over() is not None

    @property
    def outlook(self) -> float | None:
        """Seconds that the loop should still take, at the pace of the candidates so far; None where nothing tells."""
        trials, hours, done = self.limits.trials, self.limits.hours, len(self.candidates)
        spans = [] if trials is None or not done else [(trials - done) * self._seconds / done]
        spans += [] if hours is None else [3600 * hours - self._seconds]
        return max(0.0, min(spans)) if spans else None

    def run(self) -> str:
        """Work until a limit is reached; returns why the loop ended. Larger limits than before make a finished loop go on."""
        while (reason := self._over()) is None:
            self._step()
        if (ended := end_reason(self.journal.records)) is not None:
            return ended
        self.journal.append({"kind": "end", "reason": reason})
        return reason

    def ranking(self, track: Track) -> list[Record]:
        """The candidates within the track's budget that were scored on all votes, best first, each policy once."""
        return list(self._ranked[self.tracks.index(track)])

    def results(self, track: Track) -> list[tuple[BitArray, float]]:
        """Bits and score of every policy within the track's budget, also of those that were abandoned."""
        found = ((policy, record["score"]) for policy, record in self._known.items() if track.space.contains(policy))
        return [(track.space.bits(policy), float(score["value"])) for policy, score in found if score is not None]

    def network(self, record: Record) -> Kept:
        """The fine-tuned network of a candidate and its votes; made again if its file is gone."""
        policy = policy_of(record)
        kept = self.kept.load(record["number"], policy)
        if kept is None:
            kept = _kept(self._evaluate(policy, None))
            if kept is None:
                raise MismatchError(
                    f"candidate {record['number']} fails now and did not when it was journaled; library or machine changed"
                )
            self.kept.save(record["number"], policy, kept)
        return kept

    def _over(self) -> str | None:
        limits = self.limits
        if limits.trials is not None and len(self.candidates) >= limits.trials:
            return f"{limits.trials} trials"
        if limits.hours is not None and self.seconds >= 3600 * limits.hours and self._all_tried():
            return f"{limits.hours:g} hours"
        target = limits.target_acr
        if target is not None and all(ranked and ranked[0]["acr"]["value"] >= target for ranked in self._ranked):
            return f"estimated ACR {target:g}"
        if all(track.strategy.finished for track in self.tracks):
            return EXHAUSTED
        repeats = [record["repeat_of"] is not None for record in self.candidates[-MOST_REPEATS:]]
        if (limits.trials is None or limits.hours is not None) and len(repeats) == MOST_REPEATS and all(repeats):
            return f"{MOST_REPEATS} repeated policies in a row"
        return None

    def _all_tried(self) -> bool:
        """Whether every budget has a scored candidate, or so many failures that time will not help."""
        return all(
            ranked or track.strategy.finished or self._proposed(track) >= MOST_FAILURES
            for track, ranked in zip(self.tracks, self._ranked, strict=True)
        )

    def _proposed(self, track: Track) -> int:
        return sum(record["budget"] == track.name for record in self.candidates)

    def _turn(self, number: int) -> Track:
        """Whose turn it is: one budget after the other, without those whose strategy has nothing left."""
        order = [self.tracks[(number + i) % len(self.tracks)] for i in range(len(self.tracks))]
        return next((track for track in order if not track.strategy.finished), order[0])

    def _step(self) -> None:
        number = len(self.candidates)
        self._began = time.monotonic()
        self.report(self._status(0.0, {}))
        track = self._turn(number)
        policy = track.strategy.ask()[0].policy
        known = self._known.get(policy)
        usage = round(track.space.budget.usage(policy), 6)
        within = [other.name for other in self.tracks if other.space.contains(policy)]
        head = {
            "kind": "candidate", "number": number, "budget": track.name, "within": within, "policy": policy.widths(),
            "usage": usage,
        }  # fmt: skip
        if known is not None:
            told = {name: known[name] for name in ("score", "acr", "acr_minus_float", "failure", "abandoned")}
            record = {**head, "repeat_of": known["number"], "cost": known["cost"], **told, "seconds": {}}
        else:
            outcome = self._evaluate(policy, self._rival(policy))
            cost = costs(policy, [each.space for each in self.tracks])
            record = {**head, "repeat_of": None, "cost": cost, **outcome.to_json()}
            kept = _kept(outcome)
            if kept is not None and self._enters(record):
                self.kept.save(number, policy, kept)
        self.journal.append(record)
        self._take_in(record)
        self.kept.keep_only(self._wanted())
        self.report(self._status(0.0, {}, self._values(record)))
        self._give_up_if_all_fail()

    def _replay(self, records: Sequence[Record]) -> None:
        """Take in what the journal has; a strategy that learns learns it again."""
        for place, record in enumerate(records):
            self.report(Status("replay", place, len(records), "candidates"))
            self._replay_one(record)
        if records:
            self.report(Status("replay", len(records), len(records), "candidates"))

    def _replay_one(self, record: Record) -> None:
        track = self._turn(len(self.candidates))
        asked = track.strategy.ask()[0].policy
        if record["budget"] != track.name or policy_of(record) != asked:
            raise MismatchError(
                f"candidate {record['number']} of {self.journal.path} is not the policy that strategy "
                f"{track.strategy.name!r} proposes now: its code, the number of threads or a library changed; start "
                "again with another --out"
            )
        self._take_in(record)

    def _take_in(self, record: Record) -> None:
        """Remember a candidate, and tell it to the strategy that asked, then to the others whose budget allows it."""
        number, policy = len(self.candidates), policy_of(record)
        asked = self._turn(number)
        self.candidates.append(record)
        self._seconds += sum(record["seconds"].values())
        if record["repeat_of"] is None:
            self._known[policy] = record
            self._ranked = self._ranked_with(record)
        reward = None if record["score"] is None else float(record["score"]["value"])
        raced = record["abandoned"] is not None
        asked.strategy.tell(policy, reward, raced=raced)
        for track in self.tracks:
            if track is not asked and record["repeat_of"] is None and track.space.contains(policy):
                track.strategy.tell(policy, reward, raced=raced)

    def _rival(self, policy: Policy) -> Kept | None:
        """Whom a candidate must lose to before it is abandoned: the worst of the best of the budgets that it is within."""
        pairs = zip(self.tracks, self._ranked, strict=True)
        bests = [ranked[:1] for track, ranked in pairs if track.space.contains(policy)]
        if not self._racing or not all(bests):
            return None
        return self.network(min((best[0] for best in bests), key=lambda record: float(record["score"]["value"])))

    def _ranked_with(self, record: Record) -> list[list[Record]]:
        """The rankings with one more candidate, where it is scored on all its votes and within the budget."""
        if record["score"] is None or record["abandoned"] is not None:
            return self._ranked
        policy = policy_of(record)
        return [
            sorted([*ranked, record], key=lambda each: (-each["score"]["value"], each["number"]))
            if track.space.contains(policy)
            else ranked
            for track, ranked in zip(self.tracks, self._ranked, strict=True)
        ]

    def _enters(self, record: Record) -> bool:
        """Whether a new candidate is among the best of a track."""
        return any(record in ranked[: self._shortlist] for ranked in self._ranked_with(record))

    def _wanted(self) -> set[int]:
        """The candidates whose networks are kept: the best, and those that were looked at again, of which one won."""
        best = {record["number"] for ranked in self._ranked for record in ranked[: self._shortlist]}
        return best | {record["number"] for record in self.journal.records if record["kind"] == "shortlist"}

    def _give_up_if_all_fail(self) -> None:
        failures = [record["failure"] for record in self.candidates]
        if len(failures) >= MOST_FAILURES and all(failures):
            raise InputError(f"the first {len(failures)} candidates failed, the last one because {failures[-1]}")

    def progress(self, part: Status) -> None:
        """Report how far the candidate in flight is: fine-tuning counts as half of it, voting as the other."""
        share = 0.5 * (part.stage == "votes") + 0.5 * part.done / max(part.total, 1)
        self.report(self._status(share, {"now": f"{part.stage} {part.done / max(part.total, 1):.0%}"}))

    def _values(self, record: Record) -> dict[str, float]:
        """What a log keeps of a candidate; the best is the first budget's, of which a log has one curve."""
        values = {"seconds": sum(record["seconds"].values()), "budget used": record["usage"]}
        values |= {name: record[name]["value"] for name in ("score", "acr") if record[name] is not None}
        best = [ranked[0]["score"]["value"] for ranked in self._ranked if ranked]
        return {**values, **({"best": best[0]} if best else {}), "examined": float(self.examined)}

    def _status(self, share: float, details: dict[str, str], values: dict[str, float] | None = None) -> Status:
        number = len(self.candidates)
        pairs = zip(self.tracks, self._ranked, strict=True)
        several = len(self.tracks) > 1
        bests = [f"{track.name} " * several + _as_best(ranked[0], track) for track, ranked in pairs if ranked]
        shown = {**details, **({"best": "; ".join(bests)} if bests else {})}
        if self.limits.trials is not None:
            return Status("search", number + share, self.limits.trials, "candidates", shown, values or {}, number)
        each = {"each": duration(self._seconds / number)} if number else {}
        shown = {"candidates": str(number), **each, **shown}
        spent = self._seconds + (time.monotonic() - self._began if share else 0.0)
        return Status("search", spent / 60, 60 * (self.limits.hours or 0.0), MINUTES, shown, values or {}, number)


def _as_best(record: Record, track: Track) -> str:
    """The score with its interval, and how much of the budget it uses, for people."""
    score = record["score"]
    used = f", {record['usage']:.1%} of the budget" if record["budget"] == track.name else ""
    return f"{score['value']:.4f} [{score['low']:.4f}, {score['high']:.4f}]{used}"


def policy_of(record: Record) -> Policy:
    """The policy of a candidate's line."""
    return Policy(record["policy"])


def costs(policy: Policy, spaces: Sequence[Space]) -> dict[str, Any]:
    """What a policy costs: bit operations in both conventions, weight bytes, and whatever the budgets limit."""
    found: dict[str, Any] = {
        cost.name: cost.cost(policy, spaces[0].layers) for cost in (Bops(), Bops("paper"), WeightBytes())
    }
    for space in spaces:
        found |= space.budget.cost(policy)
    return found


def _kept(outcome: Outcome) -> Kept | None:
    if outcome.network is None or outcome.votes is None or not outcome.complete:
        return None
    return Kept(outcome.network, outcome.votes, outcome.early)
