"""A search or a certification as seen from outside, from the files of its folder. Nothing is ever written there."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.base.html_snippet import facts_html
from arquant.base.journal import Record
from arquant.base.own_files import own_file
from arquant.base.run_folder import CONFIG, JOURNAL, SUMMARY, read_config
from arquant.certificates.files import TSV_NAME, has_rows, read_sidecar, sidecar_path
from arquant.searching.history import best_of, end_reason, seconds_by_stage, trial_json, trials_of
from arquant.searching.journal_lines import (
    ABANDONED,
    FAILED,
    REPEATED,
    SCORED,
    Candidate,
    Choice,
    Line,
    Model,
    SecondLook,
    Winner,
    read_search_journal,
)
from arquant.searching.release import certificates_in
from arquant.searching.summary import summary_lines

PROVENANCE = "provenance.json"


@dataclass(frozen=True)
class Snapshot:
    """A search at one moment. Scores are estimates; what is certified is in `summary`, once the search has finished.

    Of a certification without a search, only `stage`, `setting` and `certified` say something.

    Attributes:
        run: the folder.
        stage: `waiting` (no journal yet), `reference` (votes of the float model), `search`, `shortlist`, `delivery`
            (fine-tuning and certifying), `certification` (without a search) or `finished`.
        running: True if a process of this machine has the journal open; None where the system does not tell.
        idle_seconds: since the journal was last written.
        setting: model, data, sigma, strategy and budgets, as far as the journal says.
        trials: the candidates in order.
        best: the best so far by budget.
        seconds: spent on candidates, by stage.
        left_seconds: of the search loop, if its limits are known and it runs.
        ended: why the loop ended.
        certified: by folder, how many images are certified, of how many.
        summary: the search's own summary, once it has finished.
    """

    run: str
    stage: str
    running: bool | None = None
    idle_seconds: float | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[Candidate, ...] = ()
    best: Mapping[str, Candidate] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    left_seconds: float | None = None
    ended: str | None = None
    certified: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None

    def count(self, outcome: str) -> int:
        """Return how many candidates ended so."""
        return sum(trial.outcome == outcome for trial in self.trials)

    def _repr_html_(self) -> str:
        """Return how the run stands, for a notebook; scores are estimates, certified figures are said to be so."""
        outcomes = ((SCORED, "scored"), (ABANDONED, "dropped early"), (FAILED, "failed"), (REPEATED, "repeated"))
        counted = ", ".join(f"{self.count(outcome)} {word}" for outcome, word in outcomes if self.count(outcome))
        rows = [("stage", self.stage), *([("candidates", counted)] if counted else [])]
        rows += [
            (f"best estimate, {budget}", f"{trial.value:.3f} (candidate {trial.number})")
            for budget, trial in self.best.items()
            if trial.value is not None
        ]
        rows += [
            (f"certified, {folder}", f"{done:,} of {total:,} images")
            for folder, (done, total) in self.certified.items()
        ]
        if self.summary is not None:
            found = [(point["budget"], point["certified"]) for point in self.summary["points"]]
            rows += [
                (f"certified ACR, {budget}", f"{figures['acr']:.3f} on {figures['images']} images")
                for budget, figures in found
            ]
        return facts_html(f"Run in {self.run}", rows)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the summary is left in its own file."""
        plain = {
            name: value for name, value in vars(self).items() if name not in ("trials", "best", "certified", "summary")
        }
        return {
            **plain,
            "candidates": len(self.trials),
            "outcomes": {outcome: self.count(outcome) for outcome in (SCORED, ABANDONED, FAILED, REPEATED)},
            "best": {budget: trial_json(trial) for budget, trial in self.best.items()},
            "curve": [
                {"number": t.number, "budget": t.budget, "outcome": t.outcome, "value": t.value} for t in self.trials
            ],
            "certified": {name: {"images": done, "of": total} for name, (done, total) in self.certified.items()},
        }


def snapshot_of(run: str | Path) -> Snapshot:
    """Return how a search or a certification stands: running, stopped or finished; another process may write meanwhile.

    Raises:
        InputError: the folder is that of another command.
        FileFormatError: its journal is damaged before its last line.
    """
    folder = Path(run)
    journal = folder / JOURNAL
    if not journal.exists() and (folder / TSV_NAME).exists():
        return _certification(folder)
    _check_search(folder)
    if not _begun(journal):
        return Snapshot(str(run), "waiting")
    identity, lines = read_search_journal(journal)
    trials, ended = trials_of(lines), end_reason(lines)
    summary = _summary(folder / SUMMARY, len(trials)) if ended is not None else None
    stage = "finished" if summary is not None else _stage(lines, ended)
    running = _is_open(journal)
    seconds = seconds_by_stage(trials)
    return Snapshot(
        str(run),
        stage,
        running=running,
        idle_seconds=max(time.time() - journal.stat().st_mtime, 0.0),
        setting=_setting(identity),
        trials=trials,
        best=best_of(trials),
        seconds=seconds,
        left_seconds=_left(folder, trials, sum(seconds.values())) if ended is None and running is not False else None,
        ended=ended,
        certified=_certified(folder),
        summary=summary,
    )


def _certification(folder: Path) -> Snapshot:
    """Return how a certification without a search stands."""
    table = own_file(folder, TSV_NAME)
    if not sidecar_path(table).exists():
        if has_rows(table):
            raise InputError(f"{table} has no {sidecar_path(table).name} beside it: nothing of ours writes it")
        return Snapshot(str(folder), "waiting")
    record = read_sidecar(sidecar_path(table))
    origin, settings = record["provenance"], record["settings"]
    named = {name: value.get("name") for name in ("model", "data") if isinstance(value := origin.get(name), dict)}
    done, total = _certified(folder).get(".", (0, record["rows"]))
    return Snapshot(
        str(folder), "finished" if done >= total else "certification", running=_is_open(table),
        idle_seconds=max(time.time() - table.stat().st_mtime, 0.0),
        setting={**named, **({} if settings is None else {"sigma": settings.sigma})}, certified={".": (done, total)},
    )  # fmt: skip


def _check_search(folder: Path) -> None:
    """Refuse what is no search and will not become one."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name the run folder of a search or a certification")
    if (folder / JOURNAL).exists():
        return
    command = read_config(folder).get("command") if (folder / CONFIG).exists() else None
    if command not in (None, "search"):
        raise InputError(
            f"{folder} is a run of arquant {command}: it has no {JOURNAL} of a search and no {TSV_NAME} to watch; "
            f"see arquant report {folder}"
        )


def _begun(journal: Path) -> bool:
    """Return whether the journal has its first line."""
    try:
        with own_file(journal.parent, journal.name).open("rb") as file:
            return file.readline().endswith(b"\n")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"cannot read {journal}: {error.strerror}") from error


def _stage(lines: Sequence[Line], ended: str | None) -> str:
    if ended is None:
        return "search" if trials_of(lines) else "reference"
    since = list(takewhile(lambda line: not isinstance(line, Candidate | Choice | SecondLook), reversed(lines)))
    return "delivery" if any(isinstance(line, Winner | Model) for line in since) else "shortlist"


def _setting(identity: Record) -> dict[str, Any]:
    config, options = (part if isinstance(part := identity.get(name), dict) else {} for name in ("config", "options"))
    names = {"model": config, "data": config, "budget": config, "sigma": options, "strategy": options}
    return {name: source[name] for name, source in names.items() if name in source}


def _left(folder: Path, trials: Sequence[Candidate], spent: float) -> float | None:
    """Return the seconds until a limit of the loop is reached, by the pace so far."""
    limits = _plain_json(folder / PROVENANCE).get("limits")
    hours, most = (limits.get(name) if isinstance(limits, dict) else None for name in ("hours", "trials"))
    left = [3600 * hours - spent] if isinstance(hours, float | int) else []
    if isinstance(most, int) and trials:
        left.append((most - len(trials)) * spent / len(trials))
    return max(min(left), 0.0) if left else None


def _plain_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(own_file(path.parent, path.name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _summary(path: Path, trials: int) -> dict[str, Any] | None:
    """Return what the search ended with; None if it has not, or has gone on since."""
    if not path.exists():
        return None
    summary = _plain_json(path)
    try:
        if summary["trials"] != trials:
            return None
        summary_lines(summary)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{path} is not the summary of a search ({error!r})") from error
    return summary


def _certified(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the images certified and to certify, by folder within the run."""
    found = {}
    for pattern in ("", "points/*", "controls/*", "points/*/controls/*"):
        for place in sorted(folder.glob(pattern)) if pattern else [folder]:
            name = str(place.relative_to(folder))
            try:
                table = own_file(certificates_in(folder, name), TSV_NAME)
                rows = int(read_sidecar(sidecar_path(table))["rows"])
                done = table.read_bytes().count(b"\n") - 1
            except (ArquantError, OSError):
                continue
            found[name] = (max(done, 0), rows)
    return found


def _is_open(journal: Path) -> bool | None:
    """Return whether a process of this machine holds the journal's lock; taking it to find out would get in a search's way."""
    try:
        held = Path("/proc/locks").read_text().splitlines()
        inode = journal.stat().st_ino
    except OSError:
        return None
    return any(" FLOCK " in line and f":{inode} " in line for line in held)
