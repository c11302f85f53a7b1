"""`arquant sensitivity`: how much each layer loses at each width."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from arquant.base.errors import InputError
from arquant.base.options import Repeated
from arquant.commands.command import Watched, command
from arquant.commands.shared import DataLike, EngineOptions, ModelLike, ModelOptions, PathLike
from arquant.loading.options import RoleOptions
from arquant.noise.options import NoiseOptions
from arquant.quantization.options import ClipRule

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.searching.sensitivity_table import SensitivityTable


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Score (an estimate)"""

    reward: str = "acr-cv"
    """acr-cv, acr, acr-signed, val, acc, acc@0.5, acr+acc, irs"""
    search_images: int = 100
    """images that it is computed on"""
    search_n: int = 200
    """votes per image of every policy"""
    reference_n: int = 1000
    """votes per image of the float model"""
    alpha: float = 0.001
    """of the bounds in the score"""


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """Quantization and fine-tuning"""

    keep: Repeated = ()
    """layers with fixed bits, or none: 'head.*=8', '*attn#*=float'; may be repeated"""
    min_bits: int = 2
    """smallest width"""
    clip: ClipRule = "auto"
    """how ranges are chosen; auto: kl up to 2 bits, else mse"""
    per_channel: bool = False
    """a scale per output channel"""
    lr: float = 0.05
    """of fine-tuning"""
    train_batch: int = 256
    """images per step of fine-tuning"""


@dataclass(frozen=True)
class Sensitivity(NoiseOptions, ChangeOptions, ScoreOptions, RoleOptions, EngineOptions, ModelOptions, Watched):
    """What to measure"""

    model: ModelLike
    """a float MODEL with weights"""
    data: DataLike = "sample"
    """sample, cifar10[:DIR], or other DATA with --split, or with --calibrate and --certify"""
    _: KW_ONLY
    out: PathLike
    """folder for sensitivity.json; the same command resumes"""
    base: str = "8"
    """widths of all layers but the one: 8, or w8a8"""
    steps: int = 0
    """of fine-tuning before every score"""


@command(
    Sensitivity,
    "measure what each layer loses at each width: an estimate for people and for the strategy ilp",
    common=(
        "base",
        "steps",
        "min_bits",
        "keep",
        "search_images",
        "search_n",
        "calibrate",
        "certify",
        "split",
        "arch",
        "threads",
    ),
    examples=("arquant sensitivity resnet20:sigma=0.5 sample --sigma 0.5 --out runs/search",),
    resumes=True,
)
def sensitivity(options: Sensitivity) -> "SensitivityTable":
    """Measure what each layer loses when its weights or its input alone have fewer bits, all others those of `base`.

    Writes `out/sensitivity.json`, which `arquant report` shows and the strategy `ilp` reads (`--option table=FILE`); other
    files of the folder are left alone, so it may be that of a search. The same call resumes. The values are estimates. The
    search images are scored, certify images are left alone; first and last layers are not changed.
    """
    from dataclasses import fields
    from pathlib import Path

    import torch

    from arquant.base.threads import available_cores
    from arquant.engines.choice import EngineOptions as Engines
    from arquant.loading.roles import load_roles
    from arquant.searching.options import SearchOptions, method_of, search_options
    from arquant.searching.score import find_reward
    from arquant.searching.sensitivity_run import SensitivityRun
    from arquant.searching.task import float_model
    from arquant.training.batches import note_training_noise

    if options.steps < 0:
        raise InputError(f"steps must be at least 0, got {options.steps}")
    own = {item.name for item in fields(SearchOptions)} - {"steps"}
    settings = search_options(
        **{item.name: getattr(options, item.name) for item in fields(options) if item.name in own},
        steps=max(options.steps, 1),
    )
    reward = find_reward(settings.reward or method_of(settings.strategy).reward)
    reward.check(
        settings.smoothing(), settings.search_n, cached=settings.reference_n, option="--search-n or --reference-n"
    )
    if options.steps:
        note_training_noise(settings.noise, options.note)
    classifier, _ = float_model(options.model, options.data, options.model_options)
    roles = load_roles(
        options.data, classifier, calibrate=options.calibrate, certify=options.certify, shares=options.split,
        search_images=options.search_images, seed=options.seed,
    )  # fmt: skip
    torch.set_num_threads(options.threads or available_cores())
    engines = Engines(**options.engine_options)
    run = SensitivityRun(Path(options.out), classifier, roles, settings, reward, options.steps, engines)
    return run.work(options.base, options.report)


@sensitivity.shown
def _show(table: "SensitivityTable", options: Sensitivity, console: "Console") -> None:
    console.result(
        table.to_json(), [*_lines(table), f"arquant report {options.out} draws {options.out}/sensitivity.json"]
    )


def _lines(table: "SensitivityTable") -> list[str]:
    facts, longest = table.facts, max(map(len, table.values))
    columns = [(kind, bits) for kind in "wa" for bits in table.widths[:-1]]
    lines = [
        f"loss of {facts['score']} (an estimate) when one layer has fewer bits; all others {facts['base']}, where it is "
        f"{facts['base_score']:.4f}; {facts['steps']} steps of fine-tuning",
        " " * longest + "".join(f"{kind}{bits}".rjust(9) for kind, bits in columns),
    ]
    for name, kinds in table.values.items():
        cells = [kinds[kind].get(bits) for kind, bits in columns]
        lines.append(name.ljust(longest) + "".join(("" if cell is None else f"{cell:+.4f}").rjust(9) for cell in cells))
    return lines
