"""`--config FILE`: options in a YAML file, read as if they had been typed before all others, so that flags override them."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from arquant.base.errors import FileFormatError

CONFIG = "--config"


def with_configuration(words: Sequence[str], parsers: Mapping[str, ArgumentParser]) -> list[str]:
    """The words of a command line with every `--config FILE` replaced by what the file says.

    Positional arguments in a file become the defaults of the command's. Whatever cannot be used ends the program as the
    parser's own errors do.
    """
    if not words or words[0] not in parsers:
        return list(words)
    parser = parsers[words[0]]
    files, typed = _taken_out(words[1:])
    stated = [word for file in files for word in _typed(file, parser, typed)]
    return [words[0], *stated, *typed]


def words_for(parser: ArgumentParser, values: Mapping[str, Any], *, without: Sequence[str]) -> list[str]:
    """What to type so that the parser finds these values, wherever they came from; defaults are left out."""
    positional: list[str] = []
    options: list[str] = []
    for action in parser._actions:
        value = None if action.dest in ("help", "config", *without) else values.get(action.dest)
        if value is None:
            continue
        if not action.option_strings:
            positional.append(str(value))
        elif value != action.default:
            for word in _option(action, value):
                flag, equals, text = word.partition("=")
                options += [flag, text] if equals and not text.startswith("-") else [word]
    return positional + options


def _taken_out(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files that `--config` names, and all other words."""
    files, others, rest = [], [], iter(words)
    for word in rest:
        if word.startswith(f"{CONFIG}="):
            files.append(word.removeprefix(f"{CONFIG}="))
        elif word == CONFIG and (file := next(rest, None)) is not None:
            files.append(file)
        else:
            others.append(word)
    return files, others


def _typed(file: str, parser: ArgumentParser, typed: Sequence[str]) -> Iterator[str]:
    actions = {action.dest: action for action in parser._actions if action.dest not in ("help", "config")}
    for key, value in _read(file, parser).items():
        action = actions.get(str(key).replace("-", "_"))
        if action is None:
            parser.error(f"{file}: {parser.prog.rpartition(' ')[2]} has no option {key!r}")
        if value is None or any(word.partition("=")[0] in action.option_strings for word in typed):
            continue
        if isinstance(value, dict):
            parser.error(f"{file}: {action.dest} cannot be {value!r}")
        if action.nargs == 0 and not isinstance(value, bool):
            parser.error(f"{file}: {action.dest} must be true or false, got {value!r}")
        if action.option_strings:
            yield from _option(action, value)
        else:
            action.default = [str(one) for one in value] if isinstance(value, list) else str(value)


def _option(action: argparse.Action, value: Any) -> Iterator[str]:
    flag = action.option_strings[-1]
    if action.nargs == 0:
        if value:
            yield flag
    elif isinstance(value, list) and isinstance(action, argparse._AppendAction):
        yield from (f"{flag}={one}" for one in value)
    else:
        yield f"{flag}={','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"


def _read(file: str, parser: ArgumentParser) -> dict[str, Any]:
    from arquant.base.plain_yaml import read_settings

    try:
        return read_settings(Path(file))
    except (OSError, FileFormatError) as error:
        parser.error(f"cannot read {file}: {error}" if isinstance(error, OSError) else str(error))
