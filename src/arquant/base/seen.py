"""The record, in a model's own file, of the images that it was trained, calibrated, fine-tuned or chosen on.

Images whose data set and role are known (CIFAR-10's training images) are recorded by these two names, others by the first 8
bytes of the SHA-256 of each. `arquant.images.seen_images` makes the record of image sets and compares it with others.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import FileFormatError

Digests = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Use:
    """The images of one use: roles as (data set, role), others as digests, sorted and distinct."""

    roles: frozenset[tuple[str, str]] = frozenset()
    digests: Digests = field(default_factory=lambda: np.empty(0, np.uint64))

    def __or__(self, other: "Use") -> "Use":
        return Use(self.roles | other.roles, np.union1d(self.digests, other.digests))


@dataclass(frozen=True, eq=False)
class Seen:
    """The images that a model has seen, by use: `train`, `calibrate`, `search`, `finetune`.

    Attributes:
        recorded: False for a file of ours without a record, such as one of an earlier version.
    """

    uses: Mapping[str, Use] = field(default_factory=dict)
    recorded: bool = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and (self.recorded, self.to_dict()) == (other.recorded, other.to_dict())

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: "Seen") -> "Seen":
        names = sorted({*self.uses, *other.uses})
        return Seen({name: self.uses.get(name, Use()) | other.uses.get(name, Use()) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the record as files store it, in JSON; the digests are little-endian, in base 64."""
        return {
            name: {
                "roles": sorted(list(role) for role in use.roles),
                "digests": base64.b64encode(use.digests.astype("<u8").tobytes()).decode(),
            }
            for name, use in sorted(self.uses.items())
        }

    @classmethod
    def from_dict(cls, data: Any, where: str) -> "Seen":
        """Read what `to_dict` wrote; None, of a file without a record, gives one that is not `recorded`."""
        if data is None:
            return cls(recorded=False)
        try:
            return cls({str(name): _use(entry) for name, entry in data.items()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"{where}: its record of the images that it has seen is damaged ({error})") from error


def _use(entry: Mapping[str, Any]) -> Use:
    roles = frozenset((str(data), str(role)) for data, role in entry["roles"])
    content = base64.b64decode(entry["digests"], validate=True)
    return Use(roles, np.frombuffer(content, "<u8").astype(np.uint64))
