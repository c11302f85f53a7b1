"""The command line: finds the command, reads its options, shows progress and results, turns errors into exit codes.

A command is imported when it is named, and what it needs when it runs, so that `--help` answers at once.
"""

import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from arquant.base.errors import ArquantError, Interrupted
from arquant.base.options import Option, built, meant, options_of, read_config
from arquant.base.parser import Parser
from arquant.commands.command import Command, Watched
from arquant.commands.console import Console

FIRST = ("demo", "search", "certify", "report", "check")
"""the commands that one needs first"""
COMMANDS = (
    *FIRST, "plan", "watch", "train", "inspect", "cost", "quantize", "finetune", "sensitivity", "predict", "metrics", "compare",
    "benchmark", "attack", "export", "data", "completion",
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
        print(overview())
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
        print(help_of(found, everything=help_words == ["all"]))
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
        typed = shlex.join(["arquant", *words])
        text = f"interrupted; the same command resumes: {typed}" if found.resumes else "interrupted"
        console.error(text, "interrupted")
        return 130
    except BrokenPipeError:
        console.give_up_output()
        return 0
    except OSError as error:
        console.error(_one_line(error))
        return 2
    except Exception as error:
        if verbose:
            traceback.print_exc()
        console.error(f"{type(error).__name__}: {error} (-v shows where)", "internal error")
        return 1


def _shown(found: Command[..., Any], options: Any, console: Console) -> int:
    if isinstance(options, Watched):
        with console.progress(getattr(options, "tensorboard", None)) as report:
            result = found.run(replace(options, report=report, note=console.note))
    else:
        result = found.run(options)
    return found.show(result, options, console) or 0


def overview() -> str:
    """Return the help of `arquant` itself: the first five commands, then the others."""
    width = max(map(len, COMMANDS)) + 2
    rows = [f"  {name:{width}}{find_command(name).summary}" for name in COMMANDS]
    return "\n".join([
        "usage: arquant COMMAND [options]", "",
        "Make a trained classifier small and provably robust: search per-layer bit-widths for the largest certified",
        "radius, and certify the model that ships.", "",
        "first:", *rows[: len(FIRST)], "", "then:", *rows[len(FIRST) :], "",
        "arquant COMMAND --help shows what most people need, --help all every option; arquant --version.",
        "Try: arquant certify resnet20:sigma=0.5 sample --images first:20 --n 1000",
    ])  # fmt: skip


def help_of(found: Command[..., Any], *, everything: bool) -> str:
    """Return the help of a command: what most people need on one screen, or everything."""
    own = options_of(found.options)
    parser = Parser(f"arquant {found.name}", usage=_usage(found), description=found.summary, epilog=_epilog(found))
    if everything:
        parser.declare((*own, *options_of(Output)))
        return parser.format_help()
    needed = [option for option in own if option.positional or option.required]
    usual = [option for name in found.common for option in own if option.name == name]
    parser.declare((*needed, *usual), "options")
    hidden = len(own) - len(needed) - len(usual) + len(fields(Output))
    return f"{parser.format_help()}\n--help all shows {hidden} more options, such as --json and --config FILE"


def _usage(found: Command[..., Any]) -> str:
    words = [_in_usage(option) for option in options_of(found.options) if option.positional or option.required]
    return " ".join(["arquant", found.name, *words, "[options]"])


def _in_usage(option: Option) -> str:
    word = option.name.upper() if option.positional else f"{option.flag} {option.name.upper()}"
    word = f"{word} ..." if option.many and option.positional else word
    return word if option.required else f"[{word}]"


def _epilog(found: Command[..., Any]) -> str | None:
    return "\n".join(["examples:", *(f"  {line}" for line in found.examples)]) if found.examples else None


def _one_line(text: object) -> str:
    return " ".join(line.strip() for line in str(text).splitlines())
