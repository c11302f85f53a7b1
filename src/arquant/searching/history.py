"""What a search has done so far, in the lines of its journal; nothing of the search itself is needed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arquant.base.errors import ArquantError, FileFormatError
from arquant.base.journal import Journal, Record, read_journal
from arquant.base.json_numbers import finite
from arquant.base.run_folder import JOURNAL, search_of
from arquant.quantization.policy import Policy
from arquant.searching.options import SECOND_LOOKS

SCORED, ABANDONED, FAILED, REPEATED = "scored", "abandoned", "failed", "repeated"
WINNER = "winner"
"""kind of the line on the candidate that won a budget; it says by which second looks"""
CERTIFIED = "certified"
"""kind of the line on a model that the search did not make, such as a fine-tuned one, certified on its images"""
CHOICE = "choice"
"""kind of the line that says by which second looks, other than before, winners are to be chosen"""


def _is_number(value: Any) -> bool:
    return finite(value) is not None


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(each is None or _is_number(each) for each in value.values())


def _is_score(value: Any) -> bool:
    ends = (value.get(name, 0.0) for name in ("low", "high", "standard_error")) if isinstance(value, dict) else ()
    return (
        isinstance(value, dict)
        and _is_number(value.get("value"))
        and all(each is None or _is_number(each) for each in ends)
    )


def _is_policy(value: Any) -> bool:
    try:
        Policy(value)
    except (ArquantError, TypeError, AttributeError, ValueError):
        return False
    return True


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "score": _is_score, "acr": _is_score, "policy": _is_policy, "cost": _are_numbers, "seconds": _are_numbers,
    "usage": _is_number, "within": lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
}  # fmt: skip
"""what a candidate's line may hold, where it holds anything"""


@dataclass(frozen=True)
class Trial:
    """A candidate. Its score is an estimate that ranks candidates and proves nothing.

    Attributes:
        outcome: `scored` on all its votes, `abandoned` (lost a race), `failed`, or `repeated`.
        score: value, low, high and what was estimated; None if it failed.
        budget, within: the one that it was proposed for, and all that it is within.
        usage: the largest share of a limit that its policy uses; None where the journal does not say.
        seconds: by stage.
    """

    number: int
    budget: str
    within: Sequence[str]
    outcome: str
    score: Mapping[str, Any] | None
    cost: Mapping[str, float]
    usage: float | None
    policy: Mapping[str, str] = field(repr=False)
    seconds: Mapping[str, float]

    @property
    def value(self) -> float | None:
        """The score's value."""
        return None if self.score is None else float(self.score["value"])


def outcome_of(record: Record) -> str:
    """How a candidate's evaluation ended, in one word."""
    if record.get("repeat_of") is not None:
        return REPEATED
    if record.get("failure") is not None or record.get("score") is None:
        return FAILED
    return SCORED if record.get("abandoned") is None else ABANDONED


def trials_of(records: Iterable[Record]) -> tuple[Trial, ...]:
    """The candidates of a journal, in order.

    Raises:
        FileFormatError: a line holds what no search writes there.
    """
    lines = [record for record in records if record.get("kind") == "candidate"]
    return tuple(_trial(record, number) for number, record in enumerate(lines))


def _trial(record: Record, number: int) -> Trial:
    for name, holds in _FIELDS.items():
        if record.get(name) is not None and not holds(record[name]):
            raise FileFormatError(f"{JOURNAL}: candidate {number} has the {name} {record[name]!r}; the line is damaged")
    budget = str(record.get("budget", ""))
    return Trial(
        number, budget, record.get("within") or [budget], outcome_of(record), record.get("score"),
        record.get("cost") or {}, record.get("usage"), record.get("policy") or {}, record.get("seconds") or {},
    )  # fmt: skip


def best_of(trials: Sequence[Trial]) -> dict[str, Trial]:
    """By budget, the best candidate that is within it and was scored on all its votes; the earlier of equal ones."""
    best: dict[str, Trial] = {}
    for trial in trials:
        for budget in trial.within if trial.outcome == SCORED else ():
            if budget not in best or _value(trial) > _value(best[budget]):
                best[budget] = trial
    return best


def _value(trial: Trial) -> float:
    return float("-inf") if trial.value is None else trial.value


def latest_options(identity: Record, records: Iterable[Record]) -> dict[str, Any]:
    """The options of a search: those it began with, but for those of second looks, which are the latest."""
    began = identity.get("options")
    found = dict(began) if isinstance(began, dict) else {}
    for record in records:
        if record.get("kind") in (WINNER, CHOICE):
            found |= {name: record[name] for name in SECOND_LOOKS if name in record}
    return found


def models_made(records: Iterable[Record]) -> int:
    """How many models of one folder there were, one after the other: each was certified on the same images."""
    made: dict[Any, set[Any]] = {}
    for record in records:
        if record.get("kind") in ("model", CERTIFIED):
            made.setdefault(record.get("folder"), set()).add(record.get("fingerprint"))
    return max((len(models) for models in made.values()), default=0)


def record_certified(folder: Path, fingerprint: str, images: str) -> None:
    """Tell the search that `folder` is of, if any, that a model there which it does not know is certified on its images.

    Raises:
        MismatchError: the search is at work.
    """
    search = search_of(folder)
    if search is None:
        return
    identity, records = read_journal(search / JOURNAL)
    known = any(record.get("fingerprint") == fingerprint for record in records)
    if known or identity.get("images", {}).get("certify") != images:
        return
    name = str(folder.resolve().relative_to(search))
    with Journal(search / JOURNAL, identity) as journal:
        journal.append({"kind": CERTIFIED, "folder": name, "fingerprint": fingerprint})


def end_reason(records: Iterable[Record]) -> str | None:
    """Why the loop ended; None while it has not, or where it went on after an end, with larger limits."""
    lines = [record for record in records if record.get("kind") in ("candidate", "end")]
    return str(lines[-1].get("reason")) if lines and lines[-1]["kind"] == "end" else None


def seconds_by_stage(trials: Iterable[Trial]) -> dict[str, float]:
    """Time spent on candidates, by stage, in the order of the stages."""
    total: Counter[str] = Counter()
    for trial in trials:
        total.update(trial.seconds)
    return dict(total)
