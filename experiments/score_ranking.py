"""How well do cheap scores rank policies, compared with a careful one?

    python experiments/score_ranking.py --data cifar10 --out results/score_ranking

30 policies within `bops<=3bit` (see `draw_policies`), and those of `--add`, are fine-tuned for 0, 15 and 60 steps and scored by
every reward, number of votes and number of images; then they are fine-tuned with another seed for two epochs (780 steps) and
scored on 500 other images (development) x 1,000 votes of other noise: no luck is shared. Reported: Spearman's and Kendall's
rank correlation with that careful score, over all drawn policies and over its better half; what the policy that a score likes
best loses to the best one; and how much one policy's score differs from one seed of fine-tuning to the next. A restart keeps
finished votes; several processes may share the work (`--share 1/2`, `--share 2/2`, then once without).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from common import Bench, Jobs, add_share, markdown, open_bench, parser_of, raw_file, shared, shown, write_summary
from rank_correlation import Ranking, ranking

from arquant.base.errors import MismatchError
from arquant.certificates.bounds import FloatArray
from arquant.certificates.resampling import bootstrap_mean
from arquant.certification.options import CertificateOptions
from arquant.certification.smoothing_certifier import Smoothing
from arquant.certification.vote_cache import VoteCache, Votes
from arquant.loading.roles import images_for
from arquant.quantization.policy import Policy
from arquant.searching.score import Ballots, find_reward
from arquant.searching.space import Space
from arquant.searching.strategies.random_search import random_policy
from arquant.training.loop import Diverged

REWARDS = ("acr", "acr-signed", "val", "acc", "acr+acc", "acr-cv", "irs")
VARIED = ("acr", "acr-cv")
"""rewards that are also computed from fewer images and from fewer or more votes"""
SPREAD = 1.0
"""standard deviation, in bits, of the changes to uniform policies"""


def draw_policies(space: Space, count: int, seed: int) -> dict[str, Policy]:
    """Draw `count` different policies that use the budget up, by how they were drawn.

    First the uniform (w, a) pairs to which no bit can be added; then, in turn, a random policy (widths drawn evenly, cut
    and filled up to the budget) and a changed uniform pair: normal noise of one bit on every width of a random pair.
    """
    rng = np.random.default_rng(seed)
    policies = {f"uniform {pair}": space.uniform(pair) for pair in space.uniform_pairs[:count]}
    pairs = [(pair.w, pair.a) for pair in space.uniform_pairs]
    for number in range(100 * count):
        if len(policies) == count:
            break
        kind = ("random", "changed")[number % 2]
        policy = random_policy(space, rng)
        if kind == "changed":
            wishes = np.tile(pairs[rng.integers(len(pairs))], (len(space.searched), 1))
            policy = space.fit(wishes + rng.normal(0, SPREAD, wishes.shape))
        if policy not in policies.values():
            policies[f"{kind} {number}"] = policy
    return policies


def added_policies(space: Space, files: Sequence[Path]) -> dict[str, Policy]:
    """Return policies of searches by the names of their folders; refuse those outside the space."""
    found = {}
    for file in files:
        policy = found[f"searched {file.resolve().parent.name}"] = Policy.load(file)
        if not space.contains(policy):
            raise MismatchError(f"the policy of {file} is of another network, or not within the budget")
    return found


@dataclass(frozen=True)
class Cheap:
    """A way to score a policy."""

    reward: str
    steps: int
    images: int
    n: int


def ways_of(arguments: argparse.Namespace) -> list[Cheap]:
    """List all rewards after each number of steps; some of them also with other numbers of images and votes."""
    images, n, steps = arguments.images, arguments.base_n, arguments.base_steps
    ways = [Cheap(reward, count, images, n) for count in sorted(arguments.steps) for reward in REWARDS]
    for reward in VARIED:
        ways += [Cheap(reward, steps, fewer, n) for fewer in sorted(arguments.fewer_images)]
        ways += [Cheap(reward, steps, images, other) for other in sorted(arguments.n)]
    return list(dict.fromkeys(ways))


def score_of(votes: Votes, cache: VoteCache, smoothing: Smoothing, way: Cheap, *, replayed: bool = True) -> FloatArray:
    """Return the values of the images, evenly chosen, on their first votes."""
    rows = np.linspace(0, len(cache.labels) - 1, way.images).round().astype(np.int64)
    part = VoteCache(cache.votes[rows], cache.selected[rows], cache.labels[rows], cache.identity)
    return find_reward(way.reward).score(Ballots(votes[rows, : way.n], part, smoothing, replayed)).per_image


@dataclass(frozen=True)
class Job:
    """One fine-tuning of one policy, and its votes."""

    policy: str
    steps: int
    seed: int
    careful: bool = False

    @property
    def name(self) -> str:
        """Return the name in the raw file."""
        kind = "careful" if self.careful else "cheap"
        return f"{self.policy.replace(' ', '-')}-{self.steps}-steps-seed-{self.seed}-{kind}"


def jobs_of(arguments: argparse.Namespace, policies: Sequence[str]) -> Iterator[Job]:
    """List the jobs policy by policy, so that a run that was cut short has all of some policies."""
    for name in policies:
        for steps in sorted(arguments.steps):
            yield Job(name, steps, arguments.seed)
        for seed in arguments.other_seeds:
            yield Job(name, arguments.base_steps, seed)
        for seed in arguments.careful_seeds:
            yield Job(name, arguments.careful_steps, seed, careful=True)


def votes_of(job: Job, arguments: argparse.Namespace) -> int:
    """Return the votes per image that the scores of a job need."""
    if job.careful:
        return int(arguments.careful_n)
    varied = (job.steps, job.seed) == (arguments.base_steps, arguments.seed)
    return int(max([*arguments.n, arguments.base_n]) if varied else arguments.base_n)


class Measured:
    """Votes of all jobs; those of policies whose fine-tuning failed are left out, with the reason."""

    def __init__(self, arguments: argparse.Namespace, bench: Bench, jobs: Jobs, policies: Mapping[str, Policy]) -> None:
        self.arguments = arguments
        self.bench = bench
        self.jobs = jobs
        self.policies = policies
        self.careful_images = bench.images
        if arguments.careful_role != "search":
            wanted = f"most:{arguments.careful_images}"
            self.careful_images = images_for(arguments.data, arguments.careful_role, bench.classifier, wanted)
        self.failures: dict[str, str] = {}
        self.votes: dict[Job, Votes] = {}

    def run(self) -> None:
        """Do what is not done yet."""
        todo = list(jobs_of(self.arguments, shared(list(self.policies), self.arguments)))
        for number, job in enumerate(todo, start=1):
            row = self.jobs.row(job.name)
            votes = self.jobs.votes(job.name) if row is not None and row["failure"] is None else None
            if votes is None and (row is None or row["failure"] is None):
                print(f"{number} of {len(todo)}: {job.name}", file=sys.stderr, flush=True)
                votes = self._measure(job)
            if votes is None:
                failed = self.jobs.row(job.name)
                self.failures[job.policy] = "" if failed is None else str(failed["failure"])
            else:
                self.votes[job] = votes

    def _measure(self, job: Job) -> Votes | None:
        facts = {**asdict(job), "bits": self.policies[job.policy].widths()}
        try:
            seconds = self.bench.prepare(self.policies[job.policy], steps=job.steps, seed=job.seed)
        except Diverged as error:
            self.jobs.finish(job.name, {**facts, "failure": str(error)})
            return None
        n = votes_of(job, self.arguments)
        purpose, images = ("shortlist", self.careful_images) if job.careful else ("search", self.bench.images)
        votes, voting = self.bench.vote(n, purpose=purpose, images=images)
        self.jobs.finish(
            job.name,
            {**facts, "failure": None, "finetune_seconds": seconds, "votes_seconds": voting / votes.size},
            votes,
        )
        return votes

    @property
    def ranked(self) -> list[str]:
        """Return the policies without failures."""
        return [name for name in self.policies if name not in self.failures]

    def careful(self, smoothing: Smoothing, seed: int) -> FloatArray:
        """Return the careful scores, (policies, images): radii from votes for the labels; their mean is the ACR."""
        labels = self.careful_images.labels
        none: Votes = np.zeros((len(labels), 1), np.uint8)
        cache = VoteCache(none, labels, labels, {})
        way = Cheap("acr", self.arguments.careful_steps, len(labels), self.arguments.careful_n)
        wanted = [Job(name, self.arguments.careful_steps, seed, careful=True) for name in self.ranked]
        return np.array([score_of(self.votes[job], cache, smoothing, way, replayed=False) for job in wanted])

    def cheap(self, cache: VoteCache, smoothing: Smoothing, way: Cheap, seed: int) -> FloatArray:
        """Return a cheap score of each policy."""
        wanted = [Job(name, way.steps, seed) for name in self.ranked]
        return np.array([score_of(self.votes[job], cache, smoothing, way).mean() for job in wanted])

    def seconds(self, way: Cheap) -> float:
        """Return the cost of one score: median seconds of fine-tuning and votes."""
        rows = [row for row in self.jobs.journal.records if row["steps"] == way.steps and not row["careful"]]
        rows = [row for row in rows if row["failure"] is None]
        each = [row["finetune_seconds"] + way.images * way.n * row["votes_seconds"] for row in rows]
        return float(np.median(each))


def ranking_lines(found: Sequence[tuple[Cheap, Ranking, float]]) -> list[str]:
    """Return one row per score."""
    rows = [
        [
            way.reward, str(way.steps), str(way.images), str(way.n), f"{seconds:.0f}", shown(each.spearman, 2),
            shown(each.kendall, 2), shown(each.better_half, 2), f"{each.regret:.4f}",
        ]
        for way, each, seconds in found
    ]  # fmt: skip
    header = ["score", "steps", "images", "n", "seconds", "Spearman", "Kendall", "Kendall, better half", "regret"]
    return markdown(header, rows)


def noise_lines(measured: Measured, cache: VoteCache, smoothing: Smoothing, careful: FloatArray) -> list[str]:
    """Show how much another seed of fine-tuning changes a score, beside how much policies differ."""
    arguments = measured.arguments
    rows = []
    seeds = [arguments.seed, *arguments.other_seeds]
    for reward in VARIED if len(seeds) > 1 else ():
        way = Cheap(reward, arguments.base_steps, arguments.images, arguments.base_n)
        table = np.stack([measured.cheap(cache, smoothing, way, seed) for seed in seeds])
        rows.append([f"{reward}, {way.steps} steps", *_spread(table, arguments.seed)])
    if len(arguments.careful_seeds) > 1:
        table = np.stack([measured.careful(smoothing, seed).mean(axis=1) for seed in arguments.careful_seeds])
        rows.append([f"careful, {arguments.careful_steps} steps", *_spread(table, arguments.seed)])
    top = careful[careful >= np.median(careful)]
    lines = [
        f"Careful scores: {careful.min():.4f} to {careful.max():.4f}, standard deviation {careful.std(ddof=1):.4f}; "
        f"in the better half {top.std(ddof=1) if len(top) > 1 else 0.0:.4f}."
    ]
    if rows:
        header = ["score", "seeds", "sd, same policy", "sd, policies", "Kendall between two seeds"]
        lines += [
            "",
            "Noise of fine-tuning (same policy and votes' noise, another order of images and training noise):",
            "",
        ]
        lines += markdown(header, rows)
    return lines


def _spread(table: FloatArray, seed: int) -> list[str]:
    within = float(np.sqrt(table.var(axis=0, ddof=1).mean()))
    between = float(table.mean(axis=0).std(ddof=1))
    return [str(len(table)), f"{within:.4f}", f"{between:.4f}", shown(ranking(table[0], table[1], seed).kendall, 2)]


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, "score_ranking", images=500)
    parser.add_argument("--budget", default="bops<=3bit")
    parser.add_argument("--policies", type=int, default=30)
    parser.add_argument(
        "--add", nargs="*", type=Path, default=[], metavar="FILE",
        help="policies of searches, to be measured beside the drawn ones; not part of the rank correlations, since they were "
        "chosen by such scores",
    )  # fmt: skip
    parser.add_argument("--steps", nargs="+", type=int, default=[0, 15, 60], help="of the cheap fine-tunings")
    parser.add_argument(
        "--base-steps", type=int, default=60, help="of the scores with other images and votes; one of --steps"
    )
    parser.add_argument("--n", nargs="+", type=int, default=[50, 200, 500], help="votes per image of cheap scores")
    parser.add_argument("--base-n", type=int, default=200)
    parser.add_argument("--fewer-images", nargs="*", type=int, default=[100, 250])
    parser.add_argument("--reference-n", type=int, default=2000, help="votes of the float network")
    parser.add_argument("--other-seeds", nargs="*", type=int, default=[1], help="of the noise of fine-tuning")
    parser.add_argument("--careful-steps", type=int, default=780)
    parser.add_argument("--careful-n", type=int, default=1000)
    parser.add_argument(
        "--careful-seeds",
        nargs="+",
        type=int,
        default=[10],
        help="the first one ranks; none of the cheap scores' seeds",
    )
    parser.add_argument("--careful-role", choices=["search", "development"], default="development", help="images")
    parser.add_argument("--careful-images", type=int, default=500, help="of the development images")
    add_share(parser, "policies")
    arguments = parser.parse_args(argv)
    if arguments.base_steps not in arguments.steps:
        parser.error(f"--base-steps {arguments.base_steps} must be one of --steps")
    if max([*arguments.fewer_images, 1]) > arguments.images:
        parser.error("--fewer-images must not exceed --images")
    if max([*arguments.n, arguments.base_n]) > arguments.reference_n:
        parser.error("--n and --base-n must not exceed --reference-n")
    if arguments.seed in arguments.other_seeds:
        parser.error(f"--other-seeds must be others than --seed {arguments.seed}")
    if shared := {arguments.seed, *arguments.other_seeds} & set(arguments.careful_seeds):
        parser.error(
            f"--careful-seeds {min(shared)} is a seed of the cheap scores: equal batches would share their luck"
        )
    return arguments


def main(argv: Sequence[str]) -> None:
    arguments = arguments_of(argv)
    with open_bench(arguments, budget=arguments.budget) as bench:
        drawn = draw_policies(bench.space, arguments.policies, arguments.seed)
        n = max([*arguments.n, arguments.base_n])
        settings = {name: getattr(arguments, name) for name in ("careful_n", "careful_role", "careful_images")}
        identity = {"experiment": "score_ranking", "budget": arguments.budget, "n": n, **settings, **bench.identity()}
        claims = CertificateOptions(alpha=arguments.alpha)
        smoothing = Smoothing(arguments.sigma, bench.options.noise, claims=claims)
        with raw_file(arguments, identity) as journal:
            policies = drawn | added_policies(bench.space, arguments.add)
            measured = Measured(arguments, bench, Jobs(journal, arguments.work), policies)
            measured.run()
            if arguments.share is not None:
                return
            cache = bench.reference(arguments.work / "reference", arguments.reference_n)
            careful = measured.careful(smoothing, arguments.careful_seeds[0])
            acr = careful.mean(axis=1)
            values = {way: measured.cheap(cache, smoothing, way, arguments.seed) for way in ways_of(arguments)}
            counted = np.array([name in drawn for name in measured.ranked])
            found = [
                (way, ranking(each[counted], acr[counted], arguments.seed), measured.seconds(way))
                for way, each in values.items()
            ]
            lines = [*ranking_lines(found), "", *noise_lines(measured, cache, smoothing, acr[counted])]
        lines += ["", *policy_lines(measured, careful, values)]
        write_scores(arguments, measured.ranked, acr, values)
        write_careful(arguments, measured)
        facts = [
            f"{counted.sum()} policies within {arguments.budget}",
            f"careful: {arguments.careful_steps} steps, {len(measured.careful_images)} {arguments.careful_role} images x "
            f"{arguments.careful_n:,} votes on other noise, ACR",
            f"float network {arguments.reference_n:,} votes",
        ]
        write_summary(arguments, argv, "How well cheap scores rank policies", bench.about, facts, lines)


def policy_lines(measured: Measured, careful: FloatArray, values: Mapping[Cheap, FloatArray]) -> list[str]:
    """List the policies, best first by the careful score, with the default score of the search."""
    arguments = measured.arguments
    default = values[Cheap("acr-cv", arguments.base_steps, arguments.images, arguments.base_n)]
    acr = careful.mean(axis=1)
    order = np.argsort(-acr, kind="stable")
    gaps = bootstrap_mean((careful - careful[order[0]]).T)
    rows = [
        [
            measured.ranked[i],
            f"{measured.bench.space.budget.usage(measured.policies[measured.ranked[i]]):.1%}",
            f"{acr[i]:.4f}",
            "" if place == 0 else shown(gaps[i], sign=True),
            f"{default[i]:.4f}",
        ]
        for place, i in enumerate(order)
    ]
    header = [
        "policy",
        "of the budget",
        "careful",
        "less the best, over images",
        f"acr-cv, {arguments.base_steps} steps",
    ]
    failed = [f"{name} was left out: {reason}" for name, reason in measured.failures.items()]
    return [*markdown(header, rows), *failed]


def write_scores(
    arguments: argparse.Namespace, names: Sequence[str], careful: FloatArray, values: Mapping[Cheap, FloatArray]
) -> None:
    """Write all scores of all policies, a line each."""
    with (arguments.out / "scores.jsonl").open("w", encoding="utf-8") as file:
        file.write(json.dumps({"policies": list(names), "careful": careful.tolist()}) + "\n")
        for way, each in values.items():
            file.write(json.dumps({**asdict(way), "values": each.tolist()}) + "\n")


def write_careful(arguments: argparse.Namespace, measured: Measured) -> None:
    """Write the votes for the label that careful scores rest on: a line per image, a column per policy."""
    images, seed = measured.careful_images, arguments.careful_seeds[0]
    jobs = [Job(name, arguments.careful_steps, seed, careful=True) for name in measured.ranked]
    right = [np.count_nonzero(measured.votes[job] == images.labels[:, None], axis=1) for job in jobs]
    lines = ["\t".join(["idx", "label", *measured.ranked])]
    lines += ["\t".join(map(str, row)) for row in zip(images.indices, images.labels, *right, strict=True)]
    (arguments.out / "careful.tsv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
