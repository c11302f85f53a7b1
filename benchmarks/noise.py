"""Measure the cost of a noise vector: our grid integers against NumPy's normals, in microseconds of CPU per 3,072 values.

Each contender draws 64 CIFAR-sized samples at a time in a process of its own, alternated, and the median of the rounds
counts. CPU time of one thread, so that other work on the machine matters little.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from alternation import alternate, medians

from arquant.noise.source import CHUNK, Noise, NoiseSource, noise_key

SHAPE = (3, 32, 32)
SIGMA = 0.5


def integers() -> Callable[[int], object]:
    source = NoiseSource(Noise("grid", SIGMA), noise_key(0, "check"), SHAPE)
    return lambda image: source.integers(image, 0)


def add() -> Callable[[int], object]:
    source = NoiseSource(Noise("grid", SIGMA), noise_key(0, "check"), SHAPE)
    picture = np.zeros(SHAPE, dtype=np.uint8)
    out = np.empty((CHUNK, *SHAPE), dtype=np.int16)
    return lambda image: source.add(picture, image, 0, CHUNK, out)


def gaussian() -> Callable[[int], object]:
    source = NoiseSource(Noise("gaussian", SIGMA), noise_key(0, "check"), SHAPE)
    return lambda image: source.unit(image, 0)


def numpy_normals(dtype: type[np.float32] | type[np.float64], rounded: bool) -> Callable[[int], object]:
    def draw(image: int) -> object:
        random = np.random.Generator(np.random.Philox(key=[0, 0], counter=[0, 0, image, 0]))
        if not rounded:
            return random.standard_normal((CHUNK, *SHAPE), dtype=dtype)
        return np.rint(255 * SIGMA * random.standard_normal((CHUNK, *SHAPE), dtype=dtype)).astype(np.int16)

    return draw


CONTENDERS: dict[str, tuple[str, Callable[[], Callable[[int], object]]]] = {
    "integers": ("grid integers (ours)", integers),
    "add": ("grid integers added to an image (ours)", add),
    "gaussian": ("gaussian float32, inverse CDF (ours)", gaussian),
    "float64": ("float64 standard_normal (NumPy)", lambda: numpy_normals(np.float64, False)),
    "float32": ("float32 standard_normal (NumPy)", lambda: numpy_normals(np.float32, False)),
    "rounded": ("float64 standard_normal, rounded to int16", lambda: numpy_normals(np.float64, True)),
}


def microseconds(name: str, repeats: int) -> float:
    """Return median microseconds of CPU per sample of 3,072 values, in this process."""
    draw = CONTENDERS[name][1]()
    draw(0)
    times = []
    for image in range(1, repeats + 1):
        start = time.thread_time()
        draw(image)
        times.append((time.thread_time() - start) / CHUNK)
    return 1e6 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--contender", choices=list(CONTENDERS), help="measure one, in this process")
    arguments = parser.parse_args()
    if arguments.contender:
        print(json.dumps({"us": microseconds(arguments.contender, arguments.repeats)}))
        return
    options = ["--repeats", str(arguments.repeats)]
    times = alternate(__file__, list(CONTENDERS), rounds=arguments.rounds, arguments=options)
    cost = {name: medians(rounds)["us"] for name, rounds in times.items()}
    print(f"{'us per 3,072 values, sigma ' + str(SIGMA):44} {'median':>7} {'x ours':>7}")
    for name, (title, _) in CONTENDERS.items():
        print(f"{title:44} {cost[name]:7.1f} {cost[name] / cost['integers']:7.2f}")
    ratios = {f"over_{name}": round(cost[name] / cost["integers"], 3) for name in ("float64", "float32", "rounded")}
    print(json.dumps({"integers_us": round(cost["integers"], 2), "add_us": round(cost["add"], 2), **ratios}))


if __name__ == "__main__":
    main()
