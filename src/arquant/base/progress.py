"""Progress reports of long steps. The library only reports; the command line shows them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MINUTES = "minutes"
"""the unit of a step that lasts for a given time: it has no rate"""


@dataclass(frozen=True)
class Status:
    """The progress of a step: `done` of `total` units; rates and the time left follow from the receiver's clock."""

    stage: str
    done: float
    total: float
    unit: str
    details: Mapping[str, str] = field(default_factory=dict)
    """what else is worth showing, in order: running ACR, loss, best so far"""
    values: Mapping[str, float] = field(default_factory=dict)
    """measured numbers worth keeping, for logs: loss, score"""
    step: int = 0
    """where the values lie on the axis of a log: optimizer steps, candidates"""


Report = Callable[[Status], None]


def silent(status: Status) -> None:
    """Ignore a report."""


def duration(seconds: float) -> str:
    """Return seconds as people say them: 45 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
