"""`arquant reproduce`: a table or figure of the paper, with its numbers beside ours."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arquant.base.errors import InputError
from arquant.base.options import Pairs, meant
from arquant.certification.options import ClusterOptions
from arquant.commands.command import Watched, command
from arquant.commands.shared import PathLike
from arquant.reporting.options import TableFormat

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.commands.paper_jobs import Bench
    from arquant.reporting.reproduction import Target

ALL = "all"
SCHEMA, VERSION = "arquant.reproduction", 1


@dataclass(frozen=True)
class Reproduce(ClusterOptions, Watched):
    """Reproduce"""

    target: str | None = None
    """a table or figure of the paper, or all; without one, they are listed"""
    _: KW_ONLY
    scale: Literal["smoke", "small", "paper"] = "smoke"
    """smoke: minutes, shows that it runs; small: hours on two cores; paper: its settings, for GPUs"""
    out: PathLike | None = None
    """folder, runs/reproduce-SCALE if not given; the same command resumes, other targets take up what they share"""
    weights: Pairs = field(default_factory=dict)
    """your MODEL of a network of which none is shipped, NETWORK@SIGMA=MODEL: resnet50@0.5=runs/rn50; may be repeated"""
    imagenet: str | None = None
    """DATA for those that are for ImageNet"""
    table: PathLike | None = None
    """latency of MobileNetV2 per layer, such as HAQ's .npy; an estimate if not given"""
    format: TableFormat = "text"
    """how the tables are printed; DIR has them as HTML, Markdown, LaTeX, CSV and JSON"""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    threads: int | None = None
    """CPU threads; as many as there are cores if not given"""


@command(
    Reproduce,
    "a table or figure of the paper, with its numbers beside ours",
    common=("scale", "out", "weights", "imagenet", "table", "format", "device", "threads"),
    examples=(
        "arquant reproduce reward",
        "arquant reproduce",
        "arquant reproduce bops --scale small --out runs/figure-1",
    ),
    resumes=True,
)
def reproduce(options: Reproduce) -> dict[str, Any]:
    """Run what a table or figure of the paper needs, and show its numbers beside ours with the settings that differ.

    Everything is run by `benchmark`, `train`, `quantize`, `finetune`, `certify` and `attack` in folders below `out`, which
    resume; targets share what they have in common. Networks without trained weights have costs only.

    Returns:
        `targets`: without a target their names, titles and places in the paper; else, by name, the `rows`, each with `ours`
        and `paper`, and the `settings` that differ. They are also in `out/TARGET.json`.
    """
    from arquant.base.file_lock import in_use
    from arquant.base.run_folder import open_run
    from arquant.commands.paper_jobs import Bench
    from arquant.reporting.reproduction_scales import SCALES
    from arquant.reporting.reproduction_targets import TARGETS

    if options.target is None:
        return {"targets": {name: {"title": each.title, "place": each.place} for name, each in TARGETS.items()}}
    if options.target not in (*TARGETS, ALL):
        hint = meant(options.target, TARGETS) or f"; there are {', '.join((*TARGETS, ALL))}"
        raise InputError(f"there is no target {options.target!r}{hint}")
    _check_weights(options)
    weights = {name: str(model) for name, model in options.weights.items()}
    scale = replace(SCALES[options.scale], weights=weights, imagenet=options.imagenet)
    out = Path(options.out or f"runs/reproduce-{options.scale}")
    machine = {"device": options.device, "threads": options.threads}
    cluster = {"cluster": options.cluster, "workers": options.workers}
    table = None if options.table is None else str(options.table)
    bench = Bench(out, scale, machine, cluster, table, options.report, options.note)
    chosen = list(TARGETS.values()) if options.target == ALL else [TARGETS[options.target]]
    open_run(out, {"command": "reproduce", "scale": options.scale})
    with in_use(out):
        return {"targets": {target.name: _reproduced(target, bench) for target in chosen}, "folder": str(out)}


def _check_weights(options: Reproduce) -> None:
    from arquant.reporting.reproduction_scales import SIGMAS

    known = [f"{network}@{sigma:g}" for network in ("resnet50", "mobilenetv2", "vit_tiny") for sigma in SIGMAS]
    for name in options.weights:
        if name not in known:
            raise InputError(f"weights are stated as NETWORK@SIGMA=MODEL, one of {', '.join(known)}; got {name!r}")
        if not name.startswith("vit") and options.imagenet is None:
            raise InputError(f"weights of {name} are for ImageNet: state its DATA too, --imagenet folder:DIR")


def _reproduced(target: "Target", bench: "Bench") -> dict[str, Any]:
    """Run what a target still needs, and write and return its tables."""
    from arquant.reporting.reproduction import figures_of, tables_of

    results: dict[str, Mapping[str, Any]] = {}
    jobs = target.jobs(bench.scale)
    for number, (job, parts) in enumerate(jobs, start=1):
        known = bench.known(job)
        if missing := [part for part in parts if part not in known]:
            bench.note(f"{target.name}: {job.folder}, {number} of {len(jobs)}: {', '.join(missing)}")
            known = {**known, **bench.run(job, missing)}
            bench.keep(job, known)
        results[job.folder] = known
    main, settings = tables_of(target, bench.scale, results)
    found = {
        "title": target.title, "place": target.place, "scale": bench.scale.name,
        "rows": [
            {"row": row.label, "ours": dict(figures_of(row, results)), "paper": dict(row.paper)}
            for row in target.rows(bench.scale)
        ],
        "settings": [dict(zip(("what", "paper", "here"), row, strict=True)) for row in settings.rows],
    }  # fmt: skip
    _write(target, bench, results, (main, settings), found)
    return found


def _write(
    target: "Target", bench: "Bench", results: Mapping[str, Any], tables: Sequence[Any], found: Mapping[str, Any]
) -> None:
    """Write a target's tables in every format, and its figure where matplotlib is there to draw it for print."""
    from arquant.base.errors import MissingExtraError
    from arquant.base.files import envelope, write_json
    from arquant.reporting import reproduction
    from arquant.reporting.html import tables_page
    from arquant.reporting.paper_figures import save_figures
    from arquant.reporting.tables import latex, markdown, text

    scale, out = bench.scale, bench.out
    draw = reproduction.policy_charts if target.name == "policies" else reproduction.charts_of
    charts = draw(target, scale, results)
    texts = {
        "csv": reproduction.to_csv(target, scale, results), "html": tables_page(target.title, tables, charts),
        **{suffix: "\n".join(map(write, tables)) for suffix, write in (("txt", text), ("md", markdown), ("tex", latex))},
    }  # fmt: skip
    for suffix, written in texts.items():
        (out / f"{target.name}.{suffix}").write_text(written, encoding="utf-8")
    write_json(out / f"{target.name}.json", envelope(SCHEMA, VERSION, found))
    if charts:
        try:
            save_figures(tuple(charts), out / "figures")
        except MissingExtraError as error:
            bench.note(str(error))


@reproduce.shown
def _show(result: dict[str, Any], options: Reproduce, console: "Console") -> None:
    if options.target is None:
        width = max(map(len, result["targets"]))
        rows = [f"  {name:{width}}  {each['title']} ({each['place']})" for name, each in result["targets"].items()]
        console.result(
            result, ["targets:", *rows, "", "arquant reproduce TARGET --scale smoke|small|paper; all runs all"]
        )
        return
    suffix = {"text": "txt", "md": "md", "latex": "tex", "csv": "csv"}[options.format]
    folder = Path(result["folder"])
    texts = [(folder / f"{name}.{suffix}").read_text(encoding="utf-8") for name in result["targets"]]
    lines = [line for text in texts for line in text.splitlines()]
    console.result(result, [*lines, f"folder: {folder}"])
