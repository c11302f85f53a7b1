"""Damaged files for fuzz tests. ARQUANT_FUZZ is the number of examples per test (200)."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FUZZ = settings(
    max_examples=int(os.environ.get("ARQUANT_FUZZ", "200")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
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
