"""What a person sees: progress on stderr, results on stdout. Lines of text where stderr is not a terminal."""

import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from arquant.progress import Report, Status, silent
from arquant.progress import duration as duration

PLAIN_SECONDS = 10.0
"""how often progress is written where it cannot be drawn"""


class Console:
    """Renders results, notes and progress for one command."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    def result(self, data: Any, lines: Sequence[str] | None = None) -> None:
        """Print the result: `data` as JSON with --json, else `lines` for people."""
        if self.as_json:
            print(json.dumps(data, default=str, allow_nan=False))
        else:
            print("\n".join(lines if lines is not None else [json.dumps(data, indent=2, default=str)]))

    def note(self, text: str) -> None:
        """A remark on stderr."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self) -> Iterator[Report]:
        """A report function that shows its statuses while the context lasts."""
        if self.quiet:
            yield silent
        elif sys.stderr.isatty():
            with _drawn_progress() as report:
                yield report
        else:
            yield _PlainProgress(sys.stderr)

    @contextmanager
    def shown_warnings(self) -> Iterator[None]:
        """Show warnings as single lines, each text once."""
        seen: set[str] = set()

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            if (text := str(message)) not in seen and not self.quiet:
                seen.add(text)
                print(f"warning: {text}", file=sys.stderr, flush=True)

        with warnings.catch_warnings():
            warnings.simplefilter("default")
            for noisy in ("torch", "openvino", "onnx", "timm"):
                warnings.filterwarnings("ignore", module=rf"{noisy}\b.*")
            warnings.showwarning = show
            yield


class _PlainProgress:
    """One line per stage at its start, its end, and every PLAIN_SECONDS in between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._began = self._written = time.monotonic()
        self._first = 0.0

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if status.stage != self._stage:
            self._stage, self._began, self._written, self._first = status.stage, now, now, status.done
            return
        if now - self._written < PLAIN_SECONDS and status.done < status.total:
            return
        self._written = now
        print(describe(status, now - self._began, self._first), file=self._stream, flush=True)


def describe(status: Status, seconds: float, first: float) -> str:
    """One line: how far, how fast, how long still, and the details."""
    rate = (status.done - first) / seconds if seconds > 0 else 0.0
    parts = [f"{status.stage}: {_quantity(status.done)}/{_quantity(status.total)} {status.unit}"]
    if rate > 0:
        parts.append(f"{_quantity(rate)} {status.unit}/s")
        if status.done < status.total:
            parts.append(f"{duration((status.total - status.done) / rate)} left")
    parts += [f"{name} {value}" for name, value in status.details.items()]
    return ", ".join(parts)


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
