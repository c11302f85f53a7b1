"""What a report says of a search, from its journal: candidates, winners and why they won, time."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arquant.base.errors import ArquantError
from arquant.base.journal import Record
from arquant.base.own_files import own_file
from arquant.base.run_folder import JOURNAL, SUMMARY
from arquant.quantization.policy import Policy
from arquant.reporting.search_content import Candidate, Search, Winner, spelled_widths
from arquant.searching.history import end_reason, latest_options, models_made, trials_of
from arquant.searching.journal_lines import Candidate as Trial
from arquant.searching.journal_lines import Line, Model, SecondLook, read_search_journal
from arquant.searching.journal_lines import Winner as WinnerLine


def read_journal(run: Path, notes: list[str]) -> tuple[Record, list[Line]]:
    """Return identity and lines of a run's journal; empty if it has none, or a damaged one, which is noted."""
    if not (run / JOURNAL).is_file():
        return {}, []
    try:
        return read_search_journal(run / JOURNAL)
    except ArquantError as error:
        notes.append(str(error))
        return {}, []


def search_of_lines(folder: str, identity: Record, lines: Sequence[Line]) -> Search:
    """Return what the lines say."""
    trials = trials_of(lines)
    facts = {**_facts(identity, lines), "missing_controls": _missing_controls(Path(folder))}
    options = facts["identity"]["options"]
    recipe = options.get("recipe")
    steps = recipe.get("steps") if isinstance(recipe, Mapping) else None
    candidates = tuple(_candidate(trial, steps if isinstance(steps, int) and steps > 0 else None) for trial in trials)
    return Search(folder, candidates, facts, _winners(lines, trials, candidates, options))


def _candidate(trial: Trial, usual: int | None) -> Candidate:
    """Return a candidate as reports show it; `usual` steps are those of candidates that state none."""
    score, acr = trial.score, trial.acr
    return Candidate(
        trial.number, trial.budget, trial.budgets, trial.outcome, trial.value,
        None if score is None else score.standard_error, "" if score is None else score.estimate,
        None if acr is None else acr.value, trial.cost.get("bops"), policy_widths(trial.policy),
        usual if trial.steps is None else trial.steps,
    )  # fmt: skip


def policy_widths(policy: Policy) -> str:
    """Return `w2a4`, or `mixed w2-3, a4-6`; empty for a policy without layers."""
    return spelled_widths([(bits.w, bits.a) for bits in policy.values()]) if len(policy) else ""


def _missing_controls(folder: Path) -> list[str]:
    """Return why controls that were asked for are not there, as the search's summary says it."""
    try:
        points = json.loads(own_file(folder, SUMMARY).read_text(encoding="utf-8"))["points"]
        found = [(name, why) for point in points for name, why in point.get("missing_controls", {}).items()]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError, ArquantError):
        return []
    return [f"the {name} network: {why}" for name, why in found]


def _facts(identity: Record, lines: Sequence[Line]) -> dict[str, Any]:
    tried = trials_of(lines)
    scores = [trial.score for trial in tried if trial.score is not None]
    return {
        "identity": {**identity, "options": latest_options(identity, lines)},
        "models": models_made(lines),
        "trials": len(tried),
        "examined": sum(trial.repeat_of is None for trial in tried),
        "seconds": sum(sum(trial.seconds.values()) for trial in tried),
        "finetune_seconds": sum(sum(line.seconds.values()) for line in lines if isinstance(line, Model)),
        "ended": end_reason(lines),
        "score": scores[0].plain() if scores else {},
    }


def _winners(
    lines: Sequence[Line], trials: Sequence[Trial], candidates: Sequence[Candidate], options: Mapping[str, Any]
) -> tuple[Winner, ...]:
    """Return who won each budget: what the journal says; in those of earlier versions, the candidate whose model was made."""
    stated = {line.budget: line.number for line in lines if isinstance(line, WinnerLine)}
    if not stated and end_reason(lines) is not None:
        made = [line.policy for line in lines if isinstance(line, Model) and not line.folder.startswith("controls")]
        for trial in trials:
            if trial.policy in made and trial.complete:
                stated.setdefault(trial.budget, trial.number)
    numbered = {candidate.number: candidate for candidate in candidates}
    again: dict[int, list[float]] = {}
    for line in lines:
        if isinstance(line, SecondLook) and line.score is not None:
            again.setdefault(line.number, []).append(line.score.value)
    return tuple(
        Winner(budget, number, _why(numbered[number], budget, candidates, again, options, several=len(stated) > 1))
        for budget, number in stated.items()
        if number in numbered
    )


def _why(
    winner: Candidate, budget: str, candidates: Sequence[Candidate], again: Mapping[int, list[float]],
    options: Mapping[str, Any], *, several: bool,
) -> str:  # fmt: skip
    """Say why a candidate won."""
    name = f"{f'Within {budget}, c' if several else 'C'}andidate {winner.number} ({winner.widths}) won"
    rivals = [c for c in candidates if budget in c.within and c.outcome == "scored" and c.steps == winner.steps]
    best = max(rivals, key=lambda c: c.score or 0.0, default=winner)
    if winner.number not in again:
        length = "" if winner.steps is None else f" of those fine-tuned for {winner.steps:,} steps"
        return f"{name}: it had the best score{length}." if best is winner else f"{name}."
    longer = options.get("shortlist_steps") is not None

    def worth(candidate: Candidate) -> float:
        seen = again[candidate.number]
        return float(np.mean(seen if longer or candidate.score is None else [*seen, candidate.score]))

    how = "after longer fine-tunings" if longer else "over its first score and new fine-tunings with other seeds"
    text = f"{name}: of {len(again)} candidates looked at twice it had the best mean {how} ({worth(winner):.3f})"
    if best is not winner and not longer and best.number in again:
        text += f"; candidate {best.number} ({best.widths}), first at first, came to {worth(best):.3f}"
    return f"{text}."
