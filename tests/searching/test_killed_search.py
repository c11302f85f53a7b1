"""kill -9 at random moments: no journaled candidate is lost, and the result is that of a run left alone.

`make test-kills` runs it with 100 kills; ARQUANT_KILLS sets the number.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.searching.test_search import result_of

ROOT = Path(__file__).parents[2]


def started(out):
    return subprocess.Popen([sys.executable, "-m", "tests.support.killed_search", str(out)], cwd=ROOT)


def killed_after(process, seconds):
    """Whether the process had to be killed."""
    try:
        assert process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def lines(out):
    path = out / "journal.jsonl"
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def check_kills(folder, kills):
    began = time.monotonic()
    assert started(folder / "whole").wait() == 0
    duration = time.monotonic() - began
    wanted = result_of(folder / "whole")
    rng = np.random.default_rng(kills)
    done = rounds = 0
    while done < kills:
        out, kept, killed = folder / str(rounds), [], True
        rounds += 1
        while killed:
            killed = killed_after(started(out), rng.uniform(0.1, 1.0) * duration if done < kills else None)
            assert lines(out)[: len(kept)] == kept
            kept = [line for line in lines(out) if line.endswith(b"\n")]
            done += killed
        assert result_of(out) == wanted


@pytest.mark.slow
def test_many_kills(tmp_path):
    check_kills(tmp_path, int(os.environ.get("ARQUANT_KILLS", "100")))


def test_a_few_kills(tmp_path):
    check_kills(tmp_path, 2)
