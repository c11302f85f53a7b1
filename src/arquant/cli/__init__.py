"""The command line: declares the commands, shows progress and results, turns errors into exit codes.

No heavy import happens before a command runs, so that `--help` answers at once.
"""

import argparse
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from arquant.base.errors import ArquantError, Interrupted
from arquant.cli.configuration import with_configuration
from arquant.cli.examples import epilog
from arquant.commands.console import Console


@dataclass(frozen=True)
class Command:
    """One subcommand: its arguments and what runs it."""

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Any, Console], int | None]
    resumes: bool = False
    """whether the same command goes on where an interrupted one stopped"""


class _Help(DefaultHelpFormatter):
    """Names defaults that say something, and no Python types; the usage line has only what must be stated."""

    def __init__(self, prog: str, *args: Any, **options: Any) -> None:
        first, optional, last = prog.partition(" [options]")
        super().__init__(first + last + optional, *args, **options)  # type: ignore[no-untyped-call]

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Leave out what may be left out; it is listed below, in groups."""
        needed = [action for action in actions if action.required or not action.option_strings]
        super().add_usage(usage, needed, [], prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Keep lines that are indented, such as commands to copy, as they are."""
        fill = super()._fill_text
        return "\n".join(line if line[:1] == " " else fill(line, width, indent) for line in text.splitlines())

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        silent = default is None or default is False or default in ((), [], argparse.SUPPRESS)
        return text if silent or action.required or "default" in text else f"{text} (default: %(default)s)"


_NEGATIVE = re.compile(r"-\.?\d[-+.,\de]*$")
"""a list of numbers whose first is negative"""


class _Parser(ArgumentParser):
    """Says what is wrong in one line."""

    def __init__(self, **options: Any) -> None:
        # --config and a configuration's options know whole names only
        super().__init__(formatter_class=_Help, allow_abbrev=False, **options)
        self._negative_number_matcher = _NEGATIVE  # argparse knows single numbers only: -1,1 would be an option to it

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        parser = getattr(ex, "subcommand_parser", None) or self
        program = parser.prog.replace(" [options]", "")
        lacking = re.search(r"arguments are required: ([a-z]+)\.", message)
        if lacking and parser is self:  # found only once the command is done with: the message alone names it
            program = f"{program} {lacking[1]}"
        print(f"error: {_as_typed(_one_line(message))} (see {program} --help)", file=sys.stderr)
        sys.exit(2)


_MODULES = ("certifying", "shipping", "reporting", "data")


def build_parser() -> ArgumentParser:
    """The whole command line."""
    from arquant import __version__

    parser = _Parser(
        prog="arquant",
        description="Make a trained classifier small and provably robust: search per-layer bit-widths for the largest "
        "certified radius, and certify the model that ships.",
        epilog="Try: arquant certify resnet20:sigma=0.5 sample --sigma 0.5 --images first:20 --n 1000",
        version=__version__,
    )
    subcommands = parser.add_subcommands(required=True, dest="command")
    for command in commands():
        sub = _Parser(description=command.help, epilog=epilog(command.name))
        command.add_arguments(sub)
        subcommands.add_subcommand(command.name, sub, help=command.help)
    return parser


def parsers_of(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """The parser of every command, by its name."""
    found: dict[str, ArgumentParser] = next(a.choices for a in parser._actions if isinstance(a.choices, dict))
    return found


def commands() -> list[Command]:
    """Every command, in the order a user meets them."""
    return [command for module in _MODULES for command in import_module(f"arquant.cli.{module}").COMMANDS]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 internal error, 2 usage or bad input, 3 requirement not met,
    130 interrupted."""
    parser = build_parser()
    words = sys.argv[1:] if argv is None else argv
    namespace = parser.parse_args(with_configuration(words, parsers_of(parser)))
    args = namespace[namespace.command]
    command = next(command for command in commands() if command.name == namespace.command)
    console = Console(as_json=args.json, quiet=args.quiet, progress=args.progress)
    try:
        with console.shown_warnings(), console.results_only():
            code = command.run(args, console) or 0
        sys.stdout.flush()
        return code
    except ArquantError as error:
        console.error(_one_line(error), "interrupted" if isinstance(error, Interrupted) else "error")
        return error.exit_code
    except KeyboardInterrupt:
        typed = shlex.join(["arquant", *words])
        text = f"interrupted; the same command resumes: {typed}" if command.resumes else "interrupted"
        console.error(text, "interrupted")
        return 130
    except BrokenPipeError:
        console.give_up_output()
        return 0
    except OSError as error:
        console.error(_one_line(error))
        return 2
    except Exception as error:
        if args.verbose:
            traceback.print_exc()
        console.error(f"{type(error).__name__}: {error} (-v shows where)", "internal error")
        return 1


def _as_typed(message: str) -> str:
    """What the parser says in the words of who typed: `--out` where it says `quantize.out`, a number where `float`."""
    wrong = re.fullmatch(r"Parser key \"(\w+)\": Expected a <class '(?:float|int)'>\. Got value: (.*)", message)
    if wrong:
        return f"--{wrong[1].replace('_', '-')} must be a number, got {wrong[2]}"
    if "arguments are required" not in message:
        return message
    positional = ("model", "run", "runs", "file", "name", "shell")
    return re.sub(r"\b[a-z]+\.(\w+)", lambda m: m[1] if m[1] in positional else f"--{m[1].replace('_', '-')}", message)


def _one_line(text: object) -> str:
    return " ".join(line.strip() for line in str(text).splitlines())
