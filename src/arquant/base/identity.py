"""Answer one question: is this the same run? Every file that a run continues states what the run is about.

An identity is plain data: model, images, settings. A run goes on only where the identity in the file equals its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from arquant.base.errors import MismatchError

_MOST_DIFFERENCES = 6
_DIGESTS = {"model": "another model", "images": "another set of images", "data": "other images"}
"""settings whose values, where they are texts, are hashes, which tell a reader nothing"""


def check_same(
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    what: str,
    *,
    free: Sequence[str] = (),
    advice: str = "choose another --out",
) -> None:
    """Refuse to go on where two identities differ.

    Args:
        there: the identity in the file.
        here: the identity of this run.
        what: the beginning of the message, such as "runs/a holds another search".
        free: settings that may differ; a dot joins the names of nested ones.
        advice: what the user can do.

    Raises:
        MismatchError: the identities differ; the message names the first differences.
    """
    if found := differences(there, here, free):
        raise MismatchError(f"{what} ({found}); {advice}")


def differences(there: Mapping[str, Any], here: Mapping[str, Any], free: Sequence[str] = ()) -> str:
    """Describe the settings that differ, ignoring `free` ones; return an empty text if none does.

    A dot joins the names of nested settings. A setting that is not stated equals None.
    """
    old, new = _flat(there), _flat(here)
    names = [name for name in {**old, **new} if name not in free and old.get(name) != new.get(name)]
    shown = [_difference(name, old, new) for name in names[:_MOST_DIFFERENCES]]
    rest = len(names) - len(shown)
    return "; ".join([*shown, *([f"and {rest} more"] if rest else [])])


def _difference(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if name in _DIGESTS and isinstance(old.get(name), str) and isinstance(new.get(name), str):
        return _DIGESTS[name]
    return f"{name} {_said(old, name)} there, {_said(new, name)} here"


def _said(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "not stated"


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
