"""The quantized model of a run folder: where it came from, how it is saved, and what fine-tuning it in place leaves behind."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.base.own_files import own_file
from arquant.base.provenance import provenance
from arquant.base.run_folder import (
    CONFIG,
    MODEL,
    POINTS,
    POLICY,
    QUANTIZED,
    SUMMARY,
    earlier_place,
    keep_file,
    search_of,
)
from arquant.certificates.files import TSV_NAME, certified_model, read_sidecar, sidecar_path
from arquant.loading.models import load_model
from arquant.loading.run_images import run_sigma
from arquant.models.classifier import Classifier
from arquant.noise.options import NoiseOptions
from arquant.quantization.artifact import ArtifactSize, read_provenance, save_artifact
from arquant.quantization.options import QuantizerOptions
from arquant.quantization.quantized import QuantizedClassifier
from arquant.searching.release import Releases

SELECTION = "calibrate_images"
"""which images of the data a run calibrates and fine-tunes on; in its configuration, if not all"""
_FLAGS = {
    "arch": "--arch", "mean": "--mean", "std": "--std", "bounds": "--bounds", "input_shape": "--input",
    "num_classes": "--classes",
}  # fmt: skip
"""of the options that describe a model"""


def sigma_of(folder: Path, sigma: float | None) -> float:
    """Return the noise to fine-tune with: as stated, else that of the model, else that of the run."""
    if sigma is None and (folder / MODEL).is_file():
        sigma = read_provenance(own_file(folder, MODEL)).get("sigma")
    return run_sigma(folder, sigma)


def start_of(folder: Path, config: dict[str, Any]) -> Path:
    """Return the file of the model as it was quantized, which fine-tuning leaves as it is."""
    start = own_file(folder, QUANTIZED)
    if not start.exists() and not (folder / MODEL).exists():
        raise InputError(_what_to_finetune(folder, config))
    if not isinstance(config.get("model"), str):
        raise FileFormatError(f"{folder / CONFIG} does not name the float model of the run; quantize it again")
    keep_file(own_file(folder, MODEL), start)
    return start


def _what_to_finetune(folder: Path, config: dict[str, Any]) -> str:
    """Say where there is a model to fine-tune, or how to get one."""
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
    """Return the command that quantizes the float model of a search by a policy."""
    options = {_FLAGS[name]: value for name, value in (config.get("model_options") or {}).items() if name in _FLAGS}
    if options.get("--bounds") == [0.0, 1.0]:
        del options["--bounds"]  # the default
    options |= {"--policy": policy, "--sigma": config.get("sigma"), "--out": "OTHER"}
    defaults = {"noise": NoiseOptions.noise, "seed": NoiseOptions.seed, **vars(QuantizerOptions())}
    chosen = [name for name, default in defaults.items() if config.get(name, default) != default]
    options |= {f"--{name.replace('_', '-')}": config[name] for name in chosen}
    words = [str(config.get("model")), str(config.get("calibrate") or config.get("data"))]
    for flag, value in options.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [flag] if value is True else [flag, text]
    return shlex.join(["arquant", "quantize", *words])


def forget_summary(folder: Path, note: Callable[[str], None]) -> None:
    """Delete the summary of a search one of whose models is about to be replaced."""
    search = search_of(folder)
    if search is not None and (search / SUMMARY).exists():
        (search / SUMMARY).unlink()
        note(
            f"{search / SUMMARY} is gone: {folder / MODEL} is another model now. The search, called again, restores both"
        )


def set_aside_certificates(folder: Path, fingerprint: str) -> None:
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


def replace_model(
    folder: Path, save: Callable[[Path], ArtifactSize], fingerprint: str, arch: str | None
) -> ArtifactSize:
    """Put another model into a folder: one of a search is released, elsewhere the old one's certificates are set aside."""
    search = search_of(folder)
    if search is not None:
        return Releases(search, arch).replace(folder.resolve(), save)
    size = save(folder / MODEL)
    set_aside_certificates(folder, fingerprint)
    return size


def float_model_of(model: str, options: dict[str, Any], *, needed: bool) -> Classifier | None:
    """Load the float model of a run; None if it cannot be loaded and is not needed."""
    try:
        return load_model(model, **options)
    except ArquantError as error:
        if not needed:
            return None
        raise InputError(
            f"the float model {model!r} of this run, which fine-tuning follows, cannot be loaded ({error}); run from the "
            "folder that it was quantized in, or use --distill 0"
        ) from error


def save_model(
    path: Path, quantized: QuantizedClassifier, model: str, options: dict[str, Any], facts: dict[str, Any]
) -> ArtifactSize:
    """Save the model of a run with where it comes from: the float model, the facts, the versions and the command."""
    origin = provenance()
    record = {
        "from": model,
        **facts,
        "versions": origin["versions"],
        "commit": origin["commit"],
        "command": origin["command"],
    }
    return save_artifact(path, quantized, record, arch=options.get("arch"))


def size_facts(size: ArtifactSize) -> dict[str, int]:
    """Return where the bytes of a file go."""
    return {
        "file_bytes": size.file_bytes,
        "weight_bytes": size.weight_bytes,
        "float_bytes": size.float_bytes,
        "header_bytes": size.header_bytes,
        "seen_bytes": size.seen_bytes,
    }
