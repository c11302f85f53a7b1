"""Votes per second, memory and samples of our certification, against ART and against a plain loop, in one run.

    python benchmarks/certify.py                                                 20 minutes on two cores
    python benchmarks/certify.py --votes 1000 --rounds 1 --memory-votes 10000    a quick look

The same float network, images and numbers of votes for all; each contender in a process of its own, alternated, medians
of the rounds. Rates leave out imports, loading and compiling, which a warm-up pays for; the table states them. Adaptive
sampling is replayed on Bernoulli sequences with the published certificates' vote shares.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alternation import alternate, measure, medians

from arquant.base.errors import ArquantError

ALPHA, N0 = 0.001, 100
PUBLISHED = Path(__file__).parents[1] / "results/resnet20-sigma0.5/certificates.tsv"
Certify = Callable[[int, int], object]
"""certify the first so many images with so many votes each"""

TITLES = {
    "ours": "ours, PyTorch",
    "default": "ours, the engine that is chosen",
    "art": "ART PyTorchRandomizedSmoothing, batch {batch}",
    "art32": "ART PyTorchRandomizedSmoothing, batch 32, its default",
    "loop": "plain loop over images, batch {batch}",
}


def ours(options: argparse.Namespace, engine: str) -> Certify:
    from arquant.certificates.certificate import Settings
    from arquant.certification.smoothing import Smoothed
    from arquant.loading.datasets import load_data
    from arquant.loading.models import load_model

    smoothed = Smoothed(load_model(options.model), options.sigma, engine=engine)
    images = load_data("sample", "certify")

    def certify(count: int, votes: int) -> object:
        settings = Settings(sigma=options.sigma, n0=N0, n=votes, alpha=ALPHA)
        return smoothed.certify(images.select(f"first:{count}"), settings)

    return certify


def art(options: argparse.Namespace, batch: int) -> Certify:
    import numpy as np
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing
    from torch import nn

    from arquant.loading.datasets import load_data
    from arquant.loading.models import load_model

    model = load_model(options.model)
    images = np.asarray(load_data("sample", "certify").images, np.float32) / 255
    smoothed = PyTorchRandomizedSmoothing(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=model.input_shape,
        nb_classes=model.num_classes,
        device_type="cpu",
        sample_size=N0,
        scale=options.sigma,
        alpha=ALPHA,
    )
    return lambda count, votes: smoothed.certify(images[:count], n=votes, batch_size=batch)


def loop(options: argparse.Namespace, batch: int) -> Certify:
    """Certify as one would write it: image by image, each batch of noisy copies of one image drawn and classified."""
    import numpy as np
    import torch
    from scipy.stats import beta, norm

    from arquant.loading.datasets import load_data
    from arquant.loading.models import load_model

    model = load_model(options.model)
    images = torch.from_numpy(np.asarray(load_data("sample", "certify").images, np.float32) / 255)

    @torch.no_grad()
    def count(image: torch.Tensor, votes: int) -> torch.Tensor:
        counts = torch.zeros(model.num_classes, dtype=torch.int64)
        for first in range(0, votes, batch):
            copies = image.repeat((min(batch, votes - first), 1, 1, 1))
            labels = model(copies + options.sigma * torch.randn_like(copies)).argmax(1)
            counts += torch.bincount(labels, minlength=model.num_classes)
        return counts

    def certify(images_wanted: int, votes: int) -> object:
        radii = []
        for image in images[:images_wanted]:
            guess = int(count(image, N0).argmax())
            right = int(count(image, votes)[guess])
            lower = float(beta.ppf(ALPHA, right, votes - right + 1)) if right else 0.0
            radii.append(options.sigma * float(norm.ppf(lower)) if lower > 0.5 else 0.0)
        return radii

    return certify


CONTENDERS: dict[str, Callable[[argparse.Namespace], Certify]] = {
    "ours": lambda options: ours(options, "torch"),
    "default": lambda options: ours(options, "auto"),
    "art": lambda options: art(options, options.batch),
    "art32": lambda options: art(options, 32),
    "loop": lambda options: loop(options, options.batch),
}


def measure_speed(options: argparse.Namespace) -> dict[str, float]:
    """Return votes per second of one contender, the time before the first vote, and the peak memory of this process."""
    began = time.perf_counter()
    certify = CONTENDERS[options.contender](options)
    certify(1, N0)
    ready = time.perf_counter()
    certify(options.images, options.votes)
    seconds = time.perf_counter() - ready
    votes = options.images * (options.votes + N0)
    return {"votes_per_second": votes / seconds, "start_seconds": ready - began, "peak_mb": peak_mb()}


def measure_memory(options: argparse.Namespace) -> dict[str, float]:
    """Return the peak memory of certifying one image with `votes` votes in this process, by one engine.

    From a million votes on, `auto` would compile two engines to choose the faster, which takes memory of its own.
    """
    ours(options, "openvino")(1, options.votes)
    return {"peak_mb": peak_mb()}


def peak_mb() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**20 if sys.platform == "darwin" else used / 2**10


def replay_adaptive(path: Path, n: int, repeats: int) -> dict[str, float]:
    """Return samples saved and ACR lost by the adaptive rule against fixed n, on Bernoulli votes of certified shares.

    The votes of an image for its class are Bernoulli(p); p is taken to be the share that its certificate counted. Both
    rules see the same votes.
    """
    import numpy as np

    from arquant.certificates.adaptive import adaptive_decision
    from arquant.certificates.bounds import looks
    from arquant.certificates.claims import claim
    from arquant.certificates.files import read_certificates

    found = read_certificates(path)
    if found.settings is None:
        sys.exit(f"error: {path} has no sidecar, so its sigma is unknown")
    sigma, noise = found.settings.sigma, found.settings.noise
    chance = np.repeat([c.votes / c.n for c in found.certificates], repeats)
    right = np.repeat([_tried(c) == c.label for c in found.certificates], repeats)
    times = looks(n)
    votes = np.random.default_rng(0).binomial(np.diff(times, prepend=0), chance[:, None]).cumsum(axis=1)
    fixed = claim(votes[:, -1], n, ALPHA, sigma, noise_kind=noise).radius
    adaptive, used, open_ = np.zeros(len(votes)), np.full(len(votes), N0), np.arange(len(votes))
    for look, seen in enumerate(times):
        decision, level = adaptive_decision(votes[open_, look], look, n, ALPHA, noise_kind=noise)
        claims = open_[np.isin(decision, ("tolerance", "final"))]
        adaptive[claims] = claim(votes[claims, look], seen, level, sigma, noise_kind=noise).radius
        used[open_[decision != "continue"]] += seen
        open_ = open_[decision == "continue"]
    return {
        "images": len(found),
        "fixed_acr": float((fixed * right).mean()),
        "adaptive_acr": float((adaptive * right).mean()),
        "fixed_samples": float(n + N0),
        "adaptive_samples": float(used.mean()),
    }


def _tried(certificate: Any) -> int:
    """Return the class whose probability was bounded; in an abstention it is known by its votes."""
    if not certificate.abstained:
        return int(certificate.predict)
    return next((label for label, votes in certificate.counts if votes == certificate.votes), -1)


def run(options: argparse.Namespace) -> None:
    if not options.certificates.exists():
        sys.exit(
            f"error: there is no {options.certificates} to replay; name one with --certificates, or make it: arquant "
            f"certify {options.model} sample --sigma {options.sigma} --n 100000 --adaptive --out DIR"
        )
    try:  # first, since it takes seconds and may find the file unfinished
        replayed = replay_adaptive(options.certificates, options.adaptive_votes, options.repeats)
    except ArquantError as error:
        sys.exit(f"error: {error}; or name another file with --certificates")
    arguments = [f"--{name}={getattr(options, name)}" for name in ("model", "sigma", "images", "votes", "batch")]
    rounds = alternate(__file__, list(CONTENDERS), rounds=options.rounds, arguments=arguments)
    speed = {name: medians(found) for name, found in rounds.items()}
    memory = {}
    for votes in sorted(
        {votes for votes in (1000, 10_000, 100_000) if votes < options.memory_votes} | {options.memory_votes}
    ):
        print(f"memory at {votes:,} votes", file=sys.stderr, flush=True)
        memory[votes] = measure(__file__, "memory", [*arguments, f"--votes={votes}"])["peak_mb"]
    show(options, rounds, speed, memory, replayed)
    rate = {name: found["votes_per_second"] for name, found in speed.items()}
    ratios = {
        "over_art": rate["ours"] / rate["art"],
        "over_loop": rate["ours"] / rate["loop"],
        "over_art_batch32": rate["ours"] / rate["art32"],
        "default_over_art": rate["default"] / rate["art"],
        "default_over_loop": rate["default"] / rate["loop"],
        "adaptive_sample_ratio": replayed["fixed_samples"] / replayed["adaptive_samples"],
        "adaptive_acr_loss": replayed["fixed_acr"] - replayed["adaptive_acr"],
        "peak_mb_n1e3": memory[min(memory)],
        **({"peak_mb_n1e6": memory[1_000_000]} if 1_000_000 in memory else {}),
        "memory_votes": options.memory_votes,
    }
    print(json.dumps({name: round(value, 4) for name, value in ratios.items()}))


def show(
    options: argparse.Namespace,
    rounds: dict[str, list[dict[str, Any]]],
    speed: dict[str, dict[str, float]],
    memory: dict[int, float],
    replayed: dict[str, float],
) -> None:
    print(
        f"{options.model}, sigma {options.sigma}: {options.images} images x ({N0} + {options.votes:,}) votes, "
        f"medians of {options.rounds} rounds"
    )
    print(f"{'':56}{'votes/s':>9}{'start s':>9}{'peak MB':>9}   votes/s of each round")
    for name, found in speed.items():
        each = "  ".join(f"{one['votes_per_second']:,.0f}" for one in rounds[name])
        title = TITLES[name].format(batch=options.batch)
        rate, start, peak = (found[key] for key in ("votes_per_second", "start_seconds", "peak_mb"))
        print(f"{title:56}{rate:9,.0f}{start:9.1f}{peak:9.0f}   {each}")
    print(
        "peak memory of ours, by OpenVINO alone: "
        + ", ".join(f"{peak:.0f} MB at n = {votes:,}" for votes, peak in memory.items())
    )
    print(
        f"--adaptive, replayed for {replayed['images']:.0f} images at n = {options.adaptive_votes:,}: "
        f"{replayed['adaptive_samples']:,.0f} samples per image instead of {replayed['fixed_samples']:,.0f}, "
        f"ACR {replayed['adaptive_acr']:.4f} instead of {replayed['fixed_acr']:.4f}"
    )


def main() -> None:
    whole: Callable[[str], int] = lambda text: int(float(text))  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20:sigma=0.5")
    parser.add_argument("--sigma", type=float, default=0.5)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--votes", type=whole, default=10_000, help="per image")
    parser.add_argument("--batch", type=int, default=1000, help="of the others; Cohen's default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--memory-votes", type=whole, default=1_000_000, help="the larger n at which memory is measured"
    )
    parser.add_argument("--certificates", type=Path, default=PUBLISHED)
    parser.add_argument("--adaptive-votes", type=whole, default=100_000, help="the n that is replayed")
    parser.add_argument("--repeats", type=int, default=20, help="replays of each image")
    parser.add_argument("--contender", choices=[*CONTENDERS, "memory"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender is None:
        run(options)
    else:
        print(json.dumps(measure_memory(options) if options.contender == "memory" else measure_speed(options)))


if __name__ == "__main__":
    main()
