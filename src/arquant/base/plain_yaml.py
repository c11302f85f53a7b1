"""Settings in YAML files: plain values only, in time that is proportional to the file."""

from pathlib import Path
from typing import Any

import yaml

from arquant.base.errors import FileFormatError

MOST_BYTES = 2**18
"""of one file; the longest of ours has some thousand"""


class _Loader(yaml.SafeLoader):
    """Knows no aliases: a few lines of them stand for as many values as one likes. A date is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class that it is taken from
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.YAMLError(
                f"aliases and anchors (& and *) are not allowed, here in line {event.start_mark.line + 1}"
            )
        return super().compose_node(parent, index)


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings in a YAML file: names, and values that are numbers, texts, true, false, null, lists or maps.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it cannot be read, or holds anything else.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES:,} bytes")
        data = yaml.load(raw.decode(), _Loader)
    except FileNotFoundError:
        raise
    except Exception as error:  # of the many constructors of a YAML reader each has its own exceptions
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise FileFormatError(f"{path} does not hold options, such as sigma: 0.5")
    _check_plain(data, path)
    return data


def _check_plain(value: Any, path: Path) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise FileFormatError(f"{path}: {key!r} is not the name of a setting")
            _check_plain(part, path)
    elif isinstance(value, list):
        for part in value:
            _check_plain(part, path)
    elif isinstance(value, int) and abs(value) >> 64:  # numbers of any length, which nothing could even print
        raise FileFormatError(f"{path} holds a number of {value.bit_length()} bits")
    elif not isinstance(value, bool | int | float | str | None):
        raise FileFormatError(f"{path} holds a {type(value).__name__} ({value!r}); put a text in quotes")
