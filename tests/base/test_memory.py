import subprocess
import sys

import pytest

from arquant.base.memory import available_bytes

PROGRAM = """
from arquant.base.memory import peak_bytes
before = peak_bytes()
held = bytearray(b"x" * (100 << 20))
print(before, peak_bytes())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems may not tell")
def test_the_peak_rises_by_what_is_used_and_is_in_bytes():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert 5e6 < before < 100e6
    assert 90e6 < after - before < 300e6
    assert 0 < available_bytes() < 1 << 50
