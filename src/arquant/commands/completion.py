"""`arquant completion`: a script that teaches a shell our commands and options, made by shtab from the declared options."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from arquant.base.options import Option, described, options_of
from arquant.commands.command import command

if TYPE_CHECKING:
    from arquant.commands.console import Console

HOW = {
    "bash": "source <(arquant completion bash)      # or write it to ~/.local/share/bash-completion/completions/arquant",
    "zsh": "source <(arquant completion zsh)       # or write it to a file _arquant in a folder of $fpath",
    "fish": "arquant completion fish > ~/.config/fish/completions/arquant.fish",
}


@dataclass(frozen=True)
class Completion:
    """Completion"""

    shell: Literal["bash", "zsh", "fish"]
    """which shell the script is for: bash, zsh or fish"""


@command(
    Completion,
    "print a script that completes our commands in a shell",
    examples=[line.split("#")[0] for line in HOW.values()],
)
def completion(options: Completion) -> str:
    """Return the completion script of a shell."""
    import shtab

    script: str = shtab.complete(whole_parser(), shell=options.shell)
    head, _, rest = script.partition("\n")
    return f"{head}\n# {HOW[options.shell]}\n{rest}"  # zsh wants its own first line first


@completion.shown
def _show(script: str, options: Completion, console: "Console") -> None:
    console.result({"shell": options.shell, "script": script}, script.splitlines())


def whole_parser() -> argparse.ArgumentParser:
    """Return a parser of all commands, for its names, choices and helps."""
    from arquant.commands.main import COMMANDS, Output, find_command

    parser = argparse.ArgumentParser("arquant")
    commands = parser.add_subparsers()
    for name in COMMANDS:
        found = find_command(name)
        own = commands.add_parser(name, help=found.summary)
        for option in (*options_of(found.options), *options_of(Output)):
            _add(own, option)
    return parser


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    import shtab

    more: dict[str, Any] = {"help": described(option).replace("%", "%%")}
    if option.positional:
        more["nargs"] = "*" if option.many else "?"
    if option.kind is bool:
        parser.add_argument(option.flag, action="store_true", **more)
    elif option.choices:
        parser.add_argument(option.flag, choices=option.choices, **more)
    else:
        parser.add_argument(option.flag, **more).complete = shtab.FILE  # type: ignore[attr-defined]
