"""Shared by the measurement programs: the tool's own workbench, rows that a restart keeps, and summaries with intervals."""

import argparse
import copy
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike

from arquant.base.errors import MismatchError
from arquant.base.files import in_one_move
from arquant.base.identity import differences
from arquant.base.journal import Journal, Record, read_journal
from arquant.base.progress import Report, Status
from arquant.base.provenance import processor, provenance
from arquant.base.threads import available_cores
from arquant.certificates.bounds import FloatArray, clopper_pearson_lower, radius_of
from arquant.certificates.resampling import MINIMUM_SEEDS, Interval
from arquant.certification.smoothing import Smoothed
from arquant.certification.vote_cache import (
    VoteCache,
    Votes,
    recorded_engine,
    reference_votes,
    sample_votes,
    votes_digest,
)
from arquant.commands.console import Console
from arquant.engines.choice import EngineOptions
from arquant.images.imageset import ImageSet
from arquant.loading.models import load_model
from arquant.loading.roles import Roles, load_roles
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.noise.source import Noise, NoiseSource, noise_key
from arquant.quantization.budget import Budget
from arquant.quantization.policy import Policy
from arquant.searching.options import SearchOptions, search_options
from arquant.searching.space import Space
from arquant.searching.workbench import Workbench
from arquant.searching.workbench_setup import workbench_for
from arquant.training.loop import train

T = TypeVar("T")
FLOAT = "float"
"""where a policy is expected: the float network itself, fine-tuned in the same way"""


def _shares(text: str) -> list[float]:
    return [float(share) for share in text.split(",")]


def parser_of(doc: str | None, name: str, *, images: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all programs have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20:sigma=0.5", help="the float network (default %(default)s)")
    parser.add_argument("--data", default="cifar10", help="cifar10[:DIR] or sample (default %(default)s)")
    parser.add_argument(
        "--split", type=_shares, help="shares of other DATA for calibrate, search and certify, such as 60,20,20"
    )
    parser.add_argument("--sigma", type=float, default=0.5)
    parser.add_argument("--images", type=int, default=images, help="search images (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of noise and fine-tuning")
    parser.add_argument("--alpha", type=float, default=0.001)
    parser.add_argument("--batch", type=int, default=256, help="images per step of fine-tuning")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="the training step")
    parser.add_argument("--out", type=Path, default=Path("results") / name, help="raw rows and summary")
    parser.add_argument("--work", type=Path, default=Path("runs") / name, help="votes, which are large; may be deleted")
    parser.set_defaults(experiment=name)
    return parser


@dataclass(eq=False)
class Bench:
    """The float network, the quantized copy that takes every policy in turn, and the images; all by the tool's defaults."""

    classifier: Classifier
    space: Space
    roles: Roles
    options: SearchOptions
    workbench: Workbench
    report: Report
    float_network: Classifier | None = None
    """a fine-tuned float network that lies on the bench instead of a quantized one"""

    @property
    def images(self) -> ImageSet:
        """Return the search images."""
        return self.roles.search

    def prepare(self, policy: Policy | str, *, steps: int, seed: int, **changes: Any) -> float:
        """Put a policy on the bench and fine-tune it for so many steps (0: not at all); returns the seconds.

        `changes` are fields of the recipe.
        """
        began = time.monotonic()
        recipe = replace(self.options.recipe, steps=max(steps, 1), seed=seed, **changes)
        self.float_network = None
        if isinstance(policy, Policy):
            self.workbench.set_(policy)
            if steps:
                self.workbench.finetune_(recipe, report=self.report)
            return time.monotonic() - began
        self.float_network = copy.deepcopy(self.classifier)
        if steps:
            images, labels = (
                torch.from_numpy(each) for each in (self.roles.calibrate.images, self.roles.calibrate.labels)
            )
            if recipe.consistency == 0:
                recipe = replace(recipe, distill=0.0)  # a network that only follows itself learns nothing
            teacher = self.classifier if recipe.distill > 0 else None
            train(self.float_network, images, labels, recipe, teacher=teacher, compiled=False, report=self.report)
        return time.monotonic() - began

    def vote(self, n: int, *, purpose: str = "search", images: ImageSet | None = None) -> tuple[Votes, float]:
        """Return the labels of samples 0 .. n - 1 of each image by the network on the bench, and the seconds."""
        images = images or self.images
        source = NoiseSource(
            Noise(self.options.noise, self.options.sigma), noise_key(self.options.seed, purpose), images.shape
        )
        done, total = 0, n * len(images)

        def count(votes: int) -> None:
            nonlocal done
            done += votes
            self.report(Status("votes", done, total, "votes"))

        with self._engine() as engine:
            began = time.monotonic()
            votes = sample_votes(engine, images, source, 0, n, num_classes=self.classifier.num_classes, on_votes=count)
            return votes, time.monotonic() - began

    def right_votes(self, n: int, *, purpose: str = "search", images: ImageSet | None = None) -> list[int]:
        """Count the right votes of each image among n, by the network on the bench."""
        images = images or self.images
        votes, _ = self.vote(n, purpose=purpose, images=images)
        right: list[int] = np.count_nonzero(votes == images.labels[:, None], axis=1).tolist()
        return right

    @contextmanager
    def _engine(self) -> Iterator[Any]:
        if self.float_network is None:
            with self.workbench.engine() as engine:
                yield engine
            return
        engine = self.workbench.engines.make(self.float_network, self.options.noise)
        try:
            yield engine
        finally:
            engine.close()

    def reference(self, folder: Path, n: int) -> VoteCache:
        """Return the float network's votes, kept in `folder`."""
        engine = self.workbench.engines.make(
            self.classifier, self.options.noise, votes=n * len(self.images), **(recorded_engine(folder) or {})
        )
        smoothed = Smoothed(
            self.classifier, self.options.sigma, noise=self.options.noise, seed=self.options.seed, engine=engine
        )
        try:
            return reference_votes(smoothed, self.images, folder, n=n, n0=self.options.n0, report=self.report)
        finally:
            smoothed.close()

    def radii(self, right: ArrayLike, n: int) -> FloatArray:
        """Return the radius that so many of n votes prove for the label, image by image."""
        bound = clopper_pearson_lower(np.asarray(right), n, self.options.alpha)
        return radius_of(self.options.noise, bound, self.options.sigma)

    def policy(self, bits: str) -> Policy | str:
        """Return `float`, or the uniform policy of these bits."""
        return FLOAT if bits == FLOAT else self.space.uniform(bits)

    @property
    def about(self) -> str:
        """Describe the network, the images and the noise in words."""
        return (
            f"{self.classifier.name}, {self.images.name}, {len(self.images)} images, sigma {self.options.sigma}, "
            f"alpha {self.options.alpha}, {self.options.noise} noise, seed {self.options.seed}"
        )

    def identity(self) -> dict[str, Any]:
        """Return the facts that all rows of a raw file have in common."""
        return {
            "model": self.classifier.fingerprint(),
            "images": self.roles.fingerprints(),
            "options": self.options.to_json(),
        }


@contextmanager
def open_bench(
    arguments: argparse.Namespace, *, budget: str = "bops<=3bit", first: bool = False, **changes: Any
) -> Iterator[Bench]:
    """Return a bench for the options of `parser_of`; progress goes to stderr.

    Args:
        first: take the first of the search images, not evenly spaced ones.
        changes: options of the search that differ from the tool's defaults.
    """
    torch.set_num_threads(arguments.threads or available_cores())
    options = search_options(
        arguments.sigma, seed=arguments.seed, alpha=arguments.alpha, train_batch=arguments.batch, **changes,
    )  # fmt: skip
    classifier = load_model(arguments.model)
    # as the search does: engines and training change the memory layout, and with it the last digits
    classifier = copy.deepcopy(classifier).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    roles = load_roles(
        arguments.data,
        classifier,
        shares=arguments.split,
        search_images=None if first else arguments.images,
        seed=arguments.seed,
    )
    if first:
        roles = replace(roles, search=roles.search.select(f"first:{arguments.images}"))
    space = Space(Budget.parse(budget, find_layers(classifier)))
    workbench = workbench_for(
        classifier, space.budget.cheapest(), roles.calibrate, options, EngineOptions(threads=arguments.threads),
        layers=space.layers, compiled=arguments.compile,
    )  # fmt: skip
    for folder in (arguments.out, arguments.work):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with Console().progress() as report:
            yield Bench(classifier, space, roles, options, workbench, report)
    finally:
        workbench.close()


def add_full_finetuning(parser: argparse.ArgumentParser) -> None:
    """Add options of fully fine-tuned networks, several of each policy, and of their votes."""
    parser.add_argument("--final-steps", type=int, default=780, help="of the full fine-tuning (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12], help="of the full fine-tuning")
    parser.add_argument("--n", type=int, default=1000, help="votes per image")


def check_seeds(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse too few seeds for an interval over them; that of the candidates does not count."""
    if len(set(arguments.seeds) - {arguments.seed}) < MINIMUM_SEEDS:
        parser.error(f"--seeds must be {MINIMUM_SEEDS} or more, others than the candidates' {arguments.seed}")


def add_share(parser: argparse.ArgumentParser, jobs: str) -> None:
    """Add an option for several processes that share the work."""
    parser.add_argument(
        "--share", type=_share, metavar="K/N", help=f"measure only the K-th of N shares of the {jobs}, without a table"
    )


def _share(text: str) -> tuple[int, int]:
    mine, _, shares = text.partition("/")
    found = int(mine), int(shares)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(text)
    return found


def shared(jobs: Sequence[T], arguments: argparse.Namespace) -> Sequence[T]:
    """Return the jobs that this process does."""
    mine, shares = arguments.share or (1, 1)
    return jobs[mine - 1 :: shares]


def raw_file(arguments: argparse.Namespace, identity: Mapping[str, Any]) -> Journal:
    """Open the rows of this process' share; without one, of all, and take up those of the shares."""
    if arguments.share is not None:
        return Journal(arguments.out / "share-{}-of-{}.jsonl".format(*arguments.share), identity)
    journal = Journal(arguments.out / "raw.jsonl", identity)
    for path in sorted(arguments.out.glob("share-*.jsonl")):
        found, records = read_journal(path)
        if unlike := differences(found, journal.identity):
            journal.close()
            raise MismatchError(f"{path} holds another measurement ({unlike}); choose another --out")
        known = {record["job"] for record in journal.records}
        for record in records:
            if record["job"] not in known:
                journal.append(record)
    return journal


class Jobs:
    """Finished pieces of a measurement: a row in the raw file each, and its votes, if they are kept, in a file of its own."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self.journal = journal
        self.folder = folder

    def row(self, name: str) -> Record | None:
        """Return the row of a finished job."""
        return next((record for record in self.journal.records if record["job"] == name), None)

    def votes(self, name: str) -> Votes | None:
        """Return the votes of a job, if they are there."""
        try:
            with (self.folder / f"{name}.npy").open("rb") as file:
                votes: Votes = np.lib.format.read_array(file, allow_pickle=False)
        except FileNotFoundError:
            return None
        row = self.row(name)
        known = None if row is None else row.get("votes_sha256")
        return votes if known in (None, votes_digest(votes)) else None  # else another experiment's, in the same folder

    def finish(self, name: str, row: Mapping[str, Any], votes: Votes | None = None) -> Record:
        """Keep a job; one whose votes were lost since is not written twice."""
        if votes is not None:
            with in_one_move(self.folder / f"{name}.npy") as scratch, scratch.open("wb") as file:
                np.lib.format.write_array(file, votes, allow_pickle=False)
        if self.row(name) is None:
            self.journal.append(
                {"job": name, **row, **({} if votes is None else {"votes_sha256": votes_digest(votes)})}
            )
        found = self.row(name)
        assert found is not None
        return found


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of Markdown, in columns that people can read too."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (header, *rows)
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def shown(interval: Interval, digits: int = 4, *, sign: bool = False, percent: bool = False) -> str:
    """Return a value with its interval; nan is a dash."""
    factor, unit = (100.0, " %") if percent else (1.0, "")

    def text(value: float) -> str:
        return "–" if not np.isfinite(value) else f"{factor * value:{'+' if sign else ''}.{digits}f}"

    return f"{text(interval.value)}{unit} [{text(interval.low)}, {text(interval.high)}]"


def write_summary(
    arguments: argparse.Namespace,
    argv: Sequence[str],
    title: str,
    about: str,
    facts: Sequence[str],
    lines: Sequence[str],
) -> None:
    """Print the tables, and write them to `summary.md` with all that is needed to repeat them."""
    command = shlex.join(["python", f"experiments/{arguments.experiment}.py", *argv])
    head = [
        f"# {title}",
        "",
        f"`{command}`",
        "",
        f"{about}; {'; '.join(facts)}. Commit {provenance()['commit']}, {processor()}, {torch.get_num_threads()} threads. "
        "Intervals are 95 % percentile bootstraps.",
        "",
    ]
    print("\n".join(lines))
    (arguments.out / "summary.md").write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
