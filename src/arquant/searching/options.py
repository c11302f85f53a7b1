"""What decides the result of a search: every option with its default for two cores, and the paper's own as presets.

The dataclasses here are the declaration of the flags of `arquant search` and `arquant plan` (see `arquant.base.options`).
Nothing is imported that is slow: what needs torch is imported where it is used.
"""

import ast
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from arquant.base.errors import InputError
from arquant.base.options import PYTHON_ONLY, Names, Pairs, Repeated, built
from arquant.certification.options import CertificateOptions
from arquant.loading.options import DataLike, ModelLike, ModelOptions, PathLike, RoleOptions
from arquant.noise.options import NoiseOptions
from arquant.quantization.options import QuantizerOptions
from arquant.training.recipe import PRESETS, Recipe, Schedule

if TYPE_CHECKING:
    from arquant.certification.smoothing_certifier import Smoothing
    from arquant.engines.choice import EngineOptions
    from arquant.engines.pool import Cluster
    from arquant.searching.method import Method
    from arquant.searching.score import Reward

SECOND_LOOKS = ("shortlist", "shortlist_seeds", "shortlist_steps", "shortlist_n")
"""options that a search may change after its loop: they choose among its candidates"""
PresetName = Literal["paper-cifar", "paper-imagenet"]
Control = Literal["float", "uniform"]
Start = Literal["float", "kept"]
STARTS: tuple[Start, ...] = get_args(Start)


@cache
def method_names() -> tuple[str, ...]:
    """Return the names of arquant's own methods, for helps: read in the source, since importing it would import torch."""
    source = Path(__file__).with_name("method.py").read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    made = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Method"]
    return tuple(str(name.value) for name in made if isinstance(name, ast.Constant))


@dataclass(frozen=True, kw_only=True)
class WidthOptions:
    """Widths"""

    keep: Repeated = ()
    """layers with fixed bits, or none: 'head.*=8', '*attn#*=float'; may be repeated"""
    min_bits: int = 2
    """smallest width of a searched layer"""
    max_bits: int = 8
    """largest width"""


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Search (defaults: for two cores, or the preset's)"""

    preset: PresetName | None = None
    """the paper's settings; what it leaves open is in docs/paper-vs-code.md"""
    strategy: Annotated[str, Names(method_names)] = "arq"
    """{names}, or yours"""
    option: Pairs = field(default_factory=dict)
    """of the strategy: NAME=VALUE; may be repeated"""
    reward: str | None = None
    """acr-cv, acr, acr-signed, val, acc, acc@0.5, acr+acc, irs; the method's own if not given"""
    racing: bool = True
    """draw all votes of every candidate, even of one that is clearly worse than the best"""
    round: int = 1
    """candidates that are asked for at once, for as many workers of --cluster; another number is another search"""
    search_images: int | None = None
    """images that candidates are scored on; up to 500 if not given"""
    search_n: int = 200
    """votes per image of a candidate"""
    reference_n: int = 2000
    """votes per image of the float model"""
    alpha_zeta: float = 0.001
    """of the reward irs: probability that its bound of the disagreement may be wrong"""
    gamma: float = 0.99
    """of the reward irs: from this bound of the float votes on, the candidate's own votes are used"""
    shortlist: int = 3
    """candidates that get a second look, beside the best uniform one; with 1 the best score wins; a method may have its own"""
    shortlist_seeds: int = 2
    """how often each of them is fine-tuned anew for that, always with another seed"""
    shortlist_steps: int | None = None
    """steps of each of these; more than a candidate's, and they decide alone; those of a candidate if not given"""
    shortlist_n: int | None = None
    """votes per image after each; a quarter of --reference-n, or --search-n if that is more, if not given"""


@dataclass(frozen=True, kw_only=True)
class FineTuningOptions:
    """Fine-tuning: of every candidate, and of the winner and the uniform control (final)"""

    steps: int = 60
    """optimizer steps of a candidate"""
    epochs: float = 0.0
    """or passes over the images"""
    lr: float = 0.05
    """peak learning rate of a candidate"""
    schedule: Schedule = "onecycle"
    """how it changes"""
    milestones: tuple[float, ...] = ()
    """epochs at which the step schedule decays"""
    final_epochs: float = 10.0
    """passes over the images for the winner"""
    final_steps: int = 0
    """or optimizer steps"""
    final_lr: float = 0.05
    """peak learning rate for the winner"""
    final_schedule: Schedule = "onecycle"
    """how it changes"""
    final_milestones: tuple[float, ...] = ()
    """epochs at which the step schedule decays"""
    train_batch: int = 256
    """noisy images per step, all copies counted"""
    train_images: int = 0
    """train on so many of the images only; 0: all, or the preset's"""
    train_precision: Literal["float32", "bfloat16"] | None = None
    """bfloat16 where this machine has it, if not given"""
    distill: float = 1.0
    """weight of the float model's probabilities in the loss, 0 to 1"""
    consistency: float = 1.0
    """weight of the penalty on answers that differ between two noisy copies of an image"""
    freeze_batchnorm: bool = False
    """leave BatchNorm statistics as they are"""
    crops: str = Recipe.crops
    """random crops: padded (shifted by up to an eighth) | resized (any part of at least 8 % of a photo) | resized:0.35"""
    images_there: Annotated[int | None, PYTHON_ONLY] = None
    """how many images there are to train on, where a preset takes more"""


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    """What is made and certified at the end"""

    final_start: Start = "float"
    """where the full fine-tuning starts: float weights, or those kept from the candidate's"""
    controls: tuple[Control, ...] = ("float", "uniform")
    """certified beside the result; or none"""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(
    NoiseOptions, WidthOptions, LoopOptions, FineTuningOptions, ReleaseOptions, QuantizerOptions, CertificateOptions
):
    """What decides the result of a search: with equal options, model and images it ends with the same result.

    Make it by `search_options`, which knows what a preset and a method imply.
    """

    @staticmethod
    def preset_values(stated: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the preset and the method imply, and which of steps and epochs count."""
        values: dict[str, Any] = {}
        if preset := stated.get("preset"):
            values = {**SEARCH_PRESETS[preset], **_recipe_values(preset)}
        method = method_of(stated.get("strategy", values.get("strategy", LoopOptions.strategy)))
        values.setdefault("shortlist", method.shortlist)
        if "epochs" in stated and "steps" not in stated:
            values["steps"] = 0
        if "final_epochs" in stated and "final_steps" not in stated:
            values["final_steps"] = 0
        return values

    def __post_init__(self) -> None:
        from arquant.certificates.bounds import check_alpha, check_probability

        for name in ("round", "search_n", "reference_n", "shortlist_seeds", "calibration_images", "n", *SECOND_LOOKS):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if self.min_bits > self.max_bits:
            raise InputError(f"min_bits={self.min_bits} must not exceed max_bits={self.max_bits}")
        check_probability("gamma", self.gamma)
        if not self.alpha_zeta > 0:
            raise InputError(f"alpha_zeta must be positive, got {self.alpha_zeta}")
        check_alpha(self.alpha + self.alpha_zeta)
        if self.search_n > self.reference_n:
            raise InputError(
                f"candidates replay the float model's votes: search_n={self.search_n} must not exceed "
                f"reference_n={self.reference_n}"
            )
        if self.shortlist == 1 and (self.shortlist_steps, self.shortlist_n) != (None, None):
            raise InputError("shortlist_steps and shortlist_n have no effect with a shortlist of 1")
        if (learned := method_of(self.strategy).quantizer) is not None:
            object.__setattr__(self, "learn", learned)  # it belongs to the method, whatever was asked for
        _ = self.recipe, self.final_recipe  # that they may refuse

    @property
    def strategy_options(self) -> dict[str, Any]:
        """The options of the strategy."""
        return dict(self.option)

    @property
    def recipe(self) -> Recipe:
        """The short fine-tuning of every candidate."""
        return self._recipe("", {} if self.preset is None else PRESETS[f"{self.preset}-search"].fields)

    @property
    def final_recipe(self) -> Recipe:
        """The full fine-tuning of what ships, and of the uniform control."""
        return self._recipe("final_", {} if self.preset is None else PRESETS[self.preset].fields)

    def _recipe(self, prefix: str, fixed: Mapping[str, Any]) -> Recipe:
        own = {name: getattr(self, prefix + name) for name in ("steps", "epochs", "lr", "schedule", "milestones")}
        images = self.train_images or fixed.get("images", 0)
        shared = {
            "sigma": self.sigma, "seed": self.seed, "batch": self.train_batch, "distill": self.distill,
            "consistency": self.consistency, "freeze_batchnorm": self.freeze_batchnorm,
            "images": images if self.images_there is None else min(images, self.images_there),
            "precision": self.train_precision or _default_precision(), "crops": self.crops,
        }  # fmt: skip
        return Recipe(**{**fixed, **own, **shared})

    @property
    def second_look_recipe(self) -> Recipe:
        """The fine-tuning of a second look, but for its seed."""
        return self.recipe if self.shortlist_steps is None else replace(self.recipe, steps=self.shortlist_steps)

    @property
    def second_look_votes(self) -> int:
        """Votes per image and fine-tuning of a candidate of the shortlist."""
        return self.shortlist_n or max(self.search_n, self.reference_n // 4)

    @property
    def races(self) -> bool:
        """True if a candidate may be abandoned early: the method allows it, and so does the user."""
        return self.racing and method_of(self.strategy).racing

    def smoothing(self, engines: "EngineOptions | None" = None, cluster: "Cluster | None" = None) -> "Smoothing":
        """Return the certifier of this search: its noise, its certificates, and the constants of its rewards."""
        from arquant.certification.smoothing_certifier import Smoothing
        from arquant.engines.choice import EngineOptions

        return Smoothing(
            **part_of(self, NoiseOptions), alpha_zeta=self.alpha_zeta, gamma=self.gamma, reference_n=self.reference_n,
            claims=CertificateOptions(**part_of(self, CertificateOptions)), engines=engines or EngineOptions(),
            cluster=cluster,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the journal and the configuration of a run; recipes stand for the options they came from."""
        nested = {"preset", "option", *(item.name for item in fields(FineTuningOptions))}
        nested |= {"round"} if self.round == 1 else set()
        plain = {name: value for name, value in part_of(self, SearchOptions).items() if name not in nested}
        recipes = {"recipe": self.recipe.facts(), "final_recipe": self.final_recipe.facts()}
        return plain | recipes | {"strategy_options": self.strategy_options, "racing": None if self.racing else False}


def part_of(options: object, group: type) -> dict[str, Any]:
    """Return the values of the options that a group declares."""
    return {item.name: getattr(options, item.name) for item in fields(group)}


@dataclass(frozen=True)
class TaskOptions(SearchOptions, RoleOptions, ModelOptions):
    """What to find"""

    model: ModelLike
    """a MODEL with weights: resnet20:sigma=0.5 (shipped), a run folder, model.safetensors, weights.pt with --arch, timm:NAME,
    torchvision:NAME, package.module:factory"""
    data: DataLike = "sample"
    """sample (embedded CIFAR-10 images), cifar10[:DIR], folder:DIR, npz:FILE, package.module:factory"""
    _: KW_ONLY
    budget: str | Repeated
    """bops<=3bit, bops<=1.5%, bops@paper<=4bit, bytes<=100k, bops<=2bit..8bit (six points), ...;
    a comma joins limits; may be repeated"""
    table: Annotated[tuple[PathLike, ...], "repeated"] = ()
    """latency or energy per layer, for budgets on these; may be repeated"""
    images: str | None = None
    """which certify images: every:20 | most:500 (evenly spaced) | first:500 | 0-499; all, or the preset's, if not given"""

    @staticmethod
    def preset_values(stated: Mapping[str, Any]) -> dict[str, Any]:
        """Add the images that a preset certifies."""
        certified = {"images": PRESET_IMAGES} if stated.get("preset") else {}
        return {**SearchOptions.preset_values(stated), **certified}


_PAPER: dict[str, Any] = {
    "strategy": "arq-paper", "search_images": 500, "search_n": 500, "reference_n": 10_000, "shortlist": 1, "clip": "kl",
    "n": 1_000_000,
}  # fmt: skip
SEARCH_PRESETS: dict[str, dict[str, Any]] = {
    "paper-cifar": {**_PAPER, "alpha": 0.001, "alpha_zeta": 0.001, "gamma": 0.99},
    "paper-imagenet": {**_PAPER, "alpha": 0.01, "alpha_zeta": 0.01, "gamma": 0.995},
}
"""Section 4 of the paper; gamma is IRS's, since ARQ does not state it. The recipes are those of the same name."""
PRESET_IMAGES = "most:500"
"""which of the certify images a preset certifies, unless others are asked for"""


def _recipe_values(preset: str) -> dict[str, Any]:
    """Return the options of fine-tuning that the recipes of a preset imply."""
    full = PRESETS[preset].recipe(0.0)
    short = PRESETS[f"{preset}-search"].recipe(0.0)
    values: dict[str, Any] = {"train_batch": full.batch, "train_precision": full.precision}
    values |= {"distill": full.distill, "consistency": full.consistency}
    for prefix, recipe in (("", short), ("final_", full)):
        values |= {prefix + name: getattr(recipe, name) for name in ("steps", "epochs", "lr", "schedule", "milestones")}
    return values


def search_options(sigma: float, **changes: Any) -> SearchOptions:
    """Return the options of a search: ours or a preset's, with changes; None means no change."""
    return built(
        SearchOptions, {"sigma": sigma, **{name: value for name, value in changes.items() if value is not None}}
    )


def method_of(name: str) -> "Method":
    """Return the method of a name: its strategy, reward, racing, shortlist and quantizer."""
    from arquant.searching.method import find_method  # which imports torch

    return find_method(name)


def reward_of(options: SearchOptions) -> "Reward":
    """Return what candidates are scored by; InputError if it would be the same for all of them, now or at the second look."""
    from arquant.searching.score import find_reward

    reward = find_reward(options.reward or method_of(options.strategy).reward)
    option = "--search-n or --reference-n" if reward.replays else "--search-n"
    smoothing = options.smoothing()
    reward.check(smoothing, options.search_n, cached=options.reference_n, option=option)
    if options.shortlist > 1:
        reward.on_fresh_noise.check(
            smoothing, options.second_look_votes, cached=options.reference_n, option="--shortlist-n"
        )
    return reward


def _default_precision() -> str:
    from arquant.training.loop import default_precision

    return default_precision()
