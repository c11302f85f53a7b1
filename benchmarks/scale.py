"""What a pool of Ray workers costs and gains on this machine: votes per second of one process, of one worker, of two.

    python benchmarks/scale.py           ResNet-20, mixed widths, sigma 0.5, sample images; 3 rounds of 20 s each
    python benchmarks/scale.py --quick   a smoke run: one short round, figures mean little

Every contender has one thread per process and runs in a process tree of its own, in turn. It certifies few images with many
votes (deep) and many images with few (wide). The clock runs from the first votes that are counted to the last: starting Ray
and the workers is stated for itself. Memory is the largest of the driver, and of a worker. `two_over_one` is the rate of
two workers over that of one, `pool_overhead` the share of a plain process's rate that one worker loses, both of the deep run.
The last figures are for paper: what the driver's processor does for one unit of work, and what goes over the network.
"""

import argparse
import json
import pickle
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from alternation import in_turn, quantized_parser
from subjects import images, quantized_network

from arquant.certificates.certificate import Settings
from arquant.certification.certify_work import CertifyWork
from arquant.certification.pooled_votes import PooledVotes
from arquant.certification.smoothing import Smoothed
from arquant.engines.choice import make_engine
from arquant.engines.pool import Cluster
from arquant.engines.probes import make_probes
from arquant.images.imageset import ImageSet
from arquant.noise.source import Noise

CONTENDERS = {"plain": 0, "one worker": 1, "two workers": 2}
WIDE_N = 100
MEGA = 1e6


def figures(options: argparse.Namespace) -> dict[str, float]:
    """Return what one contender measures."""
    workers = CONTENDERS[options.contender]
    classifier = quantized_network(options)
    shown = images(options, classifier, "certify")
    probes = make_probes(shown, Noise("grid", options.sigma), seed=0)
    engine = make_engine(classifier, input_kind="levels", threads=1, probes=probes)
    per_second = engine.images_per_second()
    smoothed = Smoothed(classifier, options.sigma, engine=engine)
    found: dict[str, float] = {"bare engine": per_second}
    try:
        if workers:
            began = time.monotonic()
            smoothed.votes = PooledVotes(Cluster("local", workers), classifier, engine, probes)
            certified(smoothed, shown.take([0]), options.sigma, smoothed.votes.unit)  # until a worker is there
            while smoothed.votes.pool.workers < workers:
                certified(smoothed, shown.take([0]), options.sigma, smoothed.votes.unit)
            found["start, s"] = time.monotonic() - began
        votes = max(workers, 1) * per_second * options.seconds
        deep = np.arange(max(1, round(votes / options.n))) % len(shown)
        wide = np.arange(max(1, round(votes / WIDE_N))) % len(shown)
        found["deep"], each = certified(smoothed, repeated(shown, deep), options.sigma, options.n)
        if smoothed.votes is not None:
            found["driver, ms of a unit"] = 1000 * each * smoothed.votes.unit
            found["bytes of an image"] = len(pickle.dumps(shown.images[0]))
            found["weights, MB"] = len(pickle.dumps(classifier)) / MEGA
        found["wide"], _ = certified(smoothed, repeated(shown, wide), options.sigma, WIDE_N)
        found["driver, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGA
        found["worker, MB"] = max(worker_bytes(), default=0) / MEGA
    finally:
        smoothed.close()
    return found


def repeated(shown: ImageSet, positions: np.ndarray) -> ImageSet:
    """Return images at positions, again and again if need be, each with a number of its own."""
    return ImageSet(
        np.stack([shown.images[place] for place in positions]), shown.labels[positions], np.arange(len(positions)),
        shown.name, shown.num_classes,
    )  # fmt: skip


def certified(smoothed: Smoothed, shown: ImageSet, sigma: float, n: int) -> tuple[float, float]:
    """Certify images; return votes per second, and this process's processor time per vote, from the first count to the last."""
    moments: list[tuple[float, float]] = []
    counted: list[int] = []

    def count(votes: int, _work: CertifyWork) -> None:
        moments.append((time.monotonic(), time.process_time()))
        counted.append(votes)

    smoothed.certify(shown, Settings(sigma=sigma, noise="grid", n=n, n0=0, mode="label"), on_votes=count)
    (began, spent), (ended, in_all) = moments[0], moments[-1]
    votes = sum(each for (moment, _), each in zip(moments, counted, strict=True) if moment > began + 0.005)
    return (votes / (ended - began), (in_all - spent) / votes) if votes else (0.0, 0.0)


def worker_bytes() -> list[int]:
    """Return the largest memory that each Ray worker of this machine has had."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "cmdline").read_bytes().startswith(b"ray::_Actor"):
                lines = (process / "status").read_text().splitlines()
                found += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        except OSError:
            continue  # it has ended
    return found


def main() -> None:
    parser = quantized_parser(__doc__, CONTENDERS, n=10_000)
    parser.set_defaults(seconds=20.0)
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 2.0, 1
    if options.contender:
        print(json.dumps(figures(options)))
        return
    found: dict[str, dict[str, Any]] = in_turn(__file__, CONTENDERS, options)
    print(f"{options.model}, medians of {options.rounds} rounds; deep: n = {options.n:,}, wide: n = {WIDE_N}\n")
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    print(f"{'':24}" + "".join(f"{contender:>16}" for contender in found))
    for name in names:
        print(
            f"{name:24}" + "".join(f"{each[name]:>16,.1f}" if name in each else f"{'':16}" for each in found.values())
        )
    plain, one, two = (each["deep"] for each in found.values())
    print(json.dumps({"two_over_one": round(two / one, 3), "pool_overhead": round(1 - one / plain, 3)}))


if __name__ == "__main__":
    main()
