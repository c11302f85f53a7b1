"""`arquant plan`."""

import shlex
from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli import Command, build_parser, parsers_of
from arquant.cli.arguments import add_output
from arquant.cli.configuration import words_for
from arquant.cli.searching import add_task, task_options
from arquant.commands.console import Console


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
    if found["loop_hours"] > 0:
        found["command"] = search_command(args, found["loop_hours"])
    console.result(found, plan_lines(found))


def search_command(args: Any, loop_hours: float) -> str:
    """The search that was planned, with all its options; its loop gets what the other stages leave of the hours."""
    not_of_search = ("hours", "compiled", "json", "quiet", "verbose", "progress")
    words = words_for(parsers_of(build_parser())["plan"], args, without=not_of_search)
    return shlex.join(["arquant", "search", *words, "--hours", f"{max(loop_hours, 0.01):.2f}", "--out", "runs/search"])


COMMANDS = [
    Command("plan", "what a search can do on this machine in so many hours, measured in seconds", _arguments, _plan)
]
