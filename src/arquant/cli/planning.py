"""`arquant plan`."""

import shlex
from collections.abc import Sequence
from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli import Command
from arquant.cli.arguments import add_output
from arquant.cli.console import Console
from arquant.cli.searching import add_task, task_options


def _arguments(parser: ArgumentParser) -> None:
    add_task(parser)
    group = parser.add_argument_group("plan")
    group.add_argument("--hours", type=float, default=1.0, help="for all stages together")
    group.add_argument(
        "--compiled",
        action="store_true",
        help="measure compiled training, as a long search runs it; takes a minute more",
    )
    add_output(parser)


def _plan(args: Any, console: Console) -> None:
    from arquant.commands.planning import plan, plan_lines

    console.note("measuring votes and training steps")
    found = plan(
        args.model, args.data, hours=args.hours, compiled=args.compiled, note=console.note, **task_options(args)
    )
    if found["command"] is not None:
        found["command"] = _search_of(console.words, found["loop_hours"])
    console.result(found, plan_lines(found))


def _search_of(words: Sequence[str], loop_hours: float) -> str:
    """The search that was planned, with all its options; its loop gets what the other stages leave of the hours."""
    kept, rest = [], iter(words[1:])
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in ("--hours", "--progress"):
            if not equals:
                next(rest, None)
        elif word not in ("--compiled", "--json", "-q", "--quiet", "-v", "--verbose"):
            kept.append(word)
    return shlex.join(["arquant", "search", *kept, "--hours", f"{max(loop_hours, 0.01):.2f}", "--out", "runs/search"])


COMMANDS = [
    Command("plan", "what a search can do on this machine in so many hours, measured in seconds", _arguments, _plan)
]
