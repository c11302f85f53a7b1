"""What it costs to test that an engine computes one fixed function of one image, before and after a certification.

    python benchmarks/guard.py

Each engine in a process of its own, in turn, medians of the rounds; the test is made once before it is measured, so that
compiling does not count. A default certification is 500 images of 100 + 10,000 votes.
"""

import argparse
import json
import time

from alternation import alternate, medians

KINDS = ("openvino", "torch")
VOTES = 500 * 10_100


def measure_guard(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of the test at the start and at the end, and the engine's votes per second."""
    from arquant.engines.choice import make_engine
    from arquant.engines.guard import Guard
    from arquant.engines.probes import make_probes
    from arquant.loading.datasets import load_data
    from arquant.loading.models import load_model
    from arquant.noise.source import Noise

    classifier = load_model(options.model)
    probes = make_probes(load_data("sample", "certify"), Noise("grid", options.sigma), seed=0)
    engine = make_engine(classifier, kind=options.contender, input_kind="levels", probes=probes)
    guard = Guard(engine, classifier, probes)  # type: ignore[arg-type]
    began = time.perf_counter()
    guard.begin()
    start, began = time.perf_counter() - began, time.perf_counter()
    guard.end()
    end = time.perf_counter() - began
    return {"start_seconds": start, "end_seconds": end, "votes_per_second": engine.images_per_second()}


def run(options: argparse.Namespace) -> None:
    arguments = [f"--model={options.model}", f"--sigma={options.sigma}"]
    found = alternate(__file__, KINDS, rounds=options.rounds, arguments=arguments)
    print(f"{options.model}, sigma {options.sigma}, medians of {options.rounds} rounds")
    print(f"{'engine':12}{'start s':>9}{'end s':>9}{'votes/s':>10}{'of a default run':>18}")
    ratios = {}
    for kind, each in ((kind, medians(rounds)) for kind, rounds in found.items()):
        both = each["start_seconds"] + each["end_seconds"]
        ratios[f"{kind}_seconds"] = round(both, 3)
        ratios[f"{kind}_share"] = share = round(both * each["votes_per_second"] / VOTES, 5)
        print(
            f"{kind:12}{each['start_seconds']:9.2f}{each['end_seconds']:9.2f}{each['votes_per_second']:10,.0f}{share:18.3%}"
        )
    print(json.dumps(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20:sigma=0.5")
    parser.add_argument("--sigma", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender is None:
        run(options)
    else:
        print(json.dumps(measure_guard(options)))


if __name__ == "__main__":
    main()
