"""What a person sees: progress on stderr, results on stdout. Lines of text where stderr is not a terminal.

With `--progress json`, every line of stderr is one JSON object, for programs that watch over a run.
"""

import io
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from arquant.base.progress import MINUTES, Report, Status, duration, silent

PLAIN_SECONDS = 10.0
"""how often progress is written where it cannot be drawn"""
JSON_SECONDS = 1.0
"""how often, at most, it is written for programs"""
RATE_UNITS = 0.1
"""units that must be done before they tell a rate: the first steps of a first candidate are slower than the rest"""


class Console:
    """Renders results, notes and progress for one command.

    Args:
        as_json: results as JSON.
        quiet: no notes, warnings or progress; errors are still said.
        progress: `bars`, `lines` of text, `json` lines; `auto` draws bars where stderr is a terminal, else writes lines.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False, progress: str = "auto") -> None:
        self.out = sys.stdout
        self.as_json = as_json
        self.quiet = quiet
        self.style = progress if progress != "auto" else "bars" if sys.stderr.isatty() else "lines"

    def result(self, data: Any, lines: Sequence[str] | None = None) -> None:
        """Print the result: `data` as JSON with --json, else `lines` for people."""
        if self.as_json:
            print(json.dumps(data, default=str, allow_nan=False), file=self.out)
        else:
            text = lines if lines is not None else [json.dumps(data, indent=2, default=str)]
            print("\n".join(text), file=self.out)

    def give_up_output(self) -> None:
        """Give up what is still buffered, which must not fail at exit: the reader of our output has gone."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.out.fileno())

    def note(self, text: str) -> None:
        """Print a remark on stderr."""
        if not self.quiet:
            self._say("note", text)

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        if not self.quiet:
            self._say("warning", text)

    def error(self, text: str, kind: str = "error") -> None:
        """Print what ended the command on stderr, whatever is quiet."""
        self._say(kind, text)

    def _say(self, kind: str, text: str) -> None:
        shown = text if kind in ("note", "interrupted") else f"{kind}: {text}"
        print(json.dumps({kind: text}) if self.style == "json" else shown, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, tensorboard: str | None = None) -> Iterator[Report]:
        """Return a report function that shows its statuses while the context lasts, and logs their values to a folder."""
        with self._shown() as report:
            if tensorboard is None:
                yield report
                return
            from arquant.base.tensorboard_log import tensorboard_log

            with tensorboard_log(tensorboard, report) as logged:
                yield logged

    @contextmanager
    def _shown(self) -> Iterator[Report]:
        if self.quiet:
            yield silent
        elif self.style == "json":
            yield _JsonProgress(sys.stderr)
        elif self.style == "bars":
            with _drawn_progress() as report:
                yield report
        else:
            yield _PlainProgress(sys.stderr)

    @contextmanager
    def results_only(self) -> Iterator[None]:
        """Within the context stdout gets results alone: what other code prints, such as a user's model, becomes notes."""
        with redirect_stdout(_Printed(self.note)):
            yield

    @contextmanager
    def shown_warnings(self) -> Iterator[None]:
        """Show warnings, and what the library logs, as single lines, each text once."""
        seen: set[str] = set()

        def once(text: str, say: Callable[[str], None]) -> None:
            if text not in seen:
                seen.add(text)
                say(text)

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            once(" ".join(str(message).split()), self.warn)

        handler = _LogLines(show, lambda text: once(text, self.note))
        log = logging.getLogger("arquant")
        before = log.level
        log.setLevel(logging.INFO)
        # some libraries silence all loggers that are there when they are imported
        for name, each in logging.root.manager.loggerDict.items():
            if name.partition(".")[0] == "arquant" and isinstance(each, logging.Logger):
                each.disabled = False
        log.addHandler(handler)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                for noisy in ("torch", "openvino", "onnx", "timm"):
                    warnings.filterwarnings("ignore", module=rf"{noisy}\b.*")
                warnings.showwarning = show
                yield
        finally:
            log.removeHandler(handler)
            log.setLevel(before)


class _Printed(io.TextIOBase):
    """Hands on, line by line, what is printed."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show
        self._rest = ""

    def write(self, text: str) -> int:
        """Hand on the lines that are complete."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._show(line)
        return len(text)


class _LogLines(logging.Handler):
    """Hands messages on: warnings, and what is below them to whom takes notes."""

    def __init__(self, warn: Callable[[str], None], note: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._warn, self._note = warn, note

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one on."""
        (self._warn if record.levelno >= logging.WARNING else self._note)(record.getMessage())


class _PlainProgress:
    """One line per stage at its end, and every PLAIN_SECONDS on the way."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._began = self._written = time.monotonic()
        self._first = 0.0

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if status.stage != self._stage:
            self._stage, self._began, self._written, self._first = status.stage, now, now, status.done
        if now - self._written < PLAIN_SECONDS and status.done < status.total:
            return
        self._written = now
        print(describe(status, now - self._began, self._first), file=self._stream, flush=True)


class _JsonProgress:
    """One JSON object per line: every stage's start and end, all statuses with values, else at most one per JSON_SECONDS."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._began = self._written = 0.0
        self._first = 0.0

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        fresh = status.stage != self._stage
        if fresh:
            self._stage, self._began, self._first = status.stage, now, status.done
        elif now - self._written < JSON_SECONDS and status.done < status.total and not status.values:
            return
        self._written = now
        seconds = now - self._began
        rate = _rate(status, seconds, self._first)
        line = {
            **vars(status), "seconds": round(seconds, 3),
            "left": round(max(status.total - status.done, 0) / rate, 1) if rate > 0 else None,
        }  # fmt: skip
        print(json.dumps(line, default=dict), file=self._stream, flush=True)


def describe(status: Status, seconds: float, first: float) -> str:
    """Return one line: how far, how fast, how long still, and the details."""
    rate = _rate(status, seconds, first)
    parts = [f"{status.stage}: {_quantity(int(status.done))}/{_quantity(status.total)} {status.unit}"]
    if rate > 0 and status.unit != MINUTES:
        parts.append(f"{_quantity(rate)} {status.unit}/s" if rate >= 0.5 else f"{duration(1 / rate)} each")
    if rate > 0 and status.done < status.total:
        parts.append(f"{duration((status.total - status.done) / rate)} left")
    parts += [f"{name} {value}" for name, value in status.details.items()]
    return ", ".join(parts)


def _rate(status: Status, seconds: float, first: float) -> float:
    """Units per second since the stage began; 0 while too little is done to tell."""
    if status.unit == MINUTES:
        return 1 / 60
    done = status.done - first
    return done / seconds if seconds > 0 and done >= RATE_UNITS else 0.0


@contextmanager
def _drawn_progress() -> Iterator[Report]:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[line]}"),
        console=RichConsole(stderr=True),
        refresh_per_second=4,
    )
    tasks: dict[str, tuple[TaskID, float, float]] = {}

    def report(status: Status) -> None:
        if status.stage not in tasks:
            task = bar.add_task(status.stage, total=status.total, line="")
            tasks[status.stage] = (task, time.monotonic(), status.done)
        task, began, first = tasks[status.stage]
        line = describe(status, time.monotonic() - began, first).split(": ", 1)[1]
        bar.update(task, completed=status.done, total=status.total, line=line)

    with bar:
        yield report


def _quantity(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"
