"""`arquant watch`: a search or a certification as seen from outside, in the terminal or on a page of this machine."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, TextIO

from arquant.base.errors import InputError
from arquant.base.progress import duration
from arquant.commands.command import command
from arquant.commands.shared import PathLike
from arquant.reporting.text_chart import ASCII, UNICODE, Marks, Point, learning_curve

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.searching.journal_lines import Candidate
    from arquant.searching.snapshot import Snapshot

RECENT = 5
"""candidates that are listed"""


@dataclass(frozen=True)
class Watch:
    """Watch"""

    run: PathLike
    """run folder of a search or a certification: running, stopped, finished, or about to begin"""
    _: KW_ONLY
    once: bool = False
    """show it once, as is done where stdout is no terminal"""
    interval: float = 2.0
    """seconds between looks"""
    web: bool = False
    """serve a page that follows the run, for browsers of this machine, until Ctrl-C"""
    port: int = 0
    """of the page; by default one that is free"""


@command(
    Watch,
    "follow a running or finished search or certification, in the terminal or in a browser",
    common=("once", "interval", "web", "port"),
    examples=("arquant watch runs/search", "arquant watch runs/search --web"),
)
def watch(options: Watch) -> "Snapshot":
    """Return how a search or a certification stands: running, stopped or finished; another process may write meanwhile.

    Raises:
        InputError: the folder is that of another command.
        FileFormatError: its journal is damaged before its last line.
    """
    from arquant.searching.snapshot import snapshot_of

    if not options.interval > 0:
        raise InputError(f"interval must be a positive number of seconds, got {options.interval:g}")
    if not 0 <= options.port < 2**16:
        raise InputError(f"--port must be a number from 0 to 65535, got {options.port}")
    return snapshot_of(options.run)


@watch.shown
def _show(snapshot: "Snapshot", options: Watch, console: "Console") -> None:
    if options.web:
        _serve(options, console)
    elif options.once or console.as_json or not console.out.isatty():
        console.result(snapshot.to_json(), watch_lines(snapshot, marks=_marks(console.out)))
    else:
        _live(snapshot, options, console.out)


def _serve(options: Watch, console: "Console") -> None:
    """Serve the page until the user leaves; the run itself goes on."""
    from arquant.reporting.live_server import LiveServer

    with LiveServer(options.run, options.port, options.interval) as server:
        console.result(
            {"url": server.url}, [f"{options.run}: {server.url} (read-only, this machine only; Ctrl-C ends it)"]
        )
        console.out.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _live(snapshot: "Snapshot", options: Watch, out: TextIO) -> None:
    """Draw the search again and again until it has finished, or the user leaves."""
    from rich.console import Console as RichConsole
    from rich.live import Live
    from rich.text import Text

    terminal = RichConsole(file=out)

    def drawn(snapshot: "Snapshot") -> Text:
        lines = watch_lines(snapshot, width=min(terminal.width, 120), marks=_marks(out))
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

    try:
        with Live(drawn(snapshot), console=terminal, auto_refresh=False, vertical_overflow="crop") as live:
            while snapshot.stage != "finished":
                time.sleep(options.interval)
                snapshot = watch.run(options)
                live.update(drawn(snapshot), refresh=True)
    except KeyboardInterrupt:  # the way to leave; the search goes on
        return


def _marks(out: TextIO) -> Marks:
    """Return letters that the terminal can show."""
    try:
        "".join(vars(UNICODE).values()).encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def watch_lines(snapshot: "Snapshot", *, width: int = 80, marks: Marks = UNICODE) -> list[str]:
    """Return the snapshot for people: what runs, the figures, the curve, the last candidates."""
    from arquant.base.run_folder import JOURNAL
    from arquant.searching.summary import summary_lines

    if snapshot.stage == "waiting":
        return [f"{snapshot.run}: waiting for a search to begin (no {JOURNAL} yet)"]
    figures = [] if _is_certification(snapshot) else [*_figures(snapshot)]
    lines = [_headline(snapshot), *_table([*figures, *_certified(snapshot)])]
    if len(snapshot.trials) > 1:
        lines += ["", *_curve(snapshot, width, marks)]
    if snapshot.trials and snapshot.stage == "search":
        lines += ["", *_recent(snapshot.trials)]
    if snapshot.summary is not None:
        lines += ["", *summary_lines(snapshot.summary)]
    return lines


def _headline(snapshot: "Snapshot") -> str:
    setting = snapshot.setting
    asked = [str(setting[name]) for name in ("model", "data") if name in setting]
    asked += [f"sigma {setting['sigma']:g}"] if isinstance(setting.get("sigma"), float | int) else []
    asked += [str(setting["strategy"])] if "strategy" in setting else []
    state = snapshot.stage
    if state != "finished" and snapshot.running is False:
        state += f", no process of this machine works on it (last line {duration(snapshot.idle_seconds or 0)} ago)"
    return f"{snapshot.run}: {state}" + (f" ({', '.join(asked)})" if asked else "")


def _figures(snapshot: "Snapshot") -> Iterable[tuple[str, str]]:
    from arquant.searching.journal_lines import ABANDONED, FAILED, REPEATED, SCORED

    trials = snapshot.trials
    yield (
        "candidates",
        (
            f"{len(trials)}: {snapshot.count(SCORED)} scored, {snapshot.count(ABANDONED)} dropped by racing, "
            f"{snapshot.count(FAILED)} failed, {snapshot.count(REPEATED)} repeated"
        ),
    )
    for budget, best in snapshot.best.items():
        yield f"best, {budget}", f"{_score(best)} (candidate {best.number}): an estimate"
        yield "  its cost", _cost(best, budget)
    if spent := sum(snapshot.seconds.values()):
        each = ", ".join(f"{stage} {seconds / len(trials):.2g} s" for stage, seconds in snapshot.seconds.items())
        yield "time", f"{duration(spent)} on candidates; each {spent / len(trials):.2g} s: {each}"
    if snapshot.ended is not None:
        yield "loop ended", snapshot.ended
    elif snapshot.left_seconds is not None:
        yield "loop left", f"about {duration(snapshot.left_seconds)}"


def _is_certification(snapshot: "Snapshot") -> bool:
    """Tell whether there is no search, only certificates."""
    return snapshot.stage == "certification" or (snapshot.stage == "finished" and not snapshot.trials)


def _certified(snapshot: "Snapshot") -> Iterable[tuple[str, str]]:
    winner = "" if _is_certification(snapshot) else "the winner: "
    for folder, (done, total) in snapshot.certified.items():
        yield "certified", f"{winner if folder == '.' else f'{folder}: '}{done:,} of {total:,} images"


def _score(trial: "Candidate") -> str:
    score = trial.score
    if score is None:
        return "-"
    interval = "" if score.low is None or score.high is None else f" [{score.low:.4f}, {score.high:.4f}]"
    return f"{score.estimate or 'score'} {score.value:.4f}{interval}"


def _cost(trial: "Candidate", budget: str) -> str:
    """Return what it costs; its share of a budget is known for the one that it was proposed for."""
    bops, size = trial.cost.get("bops"), trial.cost.get("weight_bytes", trial.cost.get("bytes"))
    parts = [] if bops is None else [f"{bops / 1e9:.4f} G bit operations"]
    parts += [] if size is None else [f"{size:,.0f} weight bytes"]
    parts += [f"{trial.usage:.1%} of the budget"] if trial.usage is not None and trial.budget == budget else []
    return ", ".join(parts)


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    filled = list(rows)
    size = max(len(name) for name, _ in filled)
    return [f"  {name:{size}}  {text}" for name, text in filled]


def _curve(snapshot: "Snapshot", width: int, marks: Marks) -> list[str]:
    from arquant.searching.journal_lines import SCORED

    lines: list[str] = []
    for budget in snapshot.best:
        own = [trial for trial in snapshot.trials if budget in trial.budgets]
        points = [Point(trial.value, trial.outcome == SCORED) for trial in own]
        chart = learning_curve(points, width=width, marks=marks)
        if chart:
            key = f"{marks.scored} score, {marks.dropped} dropped or repeated, {marks.best} best so far"
            lines += [f"{budget}: {key}", *chart]
    return lines


def _recent(trials: Sequence["Candidate"]) -> list[str]:
    lines = [f"  {'last':>6}  {'outcome':10} {'score':32} {'of budget':>9} {'seconds':>8}"]
    for trial in trials[-RECENT:]:
        used = "" if trial.usage is None else f"{trial.usage:.1%}"
        lines.append(
            f"  {trial.number:6}  {trial.outcome:10} {_score(trial):32} {used:>9} {sum(trial.seconds.values()):8.1f}"
        )
    return lines
