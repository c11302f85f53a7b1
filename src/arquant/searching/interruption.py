"""Leave something useful when a search is interrupted: the best policy of each budget so far."""

from collections.abc import Mapping
from pathlib import Path

from arquant.base.run_folder import JOURNAL, MODEL, POLICY
from arquant.searching.history import trials_of
from arquant.searching.journal_lines import Candidate, read_search_journal
from arquant.searching.points import Places
from arquant.searching.standings import Track
from arquant.searching.study import Study


def before_the_loop(out: Path) -> str:
    """Say what is kept of a search that was interrupted before its loop."""
    journal = out / JOURNAL
    count = len(trials_of(read_search_journal(journal)[1])) if journal.exists() else 0
    return f"the {count} candidates of {journal} are kept" if count else "no candidate was under way"


def save_best(study: Study, places: Places, winners: Mapping[str, Candidate]) -> str:
    """Write the best policy of each budget to its `policy.json`, unless a model lies there; return a sentence about it."""
    said = []
    for track in study.tracks:
        ranked = study.standings.ranking(track)
        if ranked:
            best = winners.get(track.name, ranked[0])
            said.append(f"{track.name}: the best so far {_saved(best, track, places, study.journal.path)}")
    if not said:
        return "no candidate is scored yet"
    return f"{study.standings.examined} candidates are examined; {'; '.join(said)}"


def _saved(best: Candidate, track: Track, places: Places, journal: Path) -> str:
    folder, score = places.folder(track.space), best.score
    about = "has no score" if score is None else f"has the score {score.estimate} {score.value:.4f}"
    if (folder / MODEL).exists():
        return f"{about}, it is candidate {best.number} of {journal}"
    folder.mkdir(parents=True, exist_ok=True)
    best.policy.save(folder / POLICY, model=track.space.layers.facts())
    return f"{about}, its policy is in {folder / POLICY}"
