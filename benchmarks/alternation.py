"""Measuring contenders fairly: each in a process of its own with the default environment, in turn, round after round."""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def alternate(
    script: str, contenders: Sequence[str], *, rounds: int, arguments: Sequence[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Run `script --contender NAME` for each contender in turn, `rounds` times; each prints one JSON object last.

    Returns:
        what each contender printed, round by round.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in contenders:
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            found[name].append(measure(script, name, arguments))
    return found


def measure(script: str, contender: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """What one contender prints as its last line, run in a process of its own."""
    command = [sys.executable, script, "--contender", contender, *arguments]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median over the rounds of every figure."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
