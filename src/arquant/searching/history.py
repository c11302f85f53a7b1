"""Answer what a search has done so far, from the lines of its journal; nothing of the search itself is needed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from arquant.base.journal import Record
from arquant.searching.journal_lines import (
    SCORED,
    Candidate,
    Certified,
    End,
    Line,
    Model,
    SecondLookOptions,
)
from arquant.searching.options import SECOND_LOOKS


def trials_of(lines: Iterable[Line]) -> tuple[Candidate, ...]:
    """Return the candidates of a journal, in order."""
    return tuple(line for line in lines if isinstance(line, Candidate))


def best_of(trials: Sequence[Candidate]) -> dict[str, Candidate]:
    """Return, by budget, the best candidate that fits it and was scored on all its votes; the earlier of equal ones."""
    best: dict[str, Candidate] = {}
    for trial in trials:
        for budget in trial.budgets if trial.outcome == SCORED else ():
            if budget not in best or _value(trial) > _value(best[budget]):
                best[budget] = trial
    return best


def _value(trial: Candidate) -> float:
    return float("-inf") if trial.value is None else trial.value


def trial_json(trial: Candidate) -> dict[str, Any]:
    """Return what `arquant watch --json` says of a candidate."""
    plain = trial.plain()
    names = ("number", "budget", "score", "cost", "usage", "policy", "seconds")
    return {**{name: plain[name] for name in names}, "within": list(trial.budgets), "outcome": trial.outcome}


def latest_options(identity: Record, lines: Iterable[Line]) -> dict[str, Any]:
    """Return the options that a search began with, but the latest ones of second looks."""
    began = identity.get("options")
    found = dict(began) if isinstance(began, dict) else {}
    for line in lines:
        if isinstance(line, SecondLookOptions):
            plain = line.plain()
            found |= {name: plain[name] for name in SECOND_LOOKS if name in plain}
    return found


def models_made(lines: Iterable[Line]) -> int:
    """Count the models of one folder that were certified on the same images, one after the other."""
    made: dict[str, set[str]] = {}
    for line in lines:
        if isinstance(line, Model | Certified):
            made.setdefault(line.folder, set()).add(line.fingerprint)
    return max((len(models) for models in made.values()), default=0)


def end_reason(lines: Iterable[Line]) -> str | None:
    """Return why the loop ended; None while it has not, or where it went on after an end, with larger limits."""
    last = [line for line in lines if isinstance(line, Candidate | End)][-1:]
    return last[0].reason if last and isinstance(last[0], End) else None


def seconds_by_stage(trials: Iterable[Candidate]) -> dict[str, float]:
    """Return the time spent on candidates, by stage, in the order of the stages."""
    total: Counter[str] = Counter()
    for trial in trials:
        total.update(trial.seconds)
    return dict(total)
