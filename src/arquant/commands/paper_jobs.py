"""Run what a table of the paper needs, by the commands of arquant, each of which goes on where it was stopped."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arquant.base.files import envelope, read_json, write_json
from arquant.base.identity import check_same
from arquant.base.progress import Report
from arquant.certificates.certificate import CertificateSet
from arquant.commands.attack import attack
from arquant.commands.benchmark import benchmark
from arquant.commands.certify import certify
from arquant.commands.command import Note
from arquant.commands.finetune import finetune
from arquant.commands.quantize import quantize
from arquant.commands.train import train
from arquant.loading.models import layers_of
from arquant.models.tracing.layer import Layers
from arquant.quantization.costs import Bops, WeightBytes, milliseconds
from arquant.quantization.latency import make_table, read_table
from arquant.quantization.policy import Policy
from arquant.reporting.paper_numbers import AGENT
from arquant.reporting.reproduction import RADII, Figures, Job
from arquant.reporting.reproduction_scales import Scale
from arquant.reporting.reproduction_targets import VARIANTS
from arquant.searching.method import find_method, register_method
from arquant.training.recipe import FINE_TUNING, PRESETS

SCHEMA, VERSION = "arquant.reproduction-parts", 1
Parts = Mapping[str, Figures]
_ALONGSIDE = ("float", "constant")
"""parts of every benchmark, whatever its methods"""


@dataclass(frozen=True)
class Bench:
    """Where and with what jobs are run.

    Attributes:
        out: the folder below which each job has one.
        machine: `device` and `threads`, where they are stated.
        cluster: `cluster` and `workers`, of the commands that can use them.
        table: of the latency of MobileNetV2, in place of our estimate.
    """

    out: Path
    scale: Scale
    machine: Mapping[str, Any]
    cluster: Mapping[str, Any]
    table: str | None
    report: Report
    note: Note

    def run(self, job: Job, parts: Sequence[str]) -> Parts:
        """Return the figures of some parts of a job, and of others that come with them."""
        return _KINDS[job.kind](self, job, parts)

    def known(self, job: Job) -> dict[str, Figures]:
        """Return the parts of a job that were run before; MismatchError if that was with other options."""
        path = self._file(job)
        if not path.exists():
            return {}
        found = read_json(path, SCHEMA, VERSION)
        check_same(found["options"], _plain(job.options), f"{path} is of other settings")
        return dict(found["parts"])

    def keep(self, job: Job, parts: Parts) -> None:
        """Write down the parts of a job."""
        self._file(job).parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file(job), envelope(SCHEMA, VERSION, {"options": _plain(job.options), "parts": parts}))

    def _file(self, job: Job) -> Path:
        return self.out / "results" / f"{job.folder}.json"

    def table_of(self, job: Job) -> str | None:
        """Return the user's table, if it is for the network of a job."""
        return self.table if job.folder.startswith("mobilenetv2") else None

    @property
    def watched(self) -> dict[str, Any]:
        """Return the options by which a command of its own tells what it does."""
        return {**self.machine, "report": self.report, "note": self.note}

    @property
    def shared(self) -> dict[str, Any]:
        """Return the same for a command whose work a cluster may share."""
        return {**self.watched, **self.cluster}


def _plain(options: Mapping[str, Any]) -> Any:
    """Return options as a file holds them."""
    return json.loads(json.dumps(options, default=str))


def _benchmark(bench: Bench, job: Job, parts: Sequence[str]) -> Parts:
    methods = {_method(part, bench.scale): part for part in parts if part not in _ALONGSIDE} or {AGENT: AGENT}
    table = bench.table_of(job)
    tables: dict[str, Any] = {} if table is None else {"table": (table,)}
    found = benchmark(**job.options, **tables, methods=tuple(methods), out=bench.out / job.folder, **bench.shared)
    plain = found["rows"][0]
    figures = {methods.get(row["method"], row["method"]): _row_figures(row, plain) for row in found["rows"]}
    for row in figures.values():
        row["folder"] = None if row["folder"] is None else str(Path(row["folder"]).relative_to(bench.out))
    return {**figures, "constant": {"acr": found["constant_acr"]}}


def _method(part: str, scale: Scale) -> str:
    """Return the name of a part's method; one that the scale or the ablation changes is registered under a name of its own."""
    if part in VARIANTS:
        register_method(replace(find_method(AGENT), name=part, **VARIANTS[part]))
    elif part in scale.preparation:
        known, part = find_method(part), f"{part}-{scale.name}"
        register_method(replace(known, name=part, strategy_options=scale.preparation[known.name]))
    return part


def _row_figures(row: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a benchmark's row, in the paper's units; `plain` is the row of the float network."""
    hours, policy = {"hours": row["search_seconds"], "final_hours": row["final_seconds"]}, row["policy"] or {}
    found: dict[str, Any] = {
        "gbops": _scaled(row["bops_paper"], 1e-9), "mib": _scaled(row["bytes"], 2**-20), "ms": row["latency"],
        "percent": None if row["bops_paper"] is None else 100 * row["bops_paper"] / plain["bops_paper"],
        "steps": row["search_steps"], **{name: _scaled(value, 1 / 3600) for name, value in hours.items()},
        "policy": list(policy.items()) or None, "bits": _bits(policy) or None,
        "folder": next(iter(row["folders"].values()), None),
    }  # fmt: skip
    if row["acr"] is None:
        return found
    shares = {"0.0": row["clean_accuracy"], **row["certified_accuracy"]}
    before = {"0.0": plain["clean_accuracy"], **plain["certified_accuracy"]}
    found |= {"acr": row["acr"]["mean"], "acr_sd": row["acr"]["standard_deviation"]}
    found |= {"accuracy": 100 * shares["0.0"]["mean"]}
    for radius, share in shares.items():
        found[f"r{float(radius):g}"] = 100 * share["mean"]
        found[f"d{float(radius):g}"] = 100 * (share["mean"] - before[radius]["mean"])
    return found


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _bits(policy: Mapping[str, str]) -> str:
    return " ".join(bits.removeprefix("w").replace("a", "/") for bits in policy.values())


def _longer(bench: Bench, job: Job, parts: Sequence[str]) -> Parts:
    """Fine-tune the policies of a benchmark, and the float network, for longer."""
    before, options = job.after, job.options
    assert before is not None
    shared = {name: before.options[name] for name in ("model", "sigma")}
    figures: dict[str, Figures] = {}
    for part in parts:
        folder, recipe = bench.out / job.folder / part, _times(options["recipe"], options["times"])
        if part == "float":
            preset = recipe.pop("preset", None)
            own = {**(FINE_TUNING if preset is None else PRESETS[preset].fields), **recipe}
            train(**shared, data=options["data"], out=folder, **own, **bench.watched)
            model = folder / "model.safetensors"
        else:
            chosen = bench.known(before).get(part, {}).get("folder")
            if chosen is None:  # the method failed
                figures[part] = {}
                continue
            policy = bench.out / chosen / "policy.json"
            calibration = {name: before.options[name] for name in ("calibration_images",) if name in before.options}
            quantize(**shared, data=options["data"], policy=policy, out=folder, **calibration)
            finetune(folder, **recipe, **bench.watched)
            model = folder
        figures[part] = _certified(bench, model, folder, options, sigma=shared["sigma"])
    return figures


def _times(recipe: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Return the options of a fine-tuning that is so many times as long; the paper's has 10 epochs."""
    return {**recipe, "steps": recipe["steps"] * times} if "steps" in recipe else {**recipe, "epochs": 10.0 * times}


def _adversarial(bench: Bench, job: Job, parts: Sequence[str]) -> Parts:
    """Train a network that never sees noise as ATMC does, from random weights, and certify it at each sigma."""
    options, folder = job.options, bench.out / job.folder
    recipe = dict(options["recipe"])
    first = {"epochs": 200.0} if "preset" in recipe else recipe
    train("resnet20", options["data"], method="atmc", sigma=0.0, out=folder / "float", **first, **bench.watched)
    figures = {}
    for part in parts:
        place = folder / f"sigma-{part}"
        quantize(folder / "float/model.safetensors", options["data"], bits="8", sigma=float(part), out=place)
        finetune(place, method="atmc", sigma=0.0, **recipe, **bench.watched)
        figures[part] = _certified(bench, place, place, options, sigma=float(part))
    return figures


def _certified(
    bench: Bench, model: str | Path, out: Path, options: Mapping[str, Any], *, sigma: float
) -> dict[str, Any]:
    """Certify a model and return its figures."""
    run = certify(model, options["data"], sigma=sigma, out=out, **options["certify"], **bench.shared)
    policy = Policy.load(out / "policy.json") if (out / "policy.json").exists() else None
    return {**_certificate_figures(run.certificates), **_cost_figures(layers_of(model), policy)}


def _certificate_figures(found: CertificateSet) -> dict[str, Any]:
    radii = {f"r{radius:g}": 100 * found.certified_accuracy(radius) for radius in RADII}
    return {"acr": found.acr, "accuracy": radii["r0"], **radii}


def _cost_figures(layers: Layers, policy: Policy | None) -> dict[str, Any]:
    """Return the cost of a policy, or of the float network, by the paper's convention."""
    bops, weights = Bops("paper"), WeightBytes()
    whole = bops.float_cost(layers)
    counted = whole if policy is None else bops.cost(policy, layers)
    size = weights.float_cost(layers) if policy is None else weights.cost(policy, layers)
    return {"gbops": counted / 1e9, "percent": 100 * counted / whole, "mib": size / 2**20}


def _attacks(bench: Bench, job: Job, _parts: Sequence[str]) -> Parts:
    """Attack the plain and the smoothed network, and the plain one behind a defence; certificates beside it."""
    options, folder = job.options, bench.out / job.folder
    common = {name: options[name] for name in ("model", "data", "sigma", "images")}
    certify(common["model"], common["data"], sigma=common["sigma"], out=folder, **options["certify"], **bench.shared)
    tries: dict[str, dict[str, Any]] = {
        "fgsm": {"attack": "fgsm", "judge": "plain"},
        "pgd": {"attack": "pgd", "judge": "plain", "steps": options["steps"]},
        "smoothed": {"attack": "pgd", "judge": "smoothed", **{name: options[name] for name in ("steps", "draws", "n")}},
    }
    figures: dict[str, Figures] = {}
    for name, more in tries.items():
        found = attack(**common, **more, epsilon=options["epsilon"], certificates=folder, **bench.watched)
        for row in found["rows"]:
            epsilon = row["epsilon"]
            shown = {"epsilon": epsilon, "plain": 100 * row["clean_accuracy"]}
            figures[f"{name} {epsilon:g}"] = {**shown, "attacked": 100 * row["attacked_accuracy"]}
            if name == "smoothed":
                figures[f"certified {epsilon:g}"] = {
                    **shown,
                    "attacked": _scaled(row["certified_accuracy"], 100),
                }
            else:
                plain, attacked = _deflected(options, name, epsilon)
                figures[f"{name}-defended {epsilon:g}"] = {"epsilon": epsilon, "plain": plain, "attacked": attacked}
    return figures


def _deflected(options: Mapping[str, Any], name: str, epsilon: float) -> tuple[float, float]:
    """Return the accuracy, in %, of the plain network on images and on attacked ones, some of whose pixels are replaced.

    As many pixels, and as near, in proportion to an image of 224 x 224 with the defence's usual 200 within 10.
    """
    import torch
    from torch import Tensor

    from arquant.certification.attack_run import unit_images
    from arquant.certification.subject import find_subject
    from arquant.training.attacks import fgsm, moved, pgd, pixel_deflection

    found = find_subject(
        options["model"], options["data"], sigma=options["sigma"], noise=None, images=options["images"]
    )
    how = fgsm(epsilon, "l2") if name == "fgsm" else pgd(epsilon, "l2", options["steps"])
    images, labels = unit_images(found.images, slice(None)), torch.from_numpy(found.images.labels)
    network = found.classifier.eval()
    there = moved(network, images, labels, how, generator=torch.Generator().manual_seed(0))
    height, width = images.shape[2:]
    how_many, window = max(1, round(200 * height * width / 224**2)), max(1, round(10 * height / 224))

    @torch.no_grad()
    def right(shown: Tensor) -> float:
        defended = pixel_deflection(shown, deflections=how_many, window=window)
        return 100 * float((network(network.from_unit(defended)).argmax(1) == labels).float().mean())

    return right(images), right(there)


def _costs(bench: Bench, job: Job, parts: Sequence[str]) -> Parts:
    """Count the float network and uniform policies; latency by the user's table, or by an estimate of one."""
    layers, given = layers_of(job.options["model"]), bench.table_of(job)
    table = make_table(layers) if given is None else read_table(given)
    figures: dict[str, Figures] = {}
    for part in parts:
        policy = None if part == "float" else Policy.uniform(layers, part)
        timed = {} if policy is None else {"ms": milliseconds(table.cost(policy, layers), table.unit)}
        figures[part] = {**_cost_figures(layers, policy), **timed}
    return figures


_KINDS: dict[str, Callable[[Bench, Job, Sequence[str]], Parts]] = {
    "benchmark": _benchmark, "longer": _longer, "adversarial": _adversarial, "attacks": _attacks, "costs": _costs,
}  # fmt: skip
