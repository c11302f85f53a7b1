"""`arquant quantize` and `arquant finetune`: from a float model to a small file, and its accuracy back."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.base.file_lock import in_use
from arquant.base.own_files import own_file
from arquant.base.progress import Report, silent
from arquant.base.provenance import provenance
from arquant.base.run_folder import (
    CONFIG,
    FINETUNING,
    MODEL,
    POINTS,
    POLICY,
    QUANTIZED,
    SUMMARY,
    check_own,
    earlier_place,
    keep_file,
    open_run,
    read_config,
    search_of,
)
from arquant.base.threads import available_cores
from arquant.certificates.files import TSV_NAME, certified_model, read_sidecar, sidecar_path
from arquant.commands.inspection import check_widths, chosen_policy
from arquant.engines.choice import check_amounts, resolve_device
from arquant.images.seen_images import seen_images
from arquant.loading.models import load_model
from arquant.loading.roles import images_for
from arquant.loading.run_images import record_seen, run_images, run_noise, run_sigma, seen_by
from arquant.models.classifier import Classifier
from arquant.models.factory import allow_code
from arquant.models.tracing.layers import find_layers
from arquant.quantization.artifact import ArtifactSize, load_artifact, read_provenance, save_artifact
from arquant.quantization.calibration import Images, NoisyImages
from arquant.quantization.costs import cost_summary
from arquant.quantization.policy import BitsLike, Policy
from arquant.quantization.quantized import QuantizedClassifier, check_float
from arquant.quantization.quantized import quantize as quantize_classifier
from arquant.searching.release import Releases
from arquant.training.batches import note_training_noise
from arquant.training.loop import default_precision
from arquant.training.loop import train as run_training
from arquant.training.recipe import FINE_TUNING, PRESETS, Recipe

SELECTION = "calibrate_images"
"""which images of the data a run calibrates and fine-tunes on; in its configuration, if not all"""
_FLAGS = {
    "arch": "--arch", "mean": "--mean", "std": "--std", "bounds": "--bounds", "input_shape": "--input",
    "num_classes": "--classes",
}  # fmt: skip
"""of the options that describe a model"""
_OF_QUANTIZE: dict[str, Any] = {
    "noise": "grid", "clip": "auto", "per_channel": False, "learn": "pact", "estimate_bn": False, "calibration_images": 512,
    "seed": 0,
}  # fmt: skip
"""options that a search shares with `quantize`, and their defaults"""


@overload
def quantize(
    model: Classifier, policy: Policy | BitsLike, calibrate: Images, *, sigma: float, **options: Any
) -> QuantizedClassifier: ...


@overload
def quantize(
    model: str | Path, data: str = "sample", *, sigma: float, out: str | Path, **options: Any
) -> dict[str, Any]: ...


def quantize(model: str | Path | Classifier, *arguments: Any, **options: Any) -> dict[str, Any] | QuantizedClassifier:
    """Quantize a model by a policy, with clips calibrated on noisy images.

    Of a Classifier, `quantize(classifier, policy, calibrate, sigma=0.5)` is a quantized copy; the options are those of
    `arquant.quantization.quantized.quantize`. Of a MODEL, `quantize("resnet20:sigma=0.5", "sample", sigma=0.5, bits="w4a4",
    out="runs/w4")` does what `arquant quantize` does: it writes `out/model.safetensors`, a MODEL itself, and returns the
    policy's cost and where the bytes of the file go. The options are those of the command line.
    """
    if isinstance(model, Classifier):
        return quantize_classifier(model, *arguments, **options)
    return _quantize_run(str(model), *arguments, **options)


def _quantize_run(
    model: str, data: str = "sample", *, sigma: float, out: str | Path, bits: str | None = None,
    policy: str | Path | None = None, keep: Sequence[str] = (), clip: str = "auto", per_channel: bool = False,
    learn: str = "pact", estimate_bn: bool = False, noise: str = "grid", images: str | None = None,
    calibration_images: int = 512, seed: int = 0, **model_options: Any,
) -> dict[str, Any]:  # fmt: skip
    check_widths(bits, policy, keep)
    classifier = load_model(model, **model_options)
    check_float(classifier)
    layers = find_layers(classifier)
    chosen = chosen_policy(layers, bits=bits, policy=policy, keep=keep)
    calibrate = images_for(data, "calibrate", classifier, images)
    used = NoisyImages(calibrate, classifier, sigma=sigma, noise=noise, count=calibration_images, seed=seed).indices
    how: dict[str, Any] = {
        "sigma": sigma, "clip": clip, "per_channel": per_channel, "learn": learn, "estimate_bn": estimate_bn, "seed": seed,
    }  # fmt: skip
    config = {
        "command": "quantize",
        "model": model,
        "model_options": {name: value for name, value in model_options.items() if value is not None},
        "data": data,
        **how,
        "calibration_images": calibration_images,
        "policy": {name: str(b) for name, b in chosen.items()},
    }
    if images is not None:
        config[SELECTION] = images
    if noise != "grid":
        config["noise"] = how["noise"] = noise
    check_own(Path(out), CONFIG)
    if (Path(out) / CONFIG).exists():
        open_run(out, config)  # another run is to be known before the work, a run that cannot be made leaves no folder
    quantized = quantize_classifier(classifier, chosen, calibrate, images=calibration_images, layers=layers, **how)
    folder = open_run(out, config)
    calibrated = calibrate.take(np.flatnonzero(np.isin(calibrate.indices, used)))
    record_seen(folder, origin=model, calibrate=calibrated)
    quantized.seen = seen_by(model, classifier) | seen_images(calibrate=calibrated)
    chosen.save(folder / POLICY, model=layers.facts())
    # the widths of a file may be those that a search found best of many
    facts = {"sigma": sigma, "data": data, "candidates_examined": 1 if policy is None else None}
    # once the run is fine-tuned, the model of this name is what came of it
    target = folder / (QUANTIZED if (folder / QUANTIZED).exists() else MODEL)
    size = _save(target, quantized, model, model_options, facts)
    return {
        **cost_summary(chosen, layers),
        **_size_facts(size),
        "model": str(target),
        "policy": str(folder / POLICY),
    }


def finetune(
    run: str | Path,
    *,
    recipe: Recipe | None = None,
    sigma: float | None = None,
    preset: str | None = None,
    data: str | None = None,
    arch: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    report: Report = silent,
    note: Callable[[str], None] = lambda text: None,
    **fields: Any,
) -> dict[str, Any]:
    """Fine-tune the quantized model of a run folder on noisy images, in place; what it was is kept beside it.

    How is said by a whole `recipe`, or as on the command line: by `sigma` (by default the run's), a `preset` and the `fields`
    of a recipe that differ from it, or from our defaults.

    Weights start where they were before they were rounded, as those of a search do, where the run's float model can still be
    read; `recipe.distill` needs it as the teacher. The same call on the same folder resumes, or, once finished, ends with the
    same model. A search whose model this was has no summary any more; called again, it puts its own model back. `arch` must be
    stated where the network is built by a `package.module:factory`.
    """
    check_amounts(None, threads)
    torch.set_num_threads(threads or available_cores())
    folder = Path(run)
    config = read_config(folder)
    if recipe is None:
        recipe = _recipe_for(folder, sigma, preset, fields)
    elif sigma is not None or preset is not None or fields:
        raise InputError("fine-tuning takes a whole recipe, or what to change of ours: not both")
    note_training_noise(run_noise(folder, None), note)
    with in_use(folder):
        start = _start_of(folder, config)
        quantized = load_artifact(start, arch=arch)
        started_as = quantized.fingerprint()
        options = dict(config.get("model_options") or {})
        for spec in (config["model"], options.get("arch") or ""):
            allow_code(spec, arch, folder)
        origin = _float_model(config["model"], options, needed=recipe.distill > 0)
        teacher = origin if recipe.distill > 0 else None
        unrounded = origin is not None and quantized.unround_(origin)
        selected = config.get(SELECTION) if data is None else None
        images = run_images(folder, "calibrate", quantized, data=data, images=selected)
        record = run_training(
            quantized,
            torch.from_numpy(images.images),
            torch.from_numpy(images.labels),
            recipe,
            teacher=teacher,
            checkpoint=folder / FINETUNING,
            origin=started_as if teacher is None else f"{started_as} after {teacher.fingerprint()}",
            device=resolve_device(device),
            stage="fine-tune",
            report=report,
            accepted=lambda: record_seen(folder, finetune=images),
        )
        quantized.seen = seen_by(start, quantized) | seen_images(finetune=images)
        examined = read_provenance(start).get("candidates_examined")
        facts = {"sigma": recipe.sigma, "data": images.name, "recipe": asdict(recipe), "loss": record["loss"]}
        facts |= {"start": "float weights" if unrounded else "rounded weights", "candidates_examined": examined}
        _forget_summary(folder, note)
        search = search_of(folder)

        def save(path: Path) -> ArtifactSize:
            return _save(path, quantized.cpu(), config["model"], options, facts)

        if search is None:
            size = save(folder / MODEL)
            _set_aside_certificates(folder, quantized.fingerprint())
        else:
            size = Releases(search, arch).replace(folder.resolve(), save)
        return {**record, **_size_facts(size), "model": str(folder / MODEL)}


def _start_of(folder: Path, config: dict[str, Any]) -> Path:
    """The file of the model as it was quantized, which fine-tuning leaves as it is."""
    start = own_file(folder, QUANTIZED)
    if not start.exists() and not (folder / MODEL).exists():
        raise InputError(_what_to_finetune(folder, config))
    if not isinstance(config.get("model"), str):
        raise FileFormatError(f"{folder / CONFIG} does not name the float model of the run; quantize it again")
    keep_file(own_file(folder, MODEL), start)
    return start


def _what_to_finetune(folder: Path, config: dict[str, Any]) -> str:
    """Where there is a model to fine-tune, or how to get one, for those who named a folder without."""
    if config.get("command") != "search":
        return f"{folder} has no {MODEL} to fine-tune; run arquant quantize first"
    if models := sorted(folder.glob(f"{POINTS}/*/{MODEL}")):
        return f"{folder} is a search within several budgets; fine-tune {' or '.join(str(m.parent) for m in models)}"
    policies = sorted(folder.glob(f"{POINTS}/*/{POLICY}")) or [path for path in [folder / POLICY] if path.exists()]
    message = f"the search in {folder} has made no model yet: the command that began it goes on"
    if policies:
        message += ". Its best so far, in a folder of its own: "
    return message + "; ".join(_quantize_command(config, policy) for policy in policies)


def _quantize_command(config: dict[str, Any], policy: Path) -> str:
    """How to quantize the float model of a search by a policy."""
    options = {_FLAGS[name]: value for name, value in (config.get("model_options") or {}).items() if name in _FLAGS}
    if options.get("--bounds") == [0.0, 1.0]:
        del options["--bounds"]  # the default
    options |= {"--policy": policy, "--sigma": config.get("sigma"), "--out": "OTHER"}
    chosen = [name for name, default in _OF_QUANTIZE.items() if config.get(name, default) != default]
    options |= {f"--{name.replace('_', '-')}": config[name] for name in chosen}
    words = [str(config.get("model")), str(config.get("calibrate") or config.get("data"))]
    for flag, value in options.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [flag] if value is True else [flag, text]
    return shlex.join(["arquant", "quantize", *words])


def _recipe_for(folder: Path, sigma: float | None, preset: str | None, changes: dict[str, Any]) -> Recipe:
    ours = {"epochs": 10.0, "precision": default_precision(), **FINE_TUNING}
    if preset is not None and preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    fields = ours if preset is None else dict(PRESETS[preset].fields)
    if changes.get("steps") is not None:
        fields["epochs"] = 0.0  # of a preset: the number of steps takes its place
    if sigma is None and (folder / MODEL).is_file():
        sigma = read_provenance(own_file(folder, MODEL)).get("sigma")
    return Recipe(sigma=run_sigma(folder, sigma), **{**fields, **changes})


def _forget_summary(folder: Path, note: Callable[[str], None]) -> None:
    """The summary of a search is of the models that it made itself, one of which is about to be replaced."""
    search = search_of(folder)
    if search is not None and (search / SUMMARY).exists():
        (search / SUMMARY).unlink()
        note(
            f"{search / SUMMARY} is gone: {folder / MODEL} is another model now. The search, called again, restores both"
        )


def _set_aside_certificates(folder: Path, fingerprint: str) -> None:
    """Move certificates of the model before its fine-tuning to a folder of their own; those of this model stay."""
    table, sidecar = folder / TSV_NAME, sidecar_path(folder / TSV_NAME)
    if not table.exists() or not sidecar.exists():
        return
    certified = certified_model(read_sidecar(sidecar)["provenance"])
    if certified != fingerprint:
        to = earlier_place(folder, str(certified))
        to.mkdir(parents=True, exist_ok=True)
        for file in (table, sidecar):
            file.replace(to / file.name)


def _float_model(model: str, options: dict[str, Any], *, needed: bool) -> Classifier | None:
    try:
        return load_model(model, **options)
    except ArquantError as error:
        if not needed:
            return None
        raise InputError(
            f"the float model {model!r} of this run, which fine-tuning follows, cannot be loaded ({error}); run from the "
            "folder that it was quantized in, or use --distill 0"
        ) from error


def _save(
    path: Path, quantized: QuantizedClassifier, model: str, options: dict[str, Any], facts: dict[str, Any]
) -> ArtifactSize:
    origin = provenance()
    record = {
        "from": model,
        **facts,
        "versions": origin["versions"],
        "commit": origin["commit"],
        "command": origin["command"],
    }
    return save_artifact(path, quantized, record, arch=options.get("arch"))


def _size_facts(size: ArtifactSize) -> dict[str, int]:
    return {
        "file_bytes": size.file_bytes,
        "weight_bytes": size.weight_bytes,
        "float_bytes": size.float_bytes,
        "header_bytes": size.header_bytes,
        "seen_bytes": size.seen_bytes,
    }
