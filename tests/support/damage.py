"""Damaged files for fuzz tests: those with "fuzz" in their names, which `make fuzz` runs with ARQUANT_FUZZ examples each."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FUZZING = "ARQUANT_FUZZ" in os.environ
EXAMPLES = int(os.environ.get("ARQUANT_FUZZ", "200"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not FUZZING,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def mutate(raw: bytes, data: st.DataObject) -> bytes:
    """`raw` truncated, bit-flipped, or with two of its pieces swapped."""
    out = bytearray(raw)
    match data.draw(st.sampled_from(["cut", "flip", "flips", "swap"])):
        case "cut":
            del out[data.draw(st.integers(0, len(out))) :]
        case "flip":
            out[data.draw(st.integers(0, min(len(out) - 1, 400)))] ^= 1 << data.draw(st.integers(0, 7))
        case "flips":
            for place in data.draw(st.lists(st.integers(0, len(out) - 1), min_size=1, max_size=6)):
                out[place] ^= 1 << (place % 8)
        case "swap":
            cut = data.draw(st.integers(0, len(out)))
            out = out[cut:] + out[:cut]
    return bytes(out)
