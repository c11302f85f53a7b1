"""Measure the sensitivities of one network in one folder, with the evaluator of a search; the same call resumes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from arquant.base.errors import InputError
from arquant.base.journal import TypedJournal
from arquant.base.progress import Report
from arquant.engines.choice import EngineOptions
from arquant.loading.roles import Roles
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.quantization.policy import BitsLike, Policy, fixed_bits, left_in_float, parse_keep
from arquant.searching.candidate import Evaluator
from arquant.searching.journal_lines import Line
from arquant.searching.options import SearchOptions
from arquant.searching.reference import float_votes
from arquant.searching.score import Reward, Score
from arquant.searching.sensitivities import measure_sensitivities, read_measured_line
from arquant.searching.sensitivity_table import FILE, SensitivityTable
from arquant.searching.strategy import Proposal
from arquant.searching.workbench import Workbench
from arquant.searching.workbench_setup import workbench_for
from arquant.training.loop import COMPILE_FROM

JOURNAL, REFERENCE = "sensitivity.jsonl", "sensitivity-reference"


@dataclass(frozen=True, eq=False)
class SensitivityRun:
    """A measurement of one network.

    Attributes:
        out: the folder.
        options: as of a search; `reward` must be stated.
        steps: of fine-tuning before each score; 0 leaves it out.
    """

    out: Path
    classifier: Classifier
    roles: Roles
    options: SearchOptions
    reward: Reward
    steps: int
    engines: EngineOptions

    def work(self, bits: BitsLike, report: Report) -> SensitivityTable:
        """Measure what is not measured yet, all other layers at `bits`, and write the table."""
        options, keep, found = self.options, parse_keep(self.options.keep), find_layers(self.classifier)
        layers = found.leaving(left_in_float(found, options.keep))
        base = Policy.uniform(layers.names, bits, keep=keep)
        searched = [name for name in layers.names if name not in fixed_bits(layers.names, keep)]
        if not searched:
            raise InputError(f"nothing to measure: all {len(layers)} layers have fixed bits; keep fewer of them")
        self.out.mkdir(parents=True, exist_ok=True)
        identity = {
            "measured": "sensitivity", "model": self.classifier.fingerprint(), "images": self.roles.fingerprints(),
            "base": base.widths(), "steps": self.steps, "options": options.to_json(), "engines": vars(self.engines),
        }  # fmt: skip
        with TypedJournal[Line](self.out / JOURNAL, identity, read_measured_line) as journal:
            bench = workbench_for(
                self.classifier, base, self.roles.calibrate, options, self.engines, layers=layers,
                compiled=self.steps * len(base) >= COMPILE_FROM,
            )  # fmt: skip
            try:
                evaluate = self._evaluate(bench, journal, report)
                table = measure_sensitivities(
                    evaluate, base, searched, journal, min_bits=options.min_bits, report=report
                )
            finally:
                bench.close()
        facts = {
            **table.facts, "score": self.reward.name, "base": str(base[searched[0]]), "steps": self.steps,
            "sigma": options.sigma, "images": len(self.roles.search), "n": options.search_n, "alpha": options.alpha,
            "seed": options.seed, "model": {"name": self.classifier.name, "fingerprint": self.classifier.fingerprint()},
        }  # fmt: skip
        table = replace(table, facts=facts)
        table.save(self.out / FILE)
        return table

    def _evaluate(self, bench: Workbench, journal: TypedJournal[Line], report: Report) -> Callable[[Policy], Score]:
        """Return the function that scores a policy, on the noise of the float model's votes."""
        options, images, certifier = self.options, self.roles.search, self.options.smoothing(self.engines)
        cache = float_votes(certifier, self.classifier, images, self.out / REFERENCE, journal, report=report)
        evaluator = Evaluator(
            bench, images, cache, certifier, self.reward, n=options.search_n, recipe=options.recipe if self.steps else None
        )  # fmt: skip

        def evaluate(policy: Policy) -> Score:
            outcome = evaluator(Proposal(policy))
            if outcome.score is None:
                raise InputError(f"{policy}: {outcome.failure}")
            return outcome.score

        return evaluate
