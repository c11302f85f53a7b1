"""What do IRS and better incremental bounds gain or lose against plain randomized smoothing (RS)?

    python experiments/incremental_gain.py --data cifar10 --images 200 --out results/incremental_gain

The float network and each candidate (uniform bits after so many steps of fine-tuning) vote once, on common noise; then
every method is replayed on the first n votes of the candidate and the first 10,000 or 100,000 of the float network.
Compared are the ACR at equal samples of the candidate and the samples, hence the time, to equal ACR. The float network's
votes are not counted, as in the paper, which claims a speed-up of 1.32 and no loss. A restart keeps finished votes.
The float network's 100,000 votes per image take most of the time.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from common import Bench, Jobs, markdown, open_bench, parser_of, shown, write_summary

from arquant.base.journal import Journal
from arquant.certificates.bounds import FloatArray, IntArray
from arquant.certificates.resampling import Interval, bootstrap_mean, paired_bootstrap
from arquant.certification.incremental import incremental_claims
from arquant.certification.vote_cache import VoteCache, Votes

SMALLEST, STEPS = 64, 28
"""numbers of samples at which the curves of ACR are known: so many, evenly on a logarithmic scale"""
POINTS = 64
RESAMPLES = 1000
CLASSES = {"float": "class chosen by the float network, as published", "label": "class given by the label"}

Radii = Mapping[str, FloatArray]
"""by method: (numbers of samples, images)"""
Case = tuple[str, int, str]
"""candidate, votes of the float network, which class is certified"""


@dataclass(frozen=True)
class Levels:
    """Error probabilities: of the float network's bound, and of what the candidate adds to it."""

    sigma: float
    alpha: float
    alpha_zeta: float
    gamma: float

    @property
    def total(self) -> float:
        return self.alpha + self.alpha_zeta

    def methods(self) -> dict[str, tuple[str, float, float]]:
        """Return the bound, alpha and alpha_zeta of each method. All but `RS at alpha` claim the same total error."""
        alpha, alpha_zeta, third = self.alpha, self.alpha_zeta, self.total / 3
        return {
            "RS": ("rs", alpha, alpha_zeta),
            "RS at alpha": ("rs", alpha, 0.0),
            "IRS as published": ("irs", alpha, alpha_zeta),
            "IRS, honest union": ("irs", third, third),
            "directional": ("directional", alpha, alpha_zeta),
            "paired": ("paired", alpha, alpha_zeta),
            "best-of": ("best-of", alpha, alpha_zeta),
        }


def samples_of(largest: int, asked: Sequence[int]) -> IntArray:
    """Return the sample counts of the curves: a logarithmic grid, and those that were asked for."""
    grid = np.geomspace(min(SMALLEST, largest), largest, STEPS).round().astype(np.int64)
    return np.unique(np.concatenate([grid, np.asarray(asked, dtype=np.int64)]))


def replayed_radii(cache: VoteCache, votes: Votes, classes: IntArray, samples: IntArray, levels: Levels) -> Radii:
    """Return the credited radii (0 where the certified class is wrong) of every method on the first samples."""
    methods = levels.methods()
    right = classes == cache.labels
    radii: dict[str, list[FloatArray]] = {name: [] for name in methods}
    for n in samples:
        for name, (method, alpha, alpha_zeta) in methods.items():
            claim = incremental_claims(
                cache, votes[:, :n], method, sigma=levels.sigma, alpha=alpha, alpha_zeta=alpha_zeta, gamma=levels.gamma,
                classes=classes,
            )  # fmt: skip
            radii[name].append(claim.radius * right)
    return {name: np.stack(each) for name, each in radii.items()}


def samples_needed(acr: FloatArray, curve: FloatArray, samples: IntArray) -> FloatArray:
    """Return the samples that reach each ACR on a curve, interpolated on a logarithmic scale; nan outside the curve."""
    reached, first = np.unique(np.maximum.accumulate(curve), return_index=True)
    needed = np.exp(np.interp(acr, reached, np.log(samples[first])))
    return np.where((acr >= reached[0]) & (acr <= reached[-1]), needed, np.nan)


def speed_up(plain: FloatArray, other: FloatArray, *, samples: IntArray) -> float:
    """Return samples of RS / samples of the other method at equal ACR, mean over the range that both curves reach."""
    low, high = max(plain[0], other[0]), min(plain.max(), other.max())
    if not low < high:
        return float("nan")
    acr = np.linspace(low, high, POINTS)
    return float(np.mean(samples_needed(acr, plain, samples) / samples_needed(acr, other, samples)))


def speed_up_at(plain: FloatArray, other: FloatArray, *, samples: IntArray, place: int) -> float:
    """Return the samples RS needs for the other method's ACR at samples[place], divided by these; nan if out of reach."""
    needed = samples_needed(other[place : place + 1], plain, samples)
    return float(needed[0] / samples[place])


@dataclass(frozen=True)
class Figures:
    """One method, by number of samples: ACR, its difference to RS, and how much longer RS takes to the same ACR."""

    acr: dict[int, Interval]
    gain: dict[int, Interval]
    speed_up_at: dict[int, Interval]
    speed_up: Interval
    """over the whole range of ACR"""

    def to_json(self) -> dict[str, object]:
        """Return plain data: [value, low, high], null where there is none."""

        def plain(interval: Interval) -> list[float | None]:
            return [each if np.isfinite(each) else None for each in interval]

        by_samples = {name: getattr(self, name) for name in ("acr", "gain", "speed_up_at")}
        return {
            **{name: {n: plain(each) for n, each in table.items()} for name, table in by_samples.items()},
            "speed_up": plain(self.speed_up),
        }


class Resampled:
    """Curves of ACR over samples for RS and another method, on all images and on images drawn anew, equal for both."""

    def __init__(self, plain: FloatArray, other: FloatArray, seed: int) -> None:
        images = plain.shape[1]
        weights = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), RESAMPLES) / images
        self._curves = [(plain.mean(axis=1), other.mean(axis=1))]
        self._curves += list(zip((plain @ weights.T).T, (other @ weights.T).T, strict=True))

    def interval(self, value: Callable[[FloatArray, FloatArray], float]) -> Interval:
        """Return a figure of the two curves with its interval; draws in which it does not exist are left out."""
        first, *draws = (value(plain, other) for plain, other in self._curves)
        finite = [each for each in draws if np.isfinite(each)]
        low, high = np.quantile(finite, [0.025, 0.975]) if finite else (np.nan, np.nan)
        return Interval(first, float(low), float(high))


def candidate_votes(bench: Bench, jobs: Jobs, candidate: str, n: int) -> Votes:
    """Return the votes of `BITS@STEPS`, kept."""
    bits, _, steps = candidate.partition("@")
    name = f"{bits}-bits-{int(steps)}-steps"
    votes = jobs.votes(name) if jobs.row(name) else None
    if votes is None:
        seconds = bench.prepare(bench.policy(bits), steps=int(steps), seed=bench.options.seed)
        votes, voting = bench.vote(n)
        facts = {"candidate": candidate, "finetune_seconds": seconds, "votes_seconds": voting, "votes": votes.size}
        jobs.finish(name, facts, votes)
    return votes


def figures_of(radii: Radii, samples: IntArray, asked: Sequence[int], seed: int) -> dict[str, Figures]:
    """Return the figures of every method."""
    plain = radii["RS"]
    places = {n: int(np.searchsorted(samples, n)) for n in asked}
    found = {}
    for name, table in radii.items():
        curves = Resampled(plain, table, seed)
        found[name] = Figures(
            acr={n: bootstrap_mean(table[at])[0] for n, at in places.items()},
            gain={n: paired_bootstrap(plain[at], table[at])[0] for n, at in places.items()},
            speed_up_at={
                n: curves.interval(partial(speed_up_at, samples=samples, place=at)) for n, at in places.items()
            },
            speed_up=curves.interval(partial(speed_up, samples=samples)),
        )
    return found


def tables(found: Mapping[Case, Mapping[str, Figures]], asked: Sequence[int]) -> list[str]:
    """Show for each case the differences of ACR at equal samples, and the ratios of time at equal ACR."""
    lines: list[str] = []
    for (candidate, reference, target), methods in found.items():
        bits, _, steps = candidate.partition("@")
        rs = methods["RS"]
        gains = [["RS (ACR)", *(shown(rs.acr[n]) for n in asked)]]
        times = []
        for name, each in methods.items():
            if name != "RS":
                gains.append([name, *(shown(each.gain[n], sign=True) for n in asked)])
                times.append([name, *(shown(each.speed_up_at[n], 2) for n in asked), shown(each.speed_up, 2)])
        numbers = [f"n = {n:,}" for n in asked]
        lines += [
            f"## {bits} bits, {steps} steps of fine-tuning; float network {reference:,} votes; {CLASSES[target]}",
            "",
            "ACR less that of RS, at equal samples of the candidate:",
            "",
            *markdown(["method", *numbers], gains),
            "",
            "Time that RS takes to the ACR that the method has at n, as a multiple of the method's:",
            "",
            *markdown(["method", *numbers, "mean over all ACR"], times),
            "",
        ]
    return lines


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, "incremental_gain", images=200)
    parser.add_argument(
        "--candidates", nargs="+", default=["8@0", "8@60", "4@60", "3@60", "2@60"], metavar="BITS@STEPS"
    )
    parser.add_argument("--n", nargs="+", type=int, default=[500, 1000, 2000, 10_000], help="samples of the candidate")
    parser.add_argument(
        "--reference-n", nargs="+", type=int, default=[10_000, 100_000], help="samples of the float network"
    )
    parser.add_argument(
        "--preset", choices=["paper-cifar"], help="fine-tune and clip as the paper does, not by our defaults"
    )
    parser.add_argument("--alpha-zeta", type=float, default=0.001)
    parser.add_argument("--gamma", type=float, default=0.99)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    arguments = arguments_of(argv)
    asked, references = sorted(arguments.n), sorted(arguments.reference_n)
    if asked[-1] > references[0]:
        raise SystemExit(f"--n {asked[-1]} exceeds --reference-n {references[0]}: there is nothing to replay")
    levels = Levels(arguments.sigma, arguments.alpha, arguments.alpha_zeta, arguments.gamma)
    samples = samples_of(asked[-1], asked)
    with open_bench(arguments, preset=arguments.preset) as bench:
        cache = bench.reference(arguments.work / "reference", references[-1])
        identity = {"experiment": "incremental_gain", "n": asked[-1], "reference_n": references[-1], **bench.identity()}
        found: dict[Case, dict[str, Figures]] = {}
        with Journal(arguments.out / "raw.jsonl", identity) as journal:
            jobs = Jobs(journal, arguments.work)
            for candidate in arguments.candidates:
                votes = candidate_votes(bench, jobs, candidate, asked[-1])
                for reference in references:
                    known = replace(cache, votes=cache.votes[:, :reference])
                    for target, classes in (("float", known.selected), ("label", known.labels)):
                        radii = replayed_radii(known, votes, classes, samples, levels)
                        found[candidate, reference, target] = figures_of(radii, samples, asked, arguments.seed)
            paces = [row["votes"] / row["votes_seconds"] for row in journal.records]
        with (arguments.out / "methods.jsonl").open("w", encoding="utf-8") as file:
            for (candidate, reference, target), methods in found.items():
                plain = {name: each.to_json() for name, each in methods.items()}
                case = {"candidate": candidate, "reference_n": reference, "class": target}
                file.write(json.dumps({**case, "methods": plain}, allow_nan=False) + "\n")
        facts = [
            f"candidates by {'our defaults' if arguments.preset is None else f'the preset {arguments.preset}'}",
            f"alpha_zeta {levels.alpha_zeta}, gamma {levels.gamma}, total error {levels.total:g} for all but 'RS at alpha'",
            "'honest union' lowers both levels to a third of the total, since the published branch rule costs alpha_zeta twice",
            f"{np.median(paces):,.0f} votes/s of the candidates; all methods take the same time per sample",
        ]
        title = "IRS, directional, paired and best-of bounds against plain randomized smoothing"
        write_summary(arguments, argv, title, bench.about, facts, tables(found, asked))


if __name__ == "__main__":
    main(sys.argv[1:])
