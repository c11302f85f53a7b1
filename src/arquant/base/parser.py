"""Read the words of a command by the options that it declares, and show them as help."""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from arquant.base.options import Option, described, meant

_SHORT = {"quiet": ("-q",), "verbose": ("-v",)}
_NEGATIVE = re.compile(r"-\.?\d[-+.,\de]*$")
"""a list of numbers whose first is negative"""


class Parser(argparse.ArgumentParser):
    """Reads the words of one command: flags and positional arguments in any order, one line per error."""

    def __init__(self, prog: str, **texts: Any) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False, formatter_class=_Help, **texts)
        self._negative_number_matcher = _NEGATIVE  # argparse knows single numbers only: -1,1 would be an option to it
        self._options: dict[str, Option] = {}

    def error(self, message: str) -> NoReturn:
        """End the program with one line on stderr and exit code 2."""
        print(f"error: {' '.join(message.split())} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)

    def declare(self, options: Iterable[Option], heading: str | None = None) -> None:
        """Add options under the headings of the groups that they are declared in, or all under one."""
        groups: dict[str, Any] = {}
        for option in options:
            self._options[option.name] = option
            if option.positional:
                self._add(self, option)
                continue
            title = heading or option.group
            if title not in groups:
                groups[title] = self.add_argument_group(title)
            self._add(groups[title], option)

    @staticmethod
    def _add(group: Any, option: Option) -> None:
        more: dict[str, Any] = {"default": argparse.SUPPRESS, "help": described(option).replace("%", "%%")}
        names = [option.flag] if option.positional else [*_SHORT.get(option.name, ()), option.flag]
        if option.positional:
            more |= {"nargs": "*" if option.many else "?", "metavar": option.name.upper()}
            group.add_argument(option.name, **more)
        elif option.kind is bool:
            more |= {"action": "store_const", "const": option.default is not True}
            group.add_argument(*names, dest=option.name, **more)
        elif option.many:
            group.add_argument(*names, dest=option.name, action="append", metavar=metavar(option), **more)
        else:
            group.add_argument(*names, dest=option.name, type=option.convert, metavar=metavar(option), **more)

    def stated(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values that the words state, by name; what is unknown ends the program with a proposal."""
        for word in words:  # argparse would make an empty list of it
            if word.startswith("-") and word.partition("=")[2] == "--":
                self.error(f"{word.partition('=')[0]} cannot be --")
        found, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings]
            word = unknown[0].partition("=")[0]
            kind = "option" if word.startswith("-") else "argument"
            self.error(f"unknown {kind} {word}{meant(word, flags) if kind == 'option' else ''}")
        return {name: self._read(name, value) for name, value in vars(found).items() if value not in ([], None)}

    def _read(self, name: str, value: Any) -> Any:
        """Convert what argparse leaves as it is: the words of options that may be repeated, and of positional arguments."""
        option = self._options[name]
        if not (option.many or option.positional):
            return value
        try:
            return option.convert(value)
        except argparse.ArgumentTypeError as error:
            self.error(f"argument {option.flag}: {error}")


class _Help(argparse.HelpFormatter):
    """Leaves commands to copy as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=100)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line[:1] == " " else fill(line, width, indent) for line in text.splitlines())


def metavar(option: Option) -> str:
    """Return what stands for the value of an option in the help."""
    if get_origin(option.kind) is Literal:
        return "{" + ",".join(get_args(option.kind)) + "}"
    return {int: "N", float: "X"}.get(option.kind, option.name.upper().rpartition("_")[2])
