"""`arquant completion`: a script that teaches a shell our commands and options, made from the parsers themselves."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli import Command, build_parser, commands, parsers_of
from arquant.cli.arguments import add_output
from arquant.commands.console import Console

SHELLS = ("bash", "zsh", "fish")
_HOW = {
    "bash": "source <(arquant completion bash)      # or write it to ~/.local/share/bash-completion/completions/arquant",
    "zsh": "source <(arquant completion zsh)       # or write it to a file _arquant in a folder of $fpath",
    "fish": "arquant completion fish > ~/.config/fish/completions/arquant.fish",
}


@dataclass(frozen=True)
class Option:
    """An option of a command: its spellings, whether a value follows, and which values there are, if that is known."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Words:
    """What may follow a command: its options, and the values of its positional arguments where these are known."""

    name: str
    help: str
    options: tuple[Option, ...]
    values: tuple[str, ...]


def words_of(parser: ArgumentParser) -> tuple[Words, ...]:
    """The commands of a parser with all that can be completed."""
    helps = {command.name: command.help for command in commands()}
    return tuple(_words(name, helps[name], sub) for name, sub in parsers_of(parser).items())


def _words(name: str, help: str, parser: argparse.ArgumentParser) -> Words:
    visible = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = tuple(
        Option(tuple(action.option_strings), _line(action), action.nargs != 0, _choices(action))
        for action in visible
        if action.option_strings
    )
    values = [value for action in visible if not action.option_strings for value in _choices(action)]
    return Words(name, help, options, tuple(values))


def _choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices)) if action.choices is not None else ()


def _line(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split())


def script(shell: str) -> str:
    """The completion script of a shell."""
    words = words_of(build_parser())
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](words)
    return "\n".join([f"# completion of arquant for {shell}: {_HOW[shell]}", *lines])


def _bash(words: tuple[Words, ...]) -> Iterator[str]:
    """Options, their known values and commands; anything else is completed as a file name."""
    yield from (
        "_arquant() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" command="" word',
        '    [[ $current == "=" ]] && current=""',
        '    [[ $previous == "=" ]] && previous="${COMP_WORDS[COMP_CWORD-2]}"',
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '        [[ $word != -* ]] && { command="$word"; break; }',
        "    done",
        '    local options="--help --version" values=""',
        '    case "$command" in',
    )
    yield f'        "") values="{" ".join(each.name for each in words)}" ;;'
    for each in words:
        flags = " ".join(flag for option in each.options for flag in option.flags)
        yield f"        {each.name})"
        yield f'            options="{flags}" values="{" ".join(each.values)}"'
        yield '            case "$previous" in'
        for option in each.options:
            if option.takes_value:
                known = (
                    f'COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$current"))' if option.choices else ":"
                )
                yield f"                {'|'.join(option.flags)}) {known}; return ;;"
        yield "            esac ;;"
    yield from (
        "    esac",
        '    [[ $current == -* ]] && values="$options"',
        '    COMPREPLY=($(compgen -W "$values" -- "$current"))',
        "}",
        "complete -o default -F _arquant arquant",
    )


def _zsh(words: tuple[Words, ...]) -> Iterator[str]:
    yield "#compdef arquant"
    yield "_arquant() {"
    yield "    local -a commands=("
    yield from (f"        {_quoted(f'{each.name}:{each.help}')}" for each in words)
    yield "    )"
    yield "    if (( CURRENT == 2 )); then _describe command commands; return; fi"
    yield "    local name=$words[2]"
    yield "    shift words; (( CURRENT-- ))"
    yield '    case "$name" in'
    for each in words:
        yield f"        {each.name}) _arguments \\"
        for option in each.options:
            for flag in option.flags:
                yield f"            {_quoted(_zsh_option(flag, option))} \\"
        rest = f"*:value:({' '.join(each.values)})" if each.values else "*:file:_files"
        yield f"            {_quoted(rest)} ;;"
    yield from (
        "    esac",
        "}",
        'if [[ "$funcstack[1]" = _arquant ]]; then _arquant "$@"; else compdef _arquant arquant; fi',
    )


def _zsh_option(flag: str, option: Option) -> str:
    help = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
    return f"*{flag}[{help}]" + (value if option.takes_value else "")


def _fish(words: tuple[Words, ...]) -> Iterator[str]:
    for each in words:
        yield f"complete -c arquant -n __fish_use_subcommand -f -a {each.name} -d {_quoted(each.help)}"
    for each in words:
        begin = f"complete -c arquant -n '__fish_seen_subcommand_from {each.name}'"
        if each.values:
            yield f"{begin} -f -a {_quoted(' '.join(each.values))}"
        for option in each.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r"
            yield f"{begin} {flags}{value if option.takes_value else ''} -d {_quoted(option.help)}"


def _quoted(text: str) -> str:
    """Between single quotes, for any of the shells."""
    return "'" + text.replace("'", "’") + "'"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="which shell the script is for")
    add_output(parser)


def _completion(args: Any, console: Console) -> None:
    text = script(args.shell)
    console.result({"shell": args.shell, "script": text}, text.splitlines())


COMMANDS = [Command("completion", "print a script that completes our commands in a shell", _arguments, _completion)]
