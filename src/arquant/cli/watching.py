"""`arquant watch`."""

import time
from typing import Any, TextIO

from jsonargparse import ArgumentParser

from arquant.cli import Command
from arquant.cli.arguments import add_output
from arquant.commands.console import Console


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run folder of a search: running, stopped, finished, or about to begin")
    parser.add_argument("--once", action="store_true", help="show it once; so it is where stdout is no terminal")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between looks")
    add_output(parser)


def _watch(args: Any, console: Console) -> None:
    from arquant.base.errors import InputError
    from arquant.commands.watching import watch, watch_lines

    if not args.interval > 0:
        raise InputError(f"--interval must be a positive number of seconds, got {args.interval:g}")
    if not (args.once or args.json) and console.out.isatty():
        _live(args.run, args.interval, console.out)
        return
    snapshot = watch(args.run)
    console.result(snapshot.to_json(), watch_lines(snapshot, marks=_marks(console.out)))


def _live(run: str, interval: float, out: TextIO) -> None:
    """Draw the search again and again until it has finished, or the user leaves."""
    from rich.console import Console as RichConsole
    from rich.live import Live
    from rich.text import Text

    from arquant.commands.watching import watch, watch_lines

    terminal = RichConsole(file=out)

    def drawn() -> tuple[Text, bool]:
        snapshot = watch(run)
        lines = watch_lines(snapshot, width=min(terminal.width, 120), marks=_marks(out))
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), snapshot.stage == "finished"

    try:
        picture, finished = drawn()
        with Live(picture, console=terminal, auto_refresh=False, vertical_overflow="crop") as live:
            while not finished:
                time.sleep(interval)
                picture, finished = drawn()
                live.update(picture, refresh=True)
    except KeyboardInterrupt:  # the way to leave; the search goes on
        return


def _marks(out: TextIO) -> Any:
    """Letters that the terminal can show."""
    from arquant.reporting.text_chart import ASCII, UNICODE

    try:
        "".join(vars(UNICODE).values()).encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


COMMANDS = [
    Command("watch", "show a running or finished search, from its journal, in the terminal", _arguments, _watch)
]
