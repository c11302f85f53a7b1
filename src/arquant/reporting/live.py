"""A run while it works, as figures of the report: candidates, the best so far, its bits, certificates, and a log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from arquant.base.errors import ArquantError
from arquant.base.own_files import own_file
from arquant.base.progress import duration
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import TSV_NAME, read_sidecar, sidecar_path
from arquant.certificates.rounding import down
from arquant.certificates.table import parse_table
from arquant.reporting.charts import Chart
from arquant.reporting.html import drawn, render
from arquant.reporting.model import Entry, LayerBits, Report
from arquant.reporting.result_charts import accuracy, outcomes
from arquant.reporting.search_charts import bits, candidates_by_cost, learning
from arquant.reporting.search_reading import policy_widths, read_journal, search_of_lines
from arquant.searching.history import trials_of
from arquant.searching.journal_lines import Candidate, End, Line, Model, SecondLook, Winner
from arquant.searching.release import certificates_in
from arquant.searching.snapshot import Snapshot, snapshot_of

LOGGED = 12
"""latest events that are listed"""
_STAGES = {
    "waiting": "waiting for the run to begin", "reference": "counting votes of the float network",
    "search": "searching", "shortlist": "looking again at the best candidates",
    "delivery": "fine-tuning and certifying the winner", "certification": "certifying", "finished": "finished",
}  # fmt: skip


@dataclass(frozen=True)
class Live:
    """What a page shows of a run: its state in words, facts by name, figures, and the latest events, newest first."""

    run: str
    state: str
    facts: tuple[tuple[str, str], ...]
    charts: tuple[Chart, ...]
    log: tuple[str, ...]


def live_page(run: str | Path, interval: float) -> str:
    """Return the page that follows a run; it asks for new content every `interval` seconds."""
    return render("live.html.j2", run=str(run), content=Markup(live_content(run)), interval=int(1000 * interval))


def live_content(run: str | Path) -> str:
    """Return the part of the page that changes; what is wrong with the run's files, if they cannot be read."""
    try:
        live = look_at(run)
    except ArquantError as error:
        return render("live_content.html.j2", error=str(error), live=None, charts=[])
    return render("live_content.html.j2", error="", live=live, charts=[drawn(chart) for chart in live.charts])


def look_at(run: str | Path) -> Live:
    """Look at a run's files once; nothing is written there.

    Raises:
        ArquantError: the folder is that of another command, or a file is damaged.
    """
    folder, snapshot = Path(run), snapshot_of(run)
    notes: list[str] = []
    identity, lines = read_journal(folder, notes)
    searches = (search_of_lines(str(run), identity, lines),) if lines else ()
    entries = tuple(_certified(folder, snapshot))
    numbered = {trial.number: trial for trial in trials_of(lines)}  # they may be more than in the snapshot by now
    leaders = {b: numbered[c.number] for s in searches for b in s.budgets if (c := s.leader(b)) is not None}
    won = {winner.budget: numbered[winner.number] for search in searches for winner in search.winners}
    report = Report((*entries, *_policies(str(run), leaders, won, len(entries))), searches=searches)
    return Live(str(run), _state(snapshot), _facts(snapshot, entries, leaders), _charts(report), _log(lines, entries))


def _state(snapshot: Snapshot) -> str:
    words = _STAGES[snapshot.stage]
    if snapshot.stage not in ("finished", "waiting") and snapshot.running is False:
        words += "; stopped: no process of this machine works on it"
    return words


def _facts(
    snapshot: Snapshot, entries: Sequence[Entry], leaders: Mapping[str, Candidate]
) -> tuple[tuple[str, str], ...]:
    setting, trials = snapshot.setting, snapshot.trials
    rows = [(name, str(setting[name])) for name in ("model", "data", "strategy") if setting.get(name)]
    rows += [("σ", f"{setting['sigma']:g}")] if isinstance(setting.get("sigma"), float | int) else []
    if trials:
        rows.append(("candidates", f"{len(trials):,}, of which {snapshot.count('scored'):,} scored on all votes"))
    for budget, best in leaders.items():
        rows.append((f"best so far, {budget}", _scored(best)))
    counted = [(t.score.images * t.score.n, t.seconds["votes"]) for t in trials
               if t.score and t.score.images and t.score.n and t.seconds.get("votes")]  # fmt: skip
    if counted:
        rows.append(
            ("votes per second", f"{sum(votes for votes, _ in counted) / sum(took for _, took in counted):,.0f}")
        )
    if snapshot.left_seconds is not None:
        rows.append(("left of the search", f"about {duration(snapshot.left_seconds)}"))
    for entry, (done, total) in zip(entries, snapshot.certified.values(), strict=False):
        found = entry.certificates
        took = sum(c.seconds for c in found.certificates) if found is not None else 0.0
        speed = (
            f", {sum(c.n + c.n0 for c in found.certificates) / took:,.0f} votes per second" if found and took else ""
        )
        left = f", about {duration(took / len(found) * (total - done))} left" if found and took and done < total else ""
        rows.append((f"certified, {entry.name}", f"{done:,} of {total:,} images{speed}{left}"))
    return tuple(rows)


def _scored(trial: Candidate) -> str:
    score = trial.score
    margin = "" if score is None or score.standard_error is None else f" ± {1.96 * score.standard_error:.3f}"
    value = "failed" if score is None else f"{score.value:.3f}{margin} (an estimate)"
    return f"candidate {trial.number}, {policy_widths(trial.policy)}: {value}"


def _certified(folder: Path, snapshot: Snapshot) -> list[Entry]:
    """Return the certificates that there are so far, also of tables that are still being written."""
    entries = []
    for place, name in enumerate(snapshot.certified):
        found = _so_far(certificates_in(folder, name))
        title = (
            "this run"
            if not snapshot.trials
            else "the winner"
            if name == "."
            else name.replace("controls/", "control: ")
        )
        entries.append(Entry(title, "result", str(folder / name), found, colour=place))
    return entries


def _so_far(folder: Path) -> CertificateSet | None:
    """Return the finished rows of a table; None if there are none yet."""
    table = own_file(folder, TSV_NAME)
    try:
        text = table.read_text(encoding="utf-8")
        rows, _ = parse_table(text[: text.rfind("\n") + 1], str(table))
        return CertificateSet(rows, read_sidecar(sidecar_path(table))["settings"]) if rows else None
    except (OSError, UnicodeDecodeError, ArquantError):
        return None


def _policies(run: str, leaders: Mapping[str, Candidate], won: Mapping[str, Candidate], colour: int) -> list[Entry]:
    """Return the policies of the winners, where they are chosen, or of the best candidates so far, one per budget."""
    entries = []
    for place, (budget, leader) in enumerate(leaders.items()):
        name = f"{'the winner' if budget in won else 'best so far'}, {budget}"
        policy = won.get(budget, leader).policy
        layers = tuple(LayerBits(layer, b.w, b.a, None, None) for layer, b in policy.items())
        entries.append(Entry(name, "result", run, layers=layers, colour=colour + place))
    return entries


def _charts(report: Report) -> tuple[Chart, ...]:
    found = [learning(report, 0), candidates_by_cost(report, 0)] if report.searches else []
    found += [outcomes(report), accuracy(report)]
    found += [bits(entry, place) for place, entry in enumerate(report.entries)]
    return tuple(chart for chart in found if chart is not None)


def _log(lines: Sequence[Line], entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the latest events as sentences, newest first; the rows of certificates where there is no journal."""
    if lines:
        return tuple(text for line in reversed(lines) if (text := _event(line)))[:LOGGED]
    rows = [c for entry in entries if entry.certificates is not None for c in entry.certificates.certificates]
    return tuple(
        f"image {c.idx}: " + ("abstained" if c.abstained else f"class {c.predict}, R = {down(c.radius)}")
        + f", {c.votes:,} of {c.n:,} votes, {c.seconds:.2g} s"
        for c in reversed(rows[-LOGGED:])
    )  # fmt: skip


def _event(line: Line) -> str:
    match line:
        case Candidate():
            failed = f" ({line.failure})" if line.failure else " (dropped early)" if line.abandoned else ""
            return f"{_scored(line)}{failed}, {duration(sum(line.seconds.values()))}"
        case SecondLook():
            value = "failed" if line.score is None else f"{line.score.value:.3f}"
            return f"second look at candidate {line.number}, seed {line.seed}: {value}"
        case Winner():
            return f"candidate {line.number} wins within {line.budget}"
        case Model():
            return f"a model is ready in {'the run folder' if line.folder == '.' else line.folder}"
        case End():
            return f"the search ended: {line.reason}"
    return ""
