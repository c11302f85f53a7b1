"""What decides the result of a search: every setting with its default for two cores, and the paper's own as presets."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from arquant.base.errors import InputError
from arquant.certificates.bounds import check_alpha, check_probability
from arquant.searching.method import find_method
from arquant.searching.score import Reward, Scoring, find_reward
from arquant.training.loop import default_precision
from arquant.training.recipe import FINE_TUNING, Recipe
from arquant.training.recipe import PRESETS as RECIPES

CONTROLS = ("float", "uniform")
STARTS = ("float", "kept")
SECOND_LOOKS = ("shortlist", "shortlist_seeds", "shortlist_steps", "shortlist_n")
"""options that a search may change after its loop: they choose among its candidates"""


@dataclass(frozen=True)
class SearchOptions:
    """The settings of a search. Two searches with equal options, model and images end with the same result."""

    sigma: float
    """standard deviation of the noise, in units of the pixel range"""
    recipe: Recipe
    """the short fine-tuning of every candidate"""
    final_recipe: Recipe
    """the full fine-tuning of what ships, and of the uniform control"""
    noise: str = "grid"
    seed: int = 0
    keep: tuple[str, ...] = ()
    """layers with fixed bits, as PATTERN=BITS"""
    min_bits: int = 2
    max_bits: int = 8
    strategy: str = "arq"
    strategy_options: dict[str, Any] = field(default_factory=dict)
    reward: str | None = None
    """what the strategy maximises; None takes the strategy's own"""
    racing: bool | None = None
    """abandon candidates that are clearly worse than the best; None does what suits the strategy"""
    search_images: int | None = None
    """how many search images; None takes up to 500"""
    search_n: int = 200
    """votes per search image of a candidate"""
    reference_n: int = 2000
    """votes per search image of the float model"""
    alpha_zeta: float = 0.001
    gamma: float = 0.99
    shortlist: int = 3
    """candidates that get a second look, beside the best uniform one; with 1, the best score wins, as in the paper"""
    shortlist_seeds: int = 2
    """how often each of them is fine-tuned anew for that, always with another seed"""
    shortlist_steps: int | None = None
    """optimizer steps of each of these, more than a candidate has; None takes those of a candidate, whose score then counts as
    one look more"""
    shortlist_n: int | None = None
    """votes per image after each of these; None takes a quarter of the float model's, or `search_n` if that is more"""
    final_start: str = "float"
    """where the full fine-tuning starts: `float` weights, or those `kept` from the candidate's short fine-tuning"""
    clip: str = "auto"
    per_channel: bool = False
    learn: str = "pact"
    estimate_bn: bool = False
    calibration_images: int = 512
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    """of the certificates, and of the bounds in rewards"""
    label_directed: bool = False
    multiclass: bool = False
    family_wise: bool = False
    adaptive: bool = False
    tolerance: float | None = None
    controls: tuple[str, ...] = CONTROLS
    """what is certified beside the result"""

    def __post_init__(self) -> None:
        at_least = {
            "search_n": 1,
            "reference_n": 1,
            "shortlist": 1,
            "shortlist_seeds": 1,
            "calibration_images": 1,
            "n": 1,
            "shortlist_n": 1,
            "shortlist_steps": 1,
        }
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
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
            raise InputError(
                "shortlist_steps and shortlist_n are of second looks, which a shortlist of 1 does not have"
            )
        if self.final_start not in STARTS:
            raise InputError(f"final_start must be one of {', '.join(STARTS)}, got {self.final_start!r}")
        if unknown := [control for control in self.controls if control not in CONTROLS]:
            raise InputError(f"unknown control {unknown[0]!r}; choose from {', '.join(CONTROLS)}")

    @property
    def second_look_recipe(self) -> Recipe:
        """Of the fine-tunings of a second look, but for their seeds."""
        return self.recipe if self.shortlist_steps is None else replace(self.recipe, steps=self.shortlist_steps)

    @property
    def second_look_votes(self) -> int:
        """Votes per image and fine-tuning of a candidate of the shortlist."""
        return self.shortlist_n or max(self.search_n, self.reference_n // 4)

    @property
    def scoring(self) -> Scoring:
        """What rewards are computed with."""
        return Scoring(self.sigma, self.noise, self.alpha, self.alpha_zeta, self.gamma)

    def certificate_options(self) -> dict[str, Any]:
        """The keyword arguments of `certify`."""
        names = (
            "sigma", "noise", "n0", "n", "alpha", "label_directed", "multiclass", "family_wise", "adaptive", "tolerance",
            "seed",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


_SHARED = {
    "train_batch": "batch",
    "distill": "distill",
    "consistency": "consistency",
    "freeze_batchnorm": "freeze_batchnorm",
    "train_images": "images",
    "train_precision": "precision",
}
"""options of both recipes, by the field they set"""
_OWN = ("steps", "epochs", "lr", "schedule", "milestones")
"""options of the short fine-tuning, and with `final_` before them of the full one"""
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


def search_options(sigma: float, *, preset: str | None = None, **changes: Any) -> SearchOptions:
    """The options of a search: ours or a preset's, with changes (None means no change).

    The length of the shortlist is the strategy's unless changed; what fine-tuning learns is, where that belongs to the method.

    Beside the fields of `SearchOptions`: `steps`, `epochs`, `lr`, `schedule` and `milestones` change the short fine-tuning;
    with `final_` before them, the full one; `train_batch`, `distill`, `consistency`, `freeze_batchnorm`, `train_images` and
    `train_precision` change both.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    fixed: dict[str, Any] = {}
    ours = {**FINE_TUNING, "precision": default_precision()}
    short, full = {"steps": 60, **ours}, {"epochs": 10.0, **ours}
    if preset is not None:
        if preset not in SEARCH_PRESETS:
            raise InputError(f"unknown preset {preset!r}; there are {', '.join(SEARCH_PRESETS)}")
        fixed = SEARCH_PRESETS[preset]
        short, full = dict(RECIPES[f"{preset}-search"].fields), dict(RECIPES[preset].fields)
    seed = given.get("seed", 0)
    recipe = given.pop("recipe", None) or Recipe(sigma=sigma, seed=seed, **short)
    final = given.pop("final_recipe", None) or Recipe(sigma=sigma, seed=seed, **full)
    recipe = replace(recipe, **_recipe_changes(given, ""))
    final = replace(final, **_recipe_changes(given, "final_"))
    known = {item.name for item in fields(SearchOptions)}
    own = {name: value for name, value in given.items() if name in known}
    if unknown := [name for name in given if name not in known and not _of_recipe(name)]:
        raise InputError(f"a search has no option {unknown[0]!r}")
    chosen = {**fixed, **own}
    strategy = find_method(chosen.get("strategy", SearchOptions.strategy))
    chosen.setdefault("shortlist", strategy.shortlist)
    if strategy.quantizer is not None:
        chosen["learn"] = strategy.quantizer
    return SearchOptions(sigma=sigma, recipe=recipe, final_recipe=final, **chosen)


def reward_of(options: SearchOptions) -> Reward:
    """What candidates are scored by; InputError if it would be the same for all of them, now or at the second look."""
    reward = find_reward(options.reward or find_method(options.strategy).reward)
    option = "--search-n or --reference-n" if reward.replays else "--search-n"
    reward.check(options.scoring, options.search_n, cached=options.reference_n, option=option)
    if options.shortlist > 1:
        reward.on_fresh_noise.check(
            options.scoring, options.second_look_votes, cached=options.reference_n, option="--shortlist-n"
        )
    return reward


def _recipe_changes(given: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The fields of a recipe that options with this prefix change; a number of steps or epochs replaces the other."""
    own = {name: given[prefix + name] for name in _OWN if prefix + name in given}
    if "epochs" in own and "steps" not in own:
        own["steps"] = 0
    return own | {target: given[name] for name, target in _SHARED.items() if name in given}


def _of_recipe(name: str) -> bool:
    return name in _SHARED or name.removeprefix("final_") in _OWN
