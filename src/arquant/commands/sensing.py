"""`arquant sensitivity`: how much each layer loses at each width."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from arquant.base.errors import InputError
from arquant.base.progress import Report, silent
from arquant.base.threads import available_cores
from arquant.images.imageset import ImageSet
from arquant.loading.models import as_classifier
from arquant.loading.roles import load_roles
from arquant.models.classifier import Classifier
from arquant.quantization.policy import BitsLike
from arquant.quantization.quantized import check_float
from arquant.searching.options import search_options
from arquant.searching.score import find_reward
from arquant.searching.sensitivity_run import SensitivityRun
from arquant.searching.sensitivity_table import SensitivityTable
from arquant.searching.workbench import EngineOptions
from arquant.training.batches import note_training_noise

REWARD, IMAGES = "acr-cv", 100


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
    return SensitivityRun(Path(out), classifier, roles, settings, reward, steps, engines).work(base, report)
