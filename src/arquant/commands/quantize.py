"""`arquant quantize`: from a float model and a policy to a small file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from arquant.commands.command import Command, Watched
from arquant.commands.cost import cost_lines
from arquant.commands.shared import DataLike, ImageOptions, ModelLike, ModelOptions, PathLike, PolicyOptions
from arquant.noise.options import NoiseOptions
from arquant.quantization.options import QuantizerOptions

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.images.imageset import ImageSet
    from arquant.models.classifier import Classifier
    from arquant.quantization.calibration import Images
    from arquant.quantization.policy import Bits, BitsLike, Policy
    from arquant.quantization.quantized import QuantizedClassifier

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Quantize(NoiseOptions, PolicyOptions, QuantizerOptions, ImageOptions, ModelOptions, Watched):
    """Quantize"""

    model: ModelLike
    """a float MODEL with weights"""
    data: DataLike = "sample"
    """DATA to calibrate on: sample, cifar10[:DIR], folder:DIR, npz:FILE, package.module:factory"""
    _: KW_ONLY
    out: PathLike
    """run folder"""


class _Quantizing(Command[P, R]):
    """The command, which Python may also call with a Classifier and a policy, for a quantized copy and no files."""

    @overload
    def __call__(
        self, model: "Classifier", policy: "Policy | BitsLike", calibrate: "Images", *, sigma: float, **options: Any
    ) -> "QuantizedClassifier": ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs or (args and isinstance(args[0], (str, Path))):
            return super().__call__(*args, **kwargs)
        from arquant.quantization.quantized import quantize as quantize_classifier

        return quantize_classifier(*args, **kwargs)


def _declared(
    options: Callable[P, Any], summary: str, common: Sequence[str], examples: Sequence[str]
) -> Callable[[Callable[[Any], R]], _Quantizing[P, R]]:
    return lambda run: _Quantizing(options, run, summary, common, examples, resumes=False)


@_declared(
    Quantize,
    "quantize a model by a policy, without a search",
    ("bits", "policy", "keep", "clip", "per_channel", "learn", "images", "arch", "input", "classes"),
    ("arquant quantize resnet20:sigma=0.5 sample --bits w4a4 --sigma 0.5 --out runs/w4",),
)
def quantize(options: Quantize) -> dict[str, Any]:
    """Quantize a model by a policy, with clips calibrated on noisy images, and write `out/model.safetensors`, a MODEL itself.

    Of a Classifier, `quantize(classifier, policy, calibrate, sigma=0.5)` returns a quantized copy; it takes the options of
    `arquant.quantization.quantized.quantize` and writes nothing.

    Returns:
        The policy's cost and where the bytes of the file go.
    """
    from arquant.base.run_folder import CONFIG, MODEL, POLICY, QUANTIZED, check_own, open_run
    from arquant.images.seen_images import seen_images
    from arquant.loading.models import load_with_data
    from arquant.loading.plausibility import warn_of_sigma
    from arquant.loading.run_images import record_seen, seen_by
    from arquant.models.classifier import Classifier
    from arquant.models.tracing.layers import find_layers
    from arquant.quantization.costs import cost_summary
    from arquant.quantization.policy import check_widths, chosen_policy
    from arquant.quantization.quantized import check_float
    from arquant.quantization.quantized import quantize as quantize_classifier
    from arquant.searching.quantized_run import save_model, size_facts

    check_widths(options.bits, options.policy, options.keep)
    classifier, model_options = load_with_data(options.model, options.data, "calibrate", **options.model_options)
    check_float(classifier)
    policy, layers = chosen_policy(find_layers(classifier), bits=options.bits, policy=options.policy, keep=options.keep)
    calibrate, drawn = _calibration(options, classifier)
    model = classifier.name if isinstance(options.model, Classifier) else str(options.model)
    warn_of_sigma(classifier, options.sigma)
    config = _config(options, model, model_options, policy)
    check_own(Path(options.out), CONFIG)
    if (Path(options.out) / CONFIG).exists():
        # another run is to be known before the work, a run that cannot be made leaves no folder
        open_run(options.out, config)
    how = {**_how(options), "images": options.calibration_images}
    quantized = quantize_classifier(classifier, policy, calibrate, layers=layers, report=options.report, **how)
    folder = open_run(options.out, config)
    record_seen(folder, origin=model, calibrate=drawn)
    quantized.seen = seen_by(model, classifier) | seen_images(calibrate=drawn)
    policy.save(folder / POLICY, model=layers.facts())
    # the widths of a file may be those that a search found best of many
    facts = {
        "sigma": options.sigma,
        "data": config["data"],
        "candidates_examined": 1 if options.policy is None else None,
    }
    # once the run is fine-tuned, the model of this name is what came of it
    target = folder / (QUANTIZED if (folder / QUANTIZED).exists() else MODEL)
    size = save_model(target, quantized, model, model_options, facts)
    costs = cost_summary(policy, layers, file=quantized.file_cost)
    return {**costs, **size_facts(size), "model": str(target), "policy": str(folder / POLICY)}


def _calibration(options: Quantize, classifier: "Classifier") -> "tuple[ImageSet, ImageSet]":
    """Return the images to calibrate on, and those of them that calibration draws."""
    import numpy as np

    from arquant.loading.roles import images_for, note_photos
    from arquant.quantization.calibration import NoisyImages

    calibrate = images_for(options.data, "calibrate", classifier, options.images)
    note_photos(classifier, calibrate)
    noisy = NoisyImages(
        calibrate,
        classifier,
        sigma=options.sigma,
        noise=options.noise,
        count=options.calibration_images,
        seed=options.seed,
    )
    return calibrate, calibrate.take(np.flatnonzero(np.isin(calibrate.indices, noisy.indices)))


def _how(options: Quantize) -> dict[str, Any]:
    """Return the arguments of `quantize` that a run records; noise that is the usual one is not stated."""
    names = ("sigma", "clip", "per_channel", "learn", "estimate_bn", "seed")
    stated = names if options.noise == NoiseOptions.noise else (*names, "noise")
    return {name: getattr(options, name) for name in stated}


def _config(
    options: Quantize, model: str, model_options: Mapping[str, Any], policy: "Mapping[str, Bits]"
) -> dict[str, Any]:
    """Return what `config.yaml` of the run says."""
    from arquant.loading.roles import data_name
    from arquant.searching.quantized_run import SELECTION

    selected = {} if options.images is None else {SELECTION: options.images}
    return {
        "command": "quantize", "model": model, "model_options": model_options, "data": data_name(options.data),
        **_how(options), "calibration_images": options.calibration_images,
        "policy": {name: str(bits) for name, bits in policy.items()}, **selected,
    }  # fmt: skip


@quantize.shown
def _show(result: dict[str, Any], options: Quantize, console: "Console") -> None:
    from arquant.loading.roles import has_all_roles
    from arquant.models.factory import needs_consent

    arch = options.arch or str(options.model)
    more = f" --arch {arch}" if needs_consent(arch) else ""
    data = "" if has_all_roles(options.data) else " OTHER_DATA"
    then = f"arquant certify {options.out}{data} --sigma {options.sigma:g}{more} --out {options.out}"
    lines = [
        *cost_lines(result),
        f"file            {result['file_bytes']:,} bytes: weights {result['weight_bytes']:,}, float parameters "
        f"{result['float_bytes']:,}, header {result['header_bytes']:,}, records about images {result['seen_bytes']:,}",
        f"model: {result['model']}, policy: {result['policy']}",
        f"next: arquant finetune {options.out}{more}; {then}",
    ]
    console.result(result, lines)
