"""The command line: declares the commands, shows progress and results, turns errors into exit codes.

No heavy import happens before a command runs, so that `--help` answers at once.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli.console import Console
from arquant.errors import ArquantError


@dataclass(frozen=True)
class Command:
    """One subcommand: its arguments and what runs it."""

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Any, Console], int | None]


_MODULES = ("quantizing", "certifying", "data")


def build_parser() -> ArgumentParser:
    """The whole command line."""
    from arquant import __version__

    parser = ArgumentParser(
        prog="arquant",
        description="Make a trained classifier small and provably robust: search per-layer bit-widths for the largest "
        "certified radius, and certify the model that ships.",
        epilog="Try: arquant certify resnet20:sigma=0.5 sample --sigma 0.5 --images first:20 --n 1000",
        version=__version__,
    )
    subcommands = parser.add_subcommands(required=True, dest="command")
    for command in commands():
        sub = ArgumentParser(description=command.help)
        command.add_arguments(sub)
        subcommands.add_subcommand(command.name, sub, help=command.help)
    return parser


def commands() -> list[Command]:
    """Every command, in the order a user meets them."""
    return [command for module in _MODULES for command in import_module(f"arquant.cli.{module}").COMMANDS]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 internal error, 2 usage or bad input, 3 requirement not met,
    130 interrupted."""
    namespace = build_parser().parse_args(argv)
    args = namespace[namespace.command]
    run = next(command.run for command in commands() if command.name == namespace.command)
    console = Console(as_json=args.json, quiet=args.quiet)
    try:
        with console.shown_warnings():
            return run(args, console) or 0
    except ArquantError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        words = list(sys.argv[1:] if argv is None else argv)
        print(f"interrupted; the same command resumes: arquant {' '.join(words)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if args.verbose:
            traceback.print_exc()
        print(f"internal error: {type(error).__name__}: {error} (-v shows where)", file=sys.stderr)
        return 1


def entry() -> None:
    """The console script."""
    sys.exit(main())
