"""Name the models of a report in words that a stranger understands."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arquant.reporting.model import Entry

_CONTROLS = {"float": "float network", "tuned": "float network, fine-tuned"}


def plainly_named(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries with names that say what each is, and a colour each; folders are added where names are alike."""
    names = _told_apart([plain_name(entry) for entry in entries], entries)
    return tuple(replace(entry, name=names[place], colour=place) for place, entry in enumerate(entries))


def plain_name(entry: Entry) -> str:
    """Return what a model is: `searched (mixed w2-3, a4-6)`, `uniform (w3a3)`, `float network`, or the network's name."""
    if entry.role in _CONTROLS:
        return _CONTROLS[entry.role]
    if entry.layers:
        how = "uniform" if entry.role == "uniform" else "quantized" if entry.search is None else "searched"
        return f"{how}{_budget(entry)} ({entry.widths})"
    return entry.name if entry.model_name == "unknown" or entry.role == "uniform" else entry.model_name


def _budget(entry: Entry) -> str:
    """Return the budget of a point of a search within several, from the name of its folder: `, 3 bit`."""
    folder = Path(entry.folder)
    point = folder.parent.parent if entry.role == "uniform" else folder
    if point.parent.name != "points":
        return ""
    found = re.fullmatch(r"bops-([\d.]+)bit", point.name)
    return f", {found[1]} bit" if found else f", {point.name}"


def uniquely_named(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries with the names of their folders, with more of the path where these are alike."""
    names = _told_apart([entry.name for entry in entries], entries)
    return tuple(replace(entry, name=names[place], colour=place) for place, entry in enumerate(entries))


def _told_apart(names: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    found = list(names)
    for more in (lambda entry: entry.name, lambda entry: "/".join(Path(entry.folder).parts[-3:])):
        often = Counter(found)
        found = [
            name if often[name] == 1 else more(entry) if name == entry.name else f"{plain}, {more(entry)}"
            for name, plain, entry in zip(found, names, entries, strict=True)
        ]
    often = Counter(found)
    return [name if often[name] == 1 else f"{name} ({place})" for place, name in enumerate(found, start=1)]
