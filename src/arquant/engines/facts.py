"""What an exported file says of itself, stored in its metadata as JSON."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from arquant.base.errors import FileFormatError
from arquant.base.files import envelope, opened
from arquant.quantization.policy import Policy

SCHEMA, VERSION = "arquant.model", 1
KEY = "arquant"
"""of the metadata in an exported file"""


@dataclass(frozen=True)
class Facts:
    """What an exported file says of itself.

    Attributes:
        bounds: smallest and largest pixel value of its input.
        sigma: noise that it was trained or quantized for, in units of the pixel range; None if unknown.
        fingerprint: of the classifier that was exported.
        policy: widths per layer, as in a policy file; None for a float model.
        more: whatever else was recorded.
    """

    name: str
    num_classes: int
    input_shape: tuple[int, int, int]
    bounds: tuple[float, float]
    fingerprint: str
    sigma: float | None = None
    policy: dict[str, Any] | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text that is stored in the file."""
        return json.dumps(envelope(SCHEMA, VERSION, asdict(self)), sort_keys=True)

    @classmethod
    def parse(cls, text: str, where: str) -> "Facts":
        """Read what `to_json` wrote."""
        try:
            data = opened(json.loads(text), SCHEMA, VERSION, f"{where}: its arquant metadata")
            shape, bounds = (tuple(data.pop(key)) for key in ("input_shape", "bounds"))
            facts = cls(input_shape=shape, bounds=bounds, **data)
            facts.check()
            if facts.policy is not None:
                Policy.from_dict(facts.policy, where=where)
            return facts
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{where}: its arquant metadata cannot be read: {error}") from error

    def check(self) -> None:
        """Raise TypeError if a value is of the wrong kind."""
        kinds: dict[str, type | tuple[type, ...]] = {
            "name": str,
            "num_classes": int,
            "fingerprint": str,
            "sigma": (int, float, type(None)),
            "policy": (dict, type(None)),
            "more": dict,
        }
        for key, kind in kinds.items():
            value = getattr(self, key)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"{key} is {value!r}")
        for key, count, numbers in (("input_shape", 3, int), ("bounds", 2, (int, float))):
            values = getattr(self, key)
            if len(values) != count or not all(isinstance(value, numbers) for value in values):
                raise TypeError(f"{key} is {values!r}")
