"""How a network is trained or fine-tuned: every number that decides the result, and the paper's own recipes as presets."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from arquant.base.errors import InputError
from arquant.images.crops import PADDED, least_share

Schedule = Literal["onecycle", "step", "plateau", "constant"]
OptimizerName = Literal["sgd", "adamw"]
_LARGEST_FLOAT32 = 3.4e38
_MOST_STEPS = 10**12
_RANGES: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    f"at most {_MOST_STEPS:g}": (lambda value: not value > _MOST_STEPS, ("epochs", "steps")),
    f"at most {_LARGEST_FLOAT32:g}": (
        lambda value: not value > _LARGEST_FLOAT32,
        ("lr", "lr times clip_lr", "lr times backbone_lr", "weight_decay"),
    ),
    "positive": (lambda value: 0 < value < math.inf, ("lr", "clip_lr", "epochs or steps")),
    "at least 0": (
        lambda value: 0 <= value < math.inf,
        (
            "sigma", "epochs", "steps", "weight_decay", "consistency", "settle_batchnorm", "images", "seed", "backbone_lr",
            "max_gradient", "adversarial",
        ),
    ),
    "at least 0 and below 1": (lambda value: 0 <= value < 1, ("momentum", "label_smoothing", "ema")),
    "at least 2": (lambda value: value >= 2, ("batch",)),
    "between 0 and 1": (lambda value: 0 <= value <= 1, ("distill", "warm_up")),
    "above 0 and at most 1": (lambda value: 0 < value <= 1, ("decay",)),
}  # fmt: skip
"""what the numbers of a recipe must be, and of which this holds"""
_LATER = (
    "losses",
    "optimizer",
    "backbone_lr",
    "label_smoothing",
    "max_gradient",
    "ema",
    "crops",
    "adversarial",
    "grid",
)
"""fields that earlier versions did not have: at their defaults they are not recorded, so that runs begun before go on"""


@dataclass(frozen=True)
class Recipe:
    """How to train. `sigma` and either `epochs` or `steps` must be stated; the rest are our defaults."""

    sigma: float
    """standard deviation of the Gaussian noise, in units of the pixel range"""
    epochs: float = 0.0
    """passes over the images; a fraction is a part of one; ignored if `steps` is positive"""
    steps: int = 0
    """optimizer steps, if counted that way"""
    batch: int = 256
    lr: float = 0.2
    """peak learning rate"""
    momentum: float = 0.9
    """of the gradient; beta1 of adamw"""
    nesterov: bool = True
    weight_decay: float = 2e-4
    schedule: Schedule = "onecycle"
    """onecycle: linear warm-up, then cosine to zero; step: x `decay` at each milestone; plateau: x `decay` after an epoch
    whose training loss is no lower than the best of the earlier ones; constant"""
    warm_up: float = 0.1
    """share of the steps over which onecycle warms up"""
    milestones: tuple[float, ...] = ()
    """epochs at which the step schedule decays"""
    decay: float = 0.1
    """factor of the step and plateau schedules, at most 1"""
    augment: bool = True
    """random crops and horizontal flips"""
    crops: str = PADDED
    """padded: of the image with a border of an eighth; resized, resized:0.35: of any part of at least 8 % (35 %) of the whole
    photo, brought to the input's size"""
    distill: float = 0.0
    """weight of the cross-entropy against the teacher's probabilities on the same noisy input; labels get the rest"""
    consistency: float = 0.0
    """weight of the penalty on answers that differ between two noisy copies of an image (Jeong and Shin, 2020); above 0, a
    batch holds half as many images, each with two draws of noise"""
    losses: tuple[tuple[str, float], ...] = ()
    """further losses by their registered names (`arquant.training.losses`), with their weights"""
    freeze_batchnorm: bool = False
    """keep BatchNorm's running statistics and use them in training too"""
    settle_batchnorm: int = 0
    """noisy batches over which BatchNorm's running statistics are averaged anew after the last step; 0 keeps them"""
    clip_lr: float = 1.0
    """learning rate of the quantizers' clips (or steps), as a multiple of that of the weights"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """of the forward and backward pass; weights, updates and statistics stay float32"""
    images: int = 0
    """train on the first so many images of a fixed random order; 0 means all"""
    seed: int = 0
    optimizer: OptimizerName = "sgd"
    """sgd: weight decay is part of the gradient of every parameter; adamw: decoupled from it, and of weight matrices and
    kernels only, not of norms, biases, class tokens and position embeddings"""
    backbone_lr: float = 1.0
    """learning rate of all but the head, as a multiple of the head's; the head is what began anew, or the last layer"""
    label_smoothing: float = 0.0
    """share of a label's probability that is spread over all classes"""
    max_gradient: float = 0.0
    """norm to which larger gradients of a step are scaled down; 0 leaves them alone"""
    adversarial: float = 0.0
    """above 0, a batch is followed by its images moved by so much (l-infinity, in units of the pixel range) against their
    labels, and both count alike (`arquant.training.attacks`, 7 steps)"""
    grid: bool = False
    """round noisy images to the pixel grid, the 255th part, as classifiers under grid noise do"""
    ema: float = 0.0
    """decay per step of an exponential moving average of the weights, which then is the result; 0 keeps the last weights"""

    def __post_init__(self) -> None:
        self._check_ranges()
        if self.schedule == "step" and not self.milestones:
            raise InputError(
                "the step schedule decays at milestones, and has none: state them with --milestones (--final-milestones), or "
                "use the schedule constant"
            )
        if self.adversarial > 0 and (self.distill > 0 or self.consistency > 0):
            raise InputError(
                "adversarial training learns from labels alone: use it with --distill 0 --consistency 0, or leave it out"
            )
        least_share(self.crops)
        if self.consistency > 0 and self.batch % 2:
            raise InputError(
                f"a batch of {self.batch} cannot hold two copies of each image: use an even one, or consistency 0"
            )

    def _check_ranges(self) -> None:
        """Refuse numbers outside of their ranges, infinities and NaN."""
        derived = {
            "lr times clip_lr": self.lr * self.clip_lr,
            "lr times backbone_lr": self.lr * self.backbone_lr,
            "epochs or steps": max(self.epochs, self.steps),
        }
        for words, (holds, names) in _RANGES.items():
            for name in names:
                value = derived[name] if name in derived else getattr(self, name)
                if not holds(value):
                    raise InputError(f"{name} must be {words}, got {value}")

    @property
    def terms(self) -> tuple[tuple[str, float], ...]:
        """Losses that a step adds up, by name, with their weights."""
        found = [("cross-entropy", 1 - self.distill)]
        if self.distill > 0:
            found.append(("distillation", self.distill))
        if self.consistency > 0:
            found.append(("consistency", self.consistency))
        return (*found, *self.losses)

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain data, by which a run knows its recipe; later additions only if they say something."""
        silent = {
            item.name for item in fields(self) if item.name in _LATER and getattr(self, item.name) == item.default
        }
        return {name: value for name, value in asdict(self).items() if name not in silent}

    @property
    def copies(self) -> int:
        """Noisy copies of each image in a batch."""
        return 2 if self.consistency > 0 else 1

    @property
    def images_per_step(self) -> int:
        """Different images in a batch."""
        return self.batch // self.copies

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimizer steps of the whole run."""
        return self.steps if self.steps > 0 else max(1, round(self.epochs * steps_per_epoch))

    def steps_on(self, images: int) -> int:
        """Return the number of optimizer steps of the whole run, if there are so many images to train on."""
        return self.total_steps(min(images, self.images or images) // self.images_per_step)

    def check_images(self, images: int) -> None:
        """Refuse to train on more images than there are, or on fewer than a batch holds."""
        if self.images > images:
            raise InputError(f"{self.images:,} training images were asked for (--train-images), there are {images:,}")
        count = self.images or images
        if count < self.images_per_step:
            raise InputError(
                f"{count} training images are fewer than one batch of {self.images_per_step}; use a smaller --batch "
                "(--train-batch in a search)"
            )

    def lr_at(self, step: int, total: int, steps_per_epoch: int) -> float:
        """Learning rate of optimizer step `step` (from 0) of `total`; the plateau schedule is the loop's own business."""
        if self.schedule == "step":
            return self.lr * self.decay ** sum(step >= m * steps_per_epoch for m in self.milestones)
        if self.schedule != "onecycle":
            return self.lr
        warm_up = max(1, round(total * self.warm_up))
        if step < warm_up:
            return self.lr * (step + 1) / warm_up
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, total - warm_up)))


FINE_TUNING: dict[str, Any] = {"lr": 0.05, "schedule": "onecycle", "batch": 256, "distill": 1.0, "consistency": 1.0}
"""our defaults for fine-tuning a quantized network: the best of those in results/finetune-defaults"""


@dataclass(frozen=True)
class Preset:
    """A named set of recipe fields, with where they come from."""

    source: str
    fields: dict[str, Any] = field(default_factory=dict)

    def recipe(self, sigma: float, **changes: Any) -> Recipe:
        """Return the preset at a noise level, with changes."""
        return replace(Recipe(sigma=sigma, **{"epochs": 1.0, **self.fields}), **changes)


_PAPER: dict[str, Any] = {"momentum": 0.9, "nesterov": False, "weight_decay": 1e-4}
PRESETS: dict[str, Preset] = {
    "paper-cifar": Preset(
        "ARQ, section 4: SGD, lr 0.01, x 0.1 at epoch 5, at most 10 epochs, batch 256",
        {**_PAPER, "lr": 0.01, "epochs": 10.0, "schedule": "step", "milestones": (5.0,), "batch": 256},
    ),
    "paper-imagenet": Preset(
        "ARQ, section 4: SGD, lr 0.001, ReduceLROnPlateau, at most 10 epochs, batch 128",
        {**_PAPER, "lr": 0.001, "epochs": 10.0, "schedule": "plateau", "batch": 128},
    ),
    "paper-cifar-search": Preset(
        "ARQ, section 4: one epoch at lr 0.01 for a candidate",
        {**_PAPER, "lr": 0.01, "epochs": 1.0, "schedule": "constant", "batch": 256},
    ),
    "paper-imagenet-search": Preset(
        "ARQ, section 4: 60,000 images at lr 0.001 for a candidate",
        {**_PAPER, "lr": 0.001, "epochs": 1.0, "schedule": "constant", "batch": 128, "images": 60_000},
    ),
    "vit": Preset(
        "transformers from random weights: AdamW, warm-up, gradients scaled down to norm 1",
        {
            "optimizer": "adamw",
            "lr": 1e-3,
            "weight_decay": 0.05,
            "max_gradient": 1.0,
            "batch": 128,
            "epochs": 40.0,
        },
    ),
    "atmc": Preset(
        "ATMC (Gui et al., 2019): PGD with 7 steps at 4/255, half of the loss; weights and widths are the quantizer's business",
        {"adversarial": 4 / 255, "distill": 0.0, "consistency": 0.0},
    ),
    "icr": Preset(
        "ICR (Lin et al., 2021): noise on the grid of the pixels; 8 bits are the policy's business", {"grid": True}
    ),
    "transfer": Preset(
        "a few epochs from weights of other images: a new head, and the layers below it at a lower learning rate",
        {"lr": 0.05, "backbone_lr": 0.3, "weight_decay": 1e-4, "batch": 64, "epochs": 10.0, "warm_up": 0.1},
    ),
}
