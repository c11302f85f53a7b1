"""Methods that do not search: one width everywhere and a recipe of their own, for comparison with those that do."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError
from arquant.base.progress import Status
from arquant.base.run_folder import MODEL, POLICY, open_run
from arquant.certificates.certificate import CertificateSet
from arquant.images.seen_images import seen_images
from arquant.loading.run_images import seen_by
from arquant.quantization.artifact import architecture_of, load_artifact, save_artifact
from arquant.quantization.policy import Policy
from arquant.searching.options import SearchOptions
from arquant.searching.run import SearchRun
from arquant.searching.space import Space
from arquant.searching.workbench_setup import workbench_for
from arquant.training.loop import COMPILE_FROM
from arquant.training.recipe import PRESETS, Recipe


@dataclass(frozen=True)
class TrainedMethod:
    """One uniform policy, and what it changes in the fine-tuning that all methods share.

    Attributes:
        bits: of weights and inputs of every layer that is not fixed.
        recipe: the preset whose fields replace those of the common recipe.
        noiseless: it trains without Gaussian noise.
        native: options of its paper's quantizer, for `arquant benchmark --native`.
    """

    name: str
    bits: int
    recipe: str
    noiseless: bool = False
    native: Mapping[str, Any] = field(default_factory=dict)

    def options_from(self, common: SearchOptions, *, native: bool) -> SearchOptions:
        """Return the options that all methods share with its quantizer; InputError if the noise is not its own."""
        if self.recipe_from(common.final_recipe, common.seed).grid and common.noise != "grid":
            raise InputError(
                f"method {self.name} has integer inputs, which noise {common.noise} does not give it: compare it under --noise "
                "grid, or leave it out"
            )
        return replace(common, controls=(), **(self.native if native else {}))

    def policy(self, space: Space) -> Policy:
        """Return its policy; InputError if the budget, or the range of widths, does not allow it."""
        found = space.uniform(self.bits)
        if not space.min_bits <= self.bits <= space.max_bits:
            raise InputError(
                f"method {self.name} has {self.bits} bits in every layer, and widths are to be from {space.min_bits} to "
                f"{space.max_bits}: use --max-bits {self.bits}, or leave it out"
            )
        if not space.contains(found):
            raise InputError(
                f"method {self.name} has {self.bits} bits in every layer, which {space.budget.text} does not allow: compare it "
                f"within bops<={self.bits}bit, or leave it out"
            )
        return found

    def recipe_from(self, common: Recipe, seed: int) -> Recipe:
        """Return its fine-tuning: the common one, but for what makes the method."""
        changed = replace(common, seed=seed, **PRESETS[self.recipe].fields)
        return replace(changed, sigma=0.0) if self.noiseless else changed


TRAINED = {
    method.name: method
    for method in (
        TrainedMethod("atmc", bits=8, recipe="atmc", noiseless=True),
        TrainedMethod("icr", bits=8, recipe="icr", native={"per_channel": True}),
    )
}


def certified(method: TrainedMethod, run: SearchRun, folder: Path, seed: int, compiled: bool | None) -> CertificateSet:
    """Fine-tune the run's float network by a method with one seed, and certify it; what an earlier call began goes on.

    Args:
        run: has the network, images, quantizer, engines and certifier; its search is not run.
        compiled: compile the training step; None decides by its length.
    """
    space, options = run.spaces[0], run.options
    policy, recipe = method.policy(space), method.recipe_from(options.final_recipe, seed)
    config = {
        **run.config,
        "command": "benchmark",
        "sigma": options.sigma,
        "noise": options.noise,
        "policy": policy.widths(),
    }
    open_run(folder, {**config, "recipe": recipe.facts()})
    policy.save(folder / POLICY, model=space.layers.facts())
    long = recipe.steps_on(len(run.roles.calibrate)) >= COMPILE_FROM
    bench = workbench_for(
        run.classifier, policy, run.roles.calibrate, options, run.engines, layers=space.layers,
        compiled=long if compiled is None else compiled,
    )  # fmt: skip
    try:
        bench.set_(policy)
        bench.finetune_(
            recipe, checkpoint=folder / "training.safetensors", stage=f"fine-tune {method.name}, seed {seed}",
            report=run.report,
        )  # fmt: skip
        bench.quantized.seen = seen_by(run.config["model"], run.classifier) | seen_images(calibrate=run.roles.calibrate)
        facts = {
            "from": run.config["model"],
            "sigma": options.sigma,
            "recipe": recipe.facts(),
            "candidates_examined": 1,
        }
        save_artifact(folder / MODEL, bench.quantized.cpu(), facts)
        frozen = load_artifact(folder / MODEL, arch=architecture_of(bench.quantized))
    finally:
        bench.close()

    def report(status: Status) -> None:
        run.report(replace(status, stage=f"certify {method.name}, seed {seed}"))

    return run.certifier.certify(frozen, run.roles.certify, folder, examined=1, note=run.note, report=report)
