"""`arquant finetune`: train a quantized model's accuracy back."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arquant.base.errors import InputError
from arquant.commands.command import Watched, command
from arquant.commands.shared import DataLike, LogOptions, PathLike, PrecisionName
from arquant.searching.options import PresetName
from arquant.training.recipe import PRESETS, Recipe, Schedule

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.quantization.artifact import ArtifactSize


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Fine-tuning (defaults: ours, or the preset's)"""

    epochs: float = 10.0
    """passes over the images"""
    steps: int = 0
    """or optimizer steps"""
    batch: int = 256
    """noisy images per step, all copies counted"""
    lr: float = 0.05
    """peak learning rate"""
    weight_decay: float = 2e-4
    """pull of the weights towards zero"""
    schedule: Schedule = "onecycle"
    """how the learning rate changes"""
    milestones: tuple[float, ...] = ()
    """epochs at which the step schedule decays"""
    distill: float = 1.0
    """weight of the float model's probabilities in the loss, 0 to 1"""
    consistency: float = 1.0
    """weight of the penalty on answers that differ between two noisy copies of an image"""
    adversarial: float = Recipe.adversarial
    """also train on images that an attack moves by so much (l-infinity; 1.0 is black to white)"""
    grid: bool = Recipe.grid
    """round noisy images to the pixel grid"""
    freeze_batchnorm: bool = False
    """leave BatchNorm statistics as they are"""
    settle_batchnorm: int = 0
    """noisy batches to average BatchNorm over at the end"""
    clip_lr: float = 1.0
    """learning rate of clips, as a multiple of that of the weights"""
    precision: PrecisionName | None = None
    """bfloat16 where this machine has it, if not given"""
    seed: int = 0
    """of order, crops and noise"""
    crops: str = Recipe.crops
    """random crops: padded (shifted by up to an eighth) | resized (any part of at least 8 % of a photo) | resized:0.35"""


@dataclass(frozen=True)
class Finetune(RecipeOptions, LogOptions, Watched):
    """Finetune"""

    run: PathLike
    """a run folder of arquant quantize or arquant search"""
    _: KW_ONLY
    data: DataLike | None = None
    """images to train on; the run's if not given"""
    arch: str | None = None
    """the run's package.module:factory, to allow its code to run"""
    preset: PresetName | None = None
    """the paper's recipe; docs/paper-vs-code.md"""
    method: Literal["atmc", "icr"] | None = None
    """atmc: adversarial training, in its paper without noise (--sigma 0); icr: noise on the pixel grid; docs/methods"""
    sigma: float | None = None
    """noise; the run's if not given"""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    threads: int | None = None
    """of PyTorch; as many as there are cores for this process if not given"""

    @staticmethod
    def preset_values(stated: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recipe of a preset and what a method changes in it; a number of steps takes the place of the epochs."""
        values: dict[str, Any] = {}
        if preset := stated.get("preset"):
            paper = PRESETS[preset].recipe(0.0)
            values = {item.name: getattr(paper, item.name) for item in fields(RecipeOptions)}
        if method := stated.get("method"):
            values |= PRESETS[method].fields
        return values | ({"epochs": 0.0} if "steps" in stated else {})

    def recipe(self, sigma: float) -> Recipe:
        """Return how to train, at a noise level."""
        from arquant.training.loop import default_precision

        own = {item.name: getattr(self, item.name) for item in fields(RecipeOptions)}
        fixed = {} if self.preset is None else PRESETS[self.preset].fields
        return Recipe(sigma=sigma, **{**fixed, **own, "precision": self.precision or default_precision()})


@command(
    Finetune,
    "train a quantized model's accuracy back on noisy images",
    common=("epochs", "steps", "lr", "batch", "data", "arch", "preset", "sigma", "device", "threads"),
    examples=("arquant finetune runs/w4 --epochs 10",),
    resumes=True,
)
def finetune(options: Finetune) -> dict[str, Any]:
    """Fine-tune the quantized model of a run folder on noisy images, in place; what it was is kept beside it.

    Weights start where they were before they were rounded, as those of a search do, where the run's float model can still be
    read; `distill` needs it as the teacher. The same call on the same folder resumes, or, once finished, ends with the same
    model. A search whose model this was has no summary any more; called again, it puts its own model back. `arch` must be
    stated where the network is built by a `package.module:factory`.
    """
    import torch

    from arquant.base.file_lock import in_use
    from arquant.base.run_folder import CONFIG, read_config
    from arquant.base.threads import available_cores
    from arquant.engines.choice import check_amounts
    from arquant.loading.run_images import run_noise
    from arquant.searching.quantized_run import sigma_of
    from arquant.training.batches import note_training_noise

    check_amounts(None, options.threads)
    torch.set_num_threads(options.threads or available_cores())
    folder = Path(options.run)
    if not folder.is_dir():
        raise InputError(f"there is no run folder {folder}")
    if (folder / "training.json").exists() and not (folder / CONFIG).exists():
        raise InputError(
            f"{folder} holds a float network that `train` made; fine-tuning is for quantized ones: arquant quantize {folder} "
            "DATA --bits 4 --sigma SIGMA --out OTHER, then arquant finetune OTHER"
        )
    config = read_config(folder)
    recipe = options.recipe(sigma_of(folder, options.sigma))
    note_training_noise(run_noise(folder, None), options.note)
    with in_use(folder):
        return _finetuned(folder, config, recipe, options)


def _finetuned(folder: Path, config: dict[str, Any], recipe: Recipe, options: Finetune) -> dict[str, Any]:
    """Fine-tune the model of a folder that is ours alone, and put the result in its place."""

    from arquant.base.run_folder import FINETUNING, MODEL
    from arquant.engines.choice import resolve_device
    from arquant.images.seen_images import seen_images
    from arquant.loading.run_images import record_seen, run_images, seen_by
    from arquant.models.factory import allow_code
    from arquant.quantization.artifact import load_artifact, read_provenance
    from arquant.searching import quantized_run
    from arquant.training.batches import source_of, visited
    from arquant.training.loop import train

    start = quantized_run.start_of(folder, config)
    quantized = load_artifact(start, arch=options.arch)
    started_as = quantized.fingerprint()
    model, model_options = config["model"], dict(config.get("model_options") or {})
    for spec in (model, model_options.get("arch") or ""):
        allow_code(spec, options.arch, folder)
    origin = quantized_run.float_model_of(model, model_options, needed=recipe.distill > 0)
    teacher = origin if recipe.distill > 0 else None
    unrounded = origin is not None and quantized.unround_(origin)
    selected = config.get(quantized_run.SELECTION) if options.data is None else None
    images = run_images(folder, "calibrate", quantized, data=options.data, images=selected)
    record = train(
        quantized,
        *source_of(images),
        recipe,
        teacher=teacher,
        checkpoint=folder / FINETUNING,
        origin=started_as if teacher is None else f"{started_as} after {teacher.fingerprint()}",
        device=resolve_device(options.device),
        stage="fine-tune",
        report=options.report,
        accepted=lambda: record_seen(folder, finetune=images),
    )
    examined = read_provenance(start).get("candidates_examined")
    facts = {"sigma": recipe.sigma, "data": images.name, "recipe": recipe.facts(), "loss": record["loss"]}
    facts |= {"start": "float weights" if unrounded else "rounded weights", "candidates_examined": examined}
    quantized_run.forget_summary(folder, options.note)
    used = visited(images, recipe)
    quantized.seen = seen_by(start, quantized) | seen_images(finetune=used)
    record_seen(folder, finetune=used)  # photos on demand have been read only now

    def save(path: Path) -> "ArtifactSize":
        return quantized_run.save_model(path, quantized.cpu(), model, model_options, facts)

    size = quantized_run.replace_model(folder, save, quantized.fingerprint(), options.arch)
    return {**record, **quantized_run.size_facts(size), "model": str(folder / MODEL)}


@finetune.shown
def _show(result: dict[str, Any], options: Finetune, console: "Console") -> None:
    from arquant.base.progress import duration
    from arquant.loading.run_images import keeps_images

    data = "" if keeps_images(Path(options.run)) else " OTHER_DATA"
    more = f" --arch {options.arch}" if options.arch else ""
    lines = [
        f"fine-tuned for {result['steps']:,} steps in {duration(result['seconds'])}: loss {result['loss']:.4f}, "
        f"accuracy on noisy training images {result['accuracy']:.1%}",
        f"model: {result['model']} ({result['file_bytes']:,} bytes)",
        f"next: arquant certify {options.run}{data}{more} --out {options.run}",
    ]
    console.result(result, lines)
