"""Answer what a search has done so far, from the lines of its journal; nothing of the search itself is needed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from arquant.base.journal import Record
from arquant.base.run_folder import JOURNAL, search_of
from arquant.searching.journal_lines import (
    SCORED,
    Candidate,
    Certified,
    End,
    Line,
    Model,
    SearchJournal,
    SecondLookOptions,
    read_line,
    read_search_journal,
)
from arquant.searching.options import SECOND_LOOKS


def trials_of(lines: Iterable[Line]) -> tuple[Candidate, ...]:
    """Return the candidates of a journal, in order."""
    return tuple(line for line in lines if isinstance(line, Candidate))


def best_of(trials: Sequence[Candidate]) -> dict[str, Candidate]:
    """Return, by budget, the best candidate that fits it and was scored on all its votes; the earlier of equal ones.

    Candidates that were fine-tuned for longer come before others: scores after unequal fine-tunings are no rivals.
    """
    best: dict[str, Candidate] = {}
    for trial in trials:
        for budget in trial.budgets if trial.outcome == SCORED else ():
            if budget not in best or _rank(trial) > _rank(best[budget]):
                best[budget] = trial
    return best


def _rank(trial: Candidate) -> tuple[int, float]:
    return trial.steps or 0, float("-inf") if trial.value is None else trial.value


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


def record_certified(folder: Path, fingerprint: str, images: str) -> None:
    """Tell the search that `folder` belongs to, if any, that a model which it did not make is certified on its images.

    Raises:
        MismatchError: the search is at work.
    """
    search = search_of(folder)
    if search is None:
        return
    identity, lines = read_search_journal(search / JOURNAL)
    known = any(isinstance(line, Model | Certified) and line.fingerprint == fingerprint for line in lines)
    if known or identity.get("images", {}).get("certify") != images:
        return
    name = str(folder.resolve().relative_to(search))
    with SearchJournal(search / JOURNAL, identity, read_line) as journal:
        journal.add(Certified(folder=name, fingerprint=fingerprint))


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
