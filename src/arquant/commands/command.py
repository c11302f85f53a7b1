"""A command: a dataclass of options, a function, and a way to show its result. It is a Python function of the same name too."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Annotated, Any, Generic, ParamSpec, TypeVar

from arquant.base.errors import ArquantError, Interrupted
from arquant.base.options import PYTHON_ONLY, built, described, options_of
from arquant.base.progress import Report, silent

if TYPE_CHECKING:
    from arquant.commands.console import Console

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741 - the options
R = TypeVar("R")
Note = Callable[[str], None]


def unheard(_text: str) -> None:
    """Take a remark for a person and drop it."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Progress"""

    report: Annotated[Report, PYTHON_ONLY] = silent
    """called with every step of progress"""
    note: Annotated[Note, PYTHON_ONLY] = unheard
    """called with every remark for the user"""


class _Documentation:
    """The docstring of a command, made when it is asked for, since reading the options' help takes time; else the class's."""

    def __init__(self, of_class: str | None) -> None:
        self.of_class = of_class

    def __get__(self, found: "Command[..., Any] | None", _owner: type) -> str | None:
        return self.of_class if found is None else _documented(found.run.__doc__ or found.summary, found.options)


class Command(Generic[P, R]):
    """A command of the command line, and the Python function of its name.

    Calling it makes the options from keyword arguments and runs it: `certify("resnet20:sigma=0.5", "sample", sigma=0.5)`.
    Its signature is that of its dataclass of options, for people, for editors and for type checkers. What may be several on
    the command line is a list, or stated one by one: `compare("runs/float", "runs/w4")`, `predict("runs/w4", "a.jpg", "b")`.

    Attributes:
        options: the dataclass.
        run: from the options to a result.
        show: prints a result; what it returns is the exit code, None means 0. It has the options too.
        summary: the one line about it in `arquant --help`.
        common: options that `--help` shows; `--help all` shows all.
        examples: commands to copy.
        resumes: the same command goes on where an interrupted one stopped.
    """

    def __init__(
        self, options: Callable[P, Any], run: Callable[[Any], R], summary: str, common: Sequence[str],
        examples: Sequence[str], *, resumes: bool,
    ) -> None:  # fmt: skip
        assert isinstance(options, type)
        assert is_dataclass(options)
        self.options: type[Any] = options
        self.run = run
        self.name = run.__name__
        self.summary, self.common, self.examples, self.resumes = summary, tuple(common), tuple(examples), resumes
        self.show: Callable[[R, Any, Console], int | None] = _as_json
        update_wrapper(self, run, assigned=("__module__", "__name__", "__qualname__"))
        self.__signature__ = inspect.signature(options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: D102 - its docstring is the command's
        positional = [item.name for item in fields(self.options) if not item.kw_only]
        last = len(positional) - 1
        if len(args) > len(positional) and options_of(self.options)[last].many:
            return self(*args[:last], args[last:], **kwargs)  # type: ignore[arg-type]
        if len(args) > len(positional):
            raise TypeError(f"{self.name}() takes {', '.join(positional)}; everything else by name")
        stated: dict[str, Any] = {**dict(zip(positional, args, strict=False)), **kwargs}
        try:
            options = built(self.options, stated)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        try:
            return self.run(options)
        except Interrupted:
            raise  # its message is a command to type
        except ArquantError as error:
            error.args = tuple(self._in_python(part) if isinstance(part, str) else part for part in error.args)
            raise

    def _in_python(self, message: str) -> str:
        """Return a message in which flags of this command are called as its arguments are; commands to type stay."""
        names = {option.flag: option.name for option in options_of(self.options) if not option.positional}
        return re.sub(r"arquant [a-z][^;]*|--[a-z][a-z0-9-]*", lambda found: names.get(found[0], found[0]), message)

    __doc__ = _Documentation(__doc__)

    def shown(self, show: Callable[[R, Any, "Console"], int | None]) -> Callable[[R, Any, "Console"], int | None]:
        """Decorate the function that prints the result."""
        self.show = show
        return show


def command(
    options: Callable[P, O],
    summary: str,
    *,
    common: Sequence[str] = (),
    examples: Sequence[str] = (),
    resumes: bool = False,
) -> Callable[[Callable[[O], R]], Command[P, R]]:
    """Decorate the function that does the work of a command; its name is the command's."""

    def make(run: Callable[[O], R]) -> Command[P, R]:
        return Command(options, run, summary, common, examples, resumes=resumes)

    return make


def _as_json(result: Any, _options: Any, console: "Console") -> None:
    console.result(result)


def _documented(text: str, options: type) -> str:
    lines = [inspect.cleandoc(text), "", "Args:"]
    return "\n".join([*lines, *(f"    {option.name}: {described(option)}" for option in options_of(options))])
