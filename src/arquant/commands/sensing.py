"""`arquant sensitivity`: how much each layer loses at each width."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from arquant.base.errors import InputError
from arquant.base.journal import Journal
from arquant.base.progress import Report, silent
from arquant.base.threads import available_cores
from arquant.certification.smoothing import Smoothed
from arquant.certification.vote_cache import compare_only_with, recorded_engine, reference_votes, sample_votes
from arquant.engines.probes import make_probes
from arquant.images.imageset import ImageSet
from arquant.loading.models import as_classifier
from arquant.loading.roles import Roles, load_roles
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.noise.source import Noise, NoiseSource, noise_key
from arquant.quantization.policy import BitsLike, Policy, fixed_bits, parse_keep
from arquant.quantization.quantized import check_float
from arquant.searching.options import SearchOptions, search_options
from arquant.searching.score import Ballots, Score, find_reward
from arquant.searching.sensitivities import measure_sensitivities
from arquant.searching.sensitivity_table import FILE, SensitivityTable
from arquant.searching.workbench import EngineOptions, Workbench
from arquant.searching.workbench_setup import workbench_for
from arquant.training.batches import note_training_noise
from arquant.training.loop import COMPILE_FROM, Diverged

REWARD, IMAGES = "acr-cv", 100
JOURNAL, REFERENCE = "sensitivity.jsonl", "sensitivity-reference"


def sensitivity(
    model: str | Classifier,
    data: str | ImageSet = "sample",
    *,
    sigma: float,
    out: str | Path,
    base: BitsLike = 8,
    steps: int = 0,
    calibrate: str | ImageSet | None = None,
    certify: str | ImageSet | None = None,
    split: Sequence[float] | None = None,
    engine: str = "auto",
    device: str = "auto",
    batch: int | None = None,
    threads: int | None = None,
    model_options: dict[str, Any] | None = None,
    report: Report = silent,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> SensitivityTable:
    """Measure what each layer loses when its weights or its input alone have fewer bits, all others those of `base`.

    Writes `out/sensitivity.json`, which `arquant report` shows and the strategy `ilp` reads (`--option table=FILE`); other
    files of the folder are left alone, so it may be that of a search. The same call resumes. The values are estimates.

    Args:
        model: a float model.
        data, calibrate, certify, split: roles as in `search`; the search images are scored, certify images left alone.
        base: widths of the other layers; first and last layers are not changed.
        steps: of fine-tuning before each score, with the same images and noise.
        options: `reward`, `search_images` (default 100), `search_n`, `reference_n`, `min_bits`, `keep`, `seed`, `noise`,
            `alpha`, `clip`, `lr` and others as in `arquant.searching.options`.
    """
    settings = search_options(sigma, **{"search_images": IMAGES, "reference_n": 1000, "reward": REWARD, **options})
    if steps < 0:
        raise InputError(f"steps must be at least 0, got {steps}")
    reward = find_reward(settings.reward or REWARD)
    reward.check(settings.scoring, settings.search_n, cached=settings.reference_n, option="--search-n or --reference-n")
    settings = replace(settings, recipe=replace(settings.recipe, steps=max(steps, 1)))
    if steps:
        note_training_noise(settings.noise, note)
    classifier = as_classifier(model, **(model_options or {}))
    check_float(classifier)
    # engines and training change the memory layout of a model: ours begins as it was stored
    classifier = classifier.snapshot().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    roles = load_roles(
        data, classifier, calibrate=calibrate, certify=certify, shares=split, search_images=settings.search_images,
        seed=settings.seed,
    )  # fmt: skip
    engines = EngineOptions(engine, device, batch, threads)
    torch.set_num_threads(threads or available_cores())
    found = _Measurement(Path(out), classifier, roles, settings, steps, engines)
    return found.run(base, report)


class _Measurement:
    """The quantized model, the float model's votes, and the file of what is measured."""

    def __init__(
        self,
        out: Path,
        classifier: Classifier,
        roles: Roles,
        options: SearchOptions,
        steps: int,
        engines: EngineOptions,
    ) -> None:
        self.out = out
        self.classifier = classifier
        self.roles = roles
        self.options = options
        self.steps = steps
        self.engines = engines
        self.layers = find_layers(classifier)

    def run(self, bits: BitsLike, report: Report) -> SensitivityTable:
        """Measure what is not measured yet, and write the table."""
        options, keep = self.options, parse_keep(self.options.keep)
        base = Policy.uniform(self.layers.names, bits, keep=keep)
        searched = [name for name in self.layers.names if name not in fixed_bits(self.layers.names, keep)]
        if not searched:
            raise InputError(f"nothing to measure: all {len(self.layers)} layers have fixed bits; keep fewer of them")
        self.out.mkdir(parents=True, exist_ok=True)
        identity = {
            "measured": "sensitivity", "model": self.classifier.fingerprint(), "images": self.roles.fingerprints(),
            "base": {name: str(pair) for name, pair in base.items()}, "steps": self.steps, "options": options.to_json(),
            "engines": vars(self.engines),
        }  # fmt: skip
        with Journal(self.out / JOURNAL, identity) as journal:
            bench = workbench_for(
                self.classifier, base, self.roles.calibrate, options, self.engines, layers=self.layers,
                compiled=self.steps * len(base) >= COMPILE_FROM,
            )  # fmt: skip
            try:
                table = measure_sensitivities(
                    self._evaluate(bench, journal, report),
                    base,
                    searched,
                    journal,
                    min_bits=options.min_bits,
                    report=report,
                )
            finally:
                bench.close()
        facts = {
            **table.facts, "score": options.reward, "base": str(base[searched[0]]), "steps": self.steps,
            "sigma": options.sigma, "images": len(self.roles.search), "n": options.search_n, "alpha": options.alpha,
            "seed": options.seed, "model": {"name": self.classifier.name, "fingerprint": self.classifier.fingerprint()},
        }  # fmt: skip
        table = replace(table, facts=facts)
        table.save(self.out / FILE)
        return table

    def _evaluate(self, bench: Workbench, journal: Journal, report: Report) -> Callable[[Policy], Score]:
        """From a policy to its score, on the noise of the float model's votes."""
        options, images, folder = self.options, self.roles.search, self.out / REFERENCE
        probes = make_probes(images, Noise(options.noise, options.sigma), seed=options.seed)
        engine = self.engines.make(self.classifier, options.noise, probes=probes, **(recorded_engine(folder) or {}))
        smoothed = Smoothed(self.classifier, options.sigma, noise=options.noise, seed=options.seed, engine=engine)
        try:
            cache = reference_votes(smoothed, images, folder, n=options.reference_n, n0=options.n0, report=report)
        finally:
            smoothed.close()
        compare_only_with(cache, journal)
        source = NoiseSource(Noise(options.noise, options.sigma), noise_key(options.seed, "search"), images.shape)
        reward, scoring = find_reward(options.reward or REWARD), options.scoring

        def evaluate(policy: Policy) -> Score:
            bench.set_(policy)
            if self.steps:
                try:
                    bench.finetune_(options.recipe)
                except Diverged as error:
                    raise InputError(f"{policy}: {error}") from error
            with bench.engine() as engine:
                votes = sample_votes(
                    engine, images, source, 0, options.search_n, num_classes=self.classifier.num_classes
                )
            return reward.score(Ballots(votes, cache, scoring))

        return evaluate
