"""A worker of a search: it evaluates candidates, looks at them again and fine-tunes finalists, as the search itself does."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from arquant.certification.certifier import Certifier
from arquant.certification.identity import machine_facts
from arquant.certification.vote_cache import VoteCache
from arquant.engines.choice import ENGINES, Builder, EngineOptions, register_engine, resolve_device
from arquant.engines.cluster import open_pool
from arquant.engines.pool import Cluster, Pool
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.quantization.calibration import NoisyImages
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import QuantizedClassifier
from arquant.searching.candidate import Evaluator, Outcome
from arquant.searching.candidate_pool import Request
from arquant.searching.kept_networks import Kept
from arquant.searching.racing import Racing
from arquant.searching.score import Reward, Score
from arquant.searching.strategy import Proposal
from arquant.searching.workbench import Network, Workbench
from arquant.training.loop import Diverged
from arquant.training.recipe import Recipe

PATIENCE = 6 * 3600.0
"""seconds for one candidate or finalist after which a worker is given up"""


class CandidateWorker:
    """Answers the requests of a search by an evaluator of its own."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def facts(self) -> dict[str, Any]:
        """Return all that an outcome depends on, beside the search itself."""
        return evaluation_facts(self._evaluator.workbench.classifier)

    def work(self, request: Request) -> Any:
        """Return the answer."""
        what, _, arguments = request
        answers: dict[str, Callable[..., Any]] = {
            "candidate": self._candidate,
            "look": self._look,
            "final": self._final,
        }
        return answers[what](*arguments)

    def end(self) -> None:
        """Do nothing: every outcome is looked at for itself."""

    def _candidate(self, proposal: Proposal, rival: Kept | None) -> Outcome:
        return self._evaluator(proposal, rival)

    def _look(self, policy: Policy, recipe: Recipe, n: int) -> Score | None:
        return self._evaluator.look_again(policy, recipe, n)

    def _final(self, policy: Policy, start: Network | None, recipe: Recipe) -> tuple[Network, float] | str:
        """Return the fine-tuned network and the seconds; or why it diverged."""
        bench = self._evaluator.workbench
        bench.set_(policy)
        if start is not None:
            bench.put_(start)
        try:
            record = bench.finetune_(recipe)
        except Diverged as error:
            return str(error)
        return bench.take(), float(record["seconds"])


@dataclass(frozen=True, eq=False)
class _MakeWorker:
    """Makes an evaluator again, in another process; fields as of `Workbench` and `Evaluator`."""

    classifier: Classifier
    quantized: QuantizedClassifier
    calibrate: ImageSet
    noise: str
    statistics: NoisyImages | None
    engines: EngineOptions
    compiled: bool
    images: ImageSet
    cache: VoteCache
    certifier: Certifier
    reward: Reward
    n: int
    recipe: Recipe | None
    racing: Racing | None
    builders: dict[str, Builder]
    """of engines: the other process does not know those that this one has registered"""

    def __call__(self) -> CandidateWorker:
        for name, builder in self.builders.items():
            register_engine(name)(builder)
        bench = Workbench(
            self.classifier, self.quantized, self.calibrate, noise=self.noise, statistics=self.statistics,
            engines=self.engines, compiled=self.compiled,
        )  # fmt: skip
        return CandidateWorker(
            Evaluator(
                bench,
                self.images,
                self.cache,
                self.certifier,
                self.reward,
                n=self.n,
                recipe=self.recipe,
                racing=self.racing,
            )
        )


def open_candidate_pool(cluster: Cluster, evaluator: Evaluator, threads: int, note: Callable[[str], None]) -> Pool:
    """Return workers that evaluate as `evaluator` does, with so many threads each."""
    bench = evaluator.workbench
    make = _MakeWorker(
        bench.classifier, bench.quantized, bench.calibrate, bench.noise, bench.statistics, bench.engines, bench.compiled,
        evaluator.images, evaluator.cache, evaluator.certifier, evaluator.reward, evaluator.n, evaluator.recipe,
        evaluator.racing, dict(ENGINES),
    )  # fmt: skip
    gpus = int(resolve_device(bench.engines.device).startswith("cuda"))
    return open_pool(
        cluster,
        make,
        evaluation_facts(bench.classifier),
        threads=threads,
        gpus=gpus,
        note=note,
        patience=PATIENCE,
        depth=1,
    )


def evaluation_facts(classifier: Classifier) -> dict[str, Any]:
    """Return what the outcome of a candidate depends on beside the search: network, machine, threads and arithmetic."""
    channels, height, width = classifier.input_shape
    shades = torch.linspace(0, 1, 4 * channels * height * width, device=classifier.mean.device)
    network = classifier.snapshot().eval()
    with torch.no_grad():
        logits = network(network.from_unit(shades.reshape(4, channels, height, width))).cpu().numpy()
    return {
        "model": classifier.fingerprint(),
        **machine_facts(),
        "threads": torch.get_num_threads(),
        "arithmetic": hashlib.sha256(logits.tobytes()).hexdigest()[:16],
    }
