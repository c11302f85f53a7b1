"""Measuring contenders fairly: each in a process of its own with the default environment, in turn, round after round."""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from subjects import add_subject


def quantized_parser(doc: str | None, contenders: Iterable[str], *, n: int) -> argparse.ArgumentParser:
    """Return a parser with the options of a benchmark of one quantized network."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_subject(parser)
    parser.add_argument("--n", type=int, default=n, help="votes per image")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="one round of a second")
    parser.add_argument("--contender", choices=list(contenders), help=argparse.SUPPRESS)
    return parser


def in_turn(script: str, contenders: Iterable[str], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the medians of every contender, measured with these options of `quantized_parser`."""
    stated = ("model", "policy", "bits", "data", "sigma", "n", "seconds", "threads")
    given = {name: getattr(options, name) for name in stated}
    arguments = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    found = alternate(script, list(contenders), rounds=options.rounds, arguments=arguments)
    return {name: medians(rounds) for name, rounds in found.items()}


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
    """Return the last line that one contender prints, run in a process of its own."""
    command = [sys.executable, script, "--contender", contender, *arguments]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the median over the rounds of every figure."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
