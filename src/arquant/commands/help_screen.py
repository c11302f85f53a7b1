"""Help on one screen: an example first, then what most people set, one line each, by what one wants to do.

`--help all` has every option in full, under the headings of the dataclasses that declare them.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arquant.base.options import Option, default_text, options_of
from arquant.base.parser import Parser, metavar
from arquant.commands.command import Command

WIDTH = 100
COLUMN = 26
"""where the explanations begin"""
PURPOSES: Mapping[str, tuple[str, ...]] = {
    "how, and for how long": (
        "strategy", "methods", "scale", "native", "reward", "preset", "method", "attack", "norm", "judge", "hours", "trials",
        "steps", "epochs", "final_epochs", "seeds", "compiled", "batch", "lr", "consistency", "init",
    ),
    "which bits": ("bits", "policy", "keep", "clip", "per_channel", "learn", "base", "min_bits", "max_bits"),
    "which images": ("images", "data", "imagenet", "calibrate", "certify", "split", "search_images"),
    "noise and votes": ("sigma", "noise", "n", "alpha", "adaptive", "seed", "search_n"),
    "what to count": ("convention", "table", "make_table"),
    "what to require": ("min_acr", "max_bytes", "min_certified", "replay", "fresh"),
    "the network": ("weights", "arch", "input", "classes", "bounds", "model"),
    "where, and in which form": ("out", "format", "container", "figures", "engine", "device", "threads", "certificates"),
}  # fmt: skip
"""options of the short help by purpose; what is not here comes last, as `more`"""
ROOMS: Mapping[str, tuple[str, ...]] = {
    "prepare a network and a budget:": ("data", "train", "inspect", "cost", "plan"),
    "quantize without a search, and ship:": ("quantize", "finetune", "sensitivity", "export", "predict"),
    "look, compare, measure:": ("watch", "metrics", "compare", "benchmark", "reproduce", "attack"),
}
"""the commands after the first five, by purpose; what is not here comes last"""


def overview(first: Sequence[Command[..., Any]], others: Sequence[Command[..., Any]]) -> str:
    """Return the help of `arquant` itself: the first commands, then the others by purpose."""
    known = {found.name: found for found in others}
    rest = [name for name in known if not any(name in names for names in ROOMS.values())]
    width = max(len(found.name) for found in (*first, *others)) + 2

    def rows(commands: Iterable[Command[..., Any]]) -> list[str]:
        return [f"  {found.name:{width}}{found.summary}" for found in commands]

    groups = [
        [title, *rows(known[name] for name in names if name in known)]
        for title, names in {**ROOMS, "besides:": rest}.items()
    ]
    return "\n".join([
        "usage: arquant COMMAND [options]", "",
        "Make a trained image classifier small and certify, by randomized smoothing, the model that ships.", "",
        "the five that one needs:", *rows(first), "",
        *(line for group in groups if len(group) > 1 for line in group), "",
        "arquant COMMAND --help is one screen, --help all has every option; arquant --version.",
        "Try: arquant certify resnet20:sigma=0.5 sample --images first:20 --n 1000",
    ])  # fmt: skip


def help_of(found: Command[..., Any], output: Sequence[Option], *, everything: bool) -> str:
    """Return the help of a command: one screen with what most people need, or all of it.

    Args:
        output: the options that every command has.
    """
    own = options_of(found.options)
    if everything:
        parser = Parser(f"arquant {found.name}", usage=_usage(found), description=found.summary, epilog=_epilog(found))
        parser.declare((*own, *output))
        return parser.format_help()
    needed = [option for option in own if option.positional or option.required]
    usual = [option for name in found.common for option in own if option.name == name and option not in needed]
    hidden = len(own) - len(needed) - len(usual) + len(output)
    example = [f"  {line.rstrip()}" for line in found.examples[0].splitlines()] if found.examples else []
    told = f"{found.summary[0].upper()}{found.summary[1:]}{':' if example else '.'}"
    return "\n".join([
        f"usage: {_usage(found)}", "", told, *example, "",
        *(line for option in needed for line in (_lines(option) if option is needed[0] else [_line(option)])),
        *(line for title, options in _by_purpose(usual) for line in (f"{title}:", *(_line(one) for one in options))),
        "", f"--help all explains these in full, and {hidden} more options such as --json and --config FILE",
    ])  # fmt: skip


def _by_purpose(options: Sequence[Option]) -> list[tuple[str, list[Option]]]:
    """Return headings with the options under them, in the order of PURPOSES; few options need one heading only."""
    if len(options) <= 4:
        return [("options", list(options))] if options else []
    purpose = {name: title for title, names in PURPOSES.items() for name in names}
    found: dict[str, list[Option]] = {title: [] for title in (*PURPOSES, "more")}
    for option in options:
        found[purpose.get(option.name, "more")].append(option)
    return [(title, listed) for title, listed in found.items() if listed]


def _lines(option: Option) -> list[str]:
    """Return the two lines of the option that must be understood before all others, MODEL or RUN."""
    room = WIDTH - COLUMN
    first, *rest = textwrap.wrap(brief(option.help, 2 * room - 12), room)
    return [f"{'  ' + option.name.upper():{COLUMN}}{first}", *(" " * COLUMN + line for line in rest)]


def _line(option: Option) -> str:
    ending = _ending(option)
    return f"{'  ' + _named(option):{COLUMN}}{brief(_text(option), WIDTH - COLUMN - len(ending))}{ending}"


def _ending(option: Option) -> str:
    """Return that an option is required, or its default, which may be cut."""
    if option.required:
        return "" if option.positional else " (required)"
    default = default_text(option)
    return f" (default {default if len(default) <= 24 else default[:21] + '...'})" if default else ""


def _named(option: Option) -> str:
    if option.positional or option.kind is bool:
        return option.name.upper() if option.positional else option.flag
    names = (metavar(option), option.name.upper().rpartition("_")[2], "X")
    return next(named for name in names if len(named := f"{option.flag} {name}") <= COLUMN - 4 or name == "X")


def _text(option: Option) -> str:
    """Return the explanation; choices that neither it nor the flag's name shows stand before it."""
    text = option.help
    hidden = [] if metavar(option) in _named(option) else [one for one in option.choices if one not in text]
    return f"{' | '.join(option.choices)}: {text}" if hidden else text


def brief(text: str, width: int) -> str:
    """Return the text if it fits, else its longest beginning that ends with a whole thought, else with a whole word.

    What is cut after a comma or within a thought ends with an ellipsis; after a semicolon nothing is missing.
    """
    if len(text) <= width:
        return text
    ends = [found.start() for found in re.finditer(r"; | \([^()]*\)(?=;|$)", text) if found.start() <= width]
    if ends and ends[-1] >= width // 3:
        return text[: ends[-1]]
    shorter = text[: width - 3]
    return f"{shorter[: shorter.rfind(' ')].rstrip(' ,;:|(')} ..."


def _usage(found: Command[..., Any]) -> str:
    words = [_in_usage(option) for option in options_of(found.options) if option.positional or option.required]
    return " ".join(["arquant", found.name, *words, "[options]"])


def _in_usage(option: Option) -> str:
    word = option.name.upper() if option.positional else f"{option.flag} {option.name.upper()}"
    word = f"{word} ..." if option.many and option.positional else word
    return word if option.required else f"[{word}]"


def _epilog(found: Command[..., Any]) -> str | None:
    return "\n".join(["examples:", *(f"  {line}" for line in found.examples)]) if found.examples else None
