"""The command line: finds the command, reads its options, shows progress and results, turns errors into exit codes.

A command is imported when it is named, and what it needs when it runs, so that `--help` answers at once.
"""

import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from arquant.base.errors import ArquantError, Interrupted
from arquant.base.options import built, meant, options_of, read_config
from arquant.base.parser import Parser
from arquant.commands.command import Command, Watched
from arquant.commands.console import Console
from arquant.commands.help_screen import help_of, overview

FIRST = ("demo", "search", "certify", "report", "check")
"""the commands that one needs first"""
COMMANDS = (
    *FIRST, "plan", "watch", "train", "inspect", "cost", "quantize", "finetune", "sensitivity", "predict", "metrics", "compare",
    "benchmark", "reproduce", "attack", "export", "data", "completion",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Output:
    """Output"""

    json: bool = False
    """print the result as one JSON object"""
    quiet: bool = False
    """no progress, notes or warnings; errors only"""
    progress: Literal["auto", "bars", "lines", "json"] = "auto"
    """bars where stderr is a terminal, else lines; json: one object per line on stderr, for programs"""
    verbose: bool = False
    """show where an internal error happened"""
    config: str | None = None
    """a YAML file of these options; flags override it"""


def find_command(name: str) -> Command[..., Any]:
    """Return the command of this name, which is also the name of its module."""
    found: Command[..., Any] = getattr(import_module(f"arquant.commands.{name}"), name)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done, 1 internal error, 2 usage or bad input, 3 requirement not met, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(overview([find_command(name) for name in FIRST], [find_command(name) for name in COMMANDS[len(FIRST) :]]))
        return 0 if words else 2
    if words[0] == "--version":
        from arquant import __version__

        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        print(f"error: there is no command {words[0]}{meant(words[0], COMMANDS)} (see arquant --help)", file=sys.stderr)
        return 2
    found = find_command(words[0])
    if (help_words := _help_wanted(words[1:])) is not None:
        print(help_of(found, options_of(Output), everything=help_words == ["all"]))
        return 0
    output, options = read_options(found, words[1:])
    console = Console(as_json=output.json, quiet=output.quiet, progress=output.progress)
    return _run(found, options, console, words, verbose=output.verbose)


def _help_wanted(words: Sequence[str]) -> list[str] | None:
    """Return what follows `--help`, `all` or nothing; None if no help is asked for."""
    for place, word in enumerate(words):
        if word in ("-h", "--help", "--help=all"):
            return ["all"] if "all" in (word.partition("=")[2], *words[place + 1 : place + 2]) else []
    return None


def read_options(found: Command[..., Any], words: Sequence[str]) -> tuple[Output, Any]:
    """Read the words after a command; what is wrong with them ends the program with one line and exit code 2."""
    parser = Parser(f"arquant {found.name}")
    known = (*options_of(found.options), *options_of(Output))
    parser.declare(known)
    stated = parser.stated(words)
    if "config" in stated:
        try:
            in_a_file = [option for option in known if option.name != "config"]
            stated = {**read_config(Path(stated["config"]), in_a_file), **stated}
        except ArquantError as error:
            parser.error(str(error))
        except OSError as error:
            parser.error(f"cannot read {stated['config']}: {error.strerror}")
    own = {option.name for option in options_of(found.options)}
    for option in options_of(found.options):
        if option.required and option.name not in stated:
            parser.error(f"{option.name.upper() if option.positional else option.flag} must be given: {option.help}")
    output = built(Output, {name: value for name, value in stated.items() if name not in own})
    try:
        return output, built(found.options, {name: value for name, value in stated.items() if name in own})
    except ArquantError as error:
        parser.error(str(error))


def _run(found: Command[..., Any], options: Any, console: Console, words: Sequence[str], *, verbose: bool) -> int:
    try:
        with console.shown_warnings(), console.results_only():
            code = _shown(found, options, console)
        sys.stdout.flush()
        return code
    except ArquantError as error:
        console.error(_one_line(error), "interrupted" if isinstance(error, Interrupted) else "error")
        return error.exit_code
    except KeyboardInterrupt:
        console.error(_after_interrupt(found, options, words), "interrupted")
        return 130
    except BrokenPipeError:
        raise  # the program's entry ends it quietly
    except OSError as error:
        console.error(_of_the_system(error))
        return 2
    except Exception as error:
        if verbose:
            traceback.print_exc()
        console.error(f"{type(error).__name__}: {error} (-v shows where)", "internal error")
        return 1


def _after_interrupt(found: Command[..., Any], options: Any, words: Sequence[str]) -> str:
    """Say what an interrupted command keeps, and what to type to go on."""
    typed = shlex.join(["arquant", *words])
    if not found.resumes:
        return f"interrupted; it keeps nothing to go on from, to start over: {typed}"
    out = getattr(options, "out", None)
    return f"interrupted; what was done is kept{f' in {out}' if out else ''}, to go on: {typed}"


def _shown(found: Command[..., Any], options: Any, console: Console) -> int:
    if isinstance(options, Watched):
        with console.progress(getattr(options, "tensorboard", None)) as report:
            result = found.run(replace(options, report=report, note=console.note))
    else:
        result = found.run(options)
    return found.show(result, options, console) or 0


def _of_the_system(error: OSError) -> str:
    """Say which file it is, what is wrong with it and what to do, where the operating system names one."""
    if error.filename is None or error.strerror is None:
        return _one_line(error)
    cure = (
        "name another place, or change its permissions" if isinstance(error, PermissionError) else "name another place"
    )
    return f"{error.filename}: {error.strerror}; {cure}"


def _one_line(text: object) -> str:
    return " ".join(line.strip() for line in str(text).splitlines())
