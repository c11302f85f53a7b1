"""`arquant train`: a base classifier, trained on noisy images."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from arquant.commands.command import Watched, command
from arquant.commands.shared import DataLike, ImageOptions, LogOptions, ModelOptions, PathLike, PrecisionName
from arquant.training.recipe import PRESETS, OptimizerName, Recipe, Schedule

if TYPE_CHECKING:
    from arquant.commands.console import Console

TrainPreset = Literal["vit", "transfer"]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Training (defaults: for convolutional networks from random weights, or the preset's)"""

    sigma: float
    """standard deviation of the noise; 1.0 is black to white"""
    preset: TrainPreset | None = None
    """vit: for transformers from random weights; transfer: for a new head on weights of other images (--init)"""
    method: Literal["atmc", "icr"] | None = None
    """atmc: adversarial training, in its paper without noise (--sigma 0); icr: noise on the pixel grid; docs/methods"""
    epochs: float = 64.0
    """passes over the images"""
    steps: int = Recipe.steps
    """optimizer steps; overrides --epochs"""
    batch: int = Recipe.batch
    """noisy images per step, all copies counted"""
    lr: float = Recipe.lr
    """peak learning rate"""
    backbone_lr: float = Recipe.backbone_lr
    """learning rate of all but the head (what --init began anew, or the last layer), as a multiple of the head's"""
    optimizer: OptimizerName = Recipe.optimizer
    """sgd, or adamw, whose weight decay spares norms, biases, tokens and position embeddings"""
    momentum: float = Recipe.momentum
    """of the gradients; the first beta of adamw"""
    nesterov: bool = Recipe.nesterov
    """plain momentum instead of Nesterov's"""
    weight_decay: float = Recipe.weight_decay
    """pull of the weights towards zero"""
    schedule: Schedule = Recipe.schedule
    """how the learning rate changes"""
    warm_up: float = Recipe.warm_up
    """share of the steps that onecycle warms up over"""
    milestones: tuple[float, ...] = Recipe.milestones
    """epochs at which the step schedule decays"""
    decay: float = Recipe.decay
    """factor of the step and plateau schedules"""
    max_gradient: float = Recipe.max_gradient
    """norm to which larger gradients are scaled down; 0: none"""
    label_smoothing: float = Recipe.label_smoothing
    """share of a label that is spread over all classes"""
    ema: float = Recipe.ema
    """decay per step, such as 0.999, of a moving average of the weights, which is then the result; 0: the last weights"""
    settle_batchnorm: int = Recipe.settle_batchnorm
    """noisy batches to average BatchNorm over at the end"""
    augment: bool = Recipe.augment
    """no random crops and flips"""
    crops: str = Recipe.crops
    """random crops: padded (shifted by up to an eighth) | resized (any part of at least 8 % of a photo) | resized:0.35"""
    consistency: float = Recipe.consistency
    """weight of the penalty on answers that differ between two noisy copies of an image (larger radii)"""
    adversarial: float = Recipe.adversarial
    """also train on images that an attack moves by so much (l-infinity; 1.0 is black to white)"""
    grid: bool = Recipe.grid
    """round noisy images to the pixel grid"""
    distill: float = Recipe.distill
    """weight, in the loss, of the probabilities that the network training starts from gives, 0 to 1"""
    precision: PrecisionName | None = None
    """of the products in training; if not given float32, with a preset bfloat16 where this machine has it"""
    train_images: int = Recipe.images
    """train on so many of the images only, drawn by the seed; 0: all"""
    seed: int = Recipe.seed
    """of first weights, order, crops and noise"""

    @staticmethod
    def preset_values(stated: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recipe of a preset, and what a method changes in it."""
        named = [PRESETS[stated[name]].fields for name in ("preset", "method") if stated.get(name)]
        return {name: value for each in named for name, value in each.items()}

    @property
    def recipe(self) -> Recipe:
        """Return them as a recipe."""
        from arquant.training.loop import default_precision

        own = {item.name: getattr(self, item.name) for item in fields(TrainingOptions)}
        del own["preset"], own["method"]
        own["precision"] = self.precision or (Recipe.precision if self.preset is None else default_precision())
        return Recipe(images=own.pop("train_images"), **own)


@dataclass(frozen=True)
class Train(TrainingOptions, ImageOptions, ModelOptions, LogOptions, Watched):
    """The run"""

    model: str
    """a network: resnet20 | vit_tiny | mobilenetv2 | resnet50[_v1], timm:NAME, torchvision:NAME, package.module:factory; or
    weights to train on"""
    data: DataLike = "sample"
    """DATA to train on: sample, cifar10[:DIR], folder:DIR, npz:FILE, package.module:factory"""
    _: KW_ONLY
    out: PathLike
    """run folder; the same command resumes"""
    init: str | None = None
    """a MODEL or state-dict file to start from: what fits by name and shape is kept, the rest (a head of other classes)
    begins anew"""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    threads: int | None = None
    """of PyTorch; as many as there are cores for this process if not given"""


@command(
    Train,
    "train a base classifier with noisy images",
    common=(
        "preset",
        "epochs",
        "steps",
        "batch",
        "lr",
        "consistency",
        "init",
        "images",
        "arch",
        "input",
        "classes",
        "device",
    ),
    examples=("arquant train resnet20 cifar10 --sigma 0.5 --out runs/base",),
    resumes=True,
)
def train(options: Train) -> dict[str, Any]:
    """Train a network from random weights, its own or those of `init`, and write `out/model.safetensors`, a MODEL itself.

    The run checkpoints itself in `out/training.safetensors`; the same call resumes, and ends with the same weights as one
    that was never interrupted (same machine, threads and library versions). The images that the weights it starts from were
    trained on count as used by this run too. With `distill` these weights are the teacher as well: this is how a float
    network is fine-tuned as `finetune` does it with a quantized one, which a fair comparison needs.

    Returns:
        The training record, as stored beside the weights.
    """
    from arquant.loading.model_training import train_model

    return train_model(
        options.model, options.data, options.recipe, out=options.out, init=options.init, images=options.images,
        device=options.device, threads=options.threads, report=options.report, note=options.note, **options.model_options,
    )  # fmt: skip


@train.shown
def _show(record: dict[str, Any], options: Train, console: "Console") -> None:
    from arquant.base.progress import duration
    from arquant.loading.roles import has_all_roles
    from arquant.models.factory import needs_consent

    arch = options.arch or options.model
    more = f" --arch {arch}" if needs_consent(arch) else ""
    if options.bounds != (0.0, 1.0):
        more += " --bounds " + ",".join(f"{bound:g}" for bound in options.bounds)
    data = options.data if has_all_roles(options.data) else "OTHER_DATA"
    few = ["the sample has few images to learn from: `arquant data cifar10` fetches all 50,000, as DATA cifar10"]
    lines = [
        *(few if options.data == "sample" else []),
        f"trained {options.model} for {record['steps']:,} steps in {duration(record['seconds'])}: "
        f"accuracy on noisy training images {record['accuracy']:.1%}",
        f"weights: {options.out}/model.safetensors",
        f"next: arquant certify {options.out}/model.safetensors {data} --sigma {options.sigma:g}{more}",
    ]
    console.result(record, lines)
