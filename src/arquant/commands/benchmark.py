"""`arquant benchmark`: methods side by side, all else equal."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from arquant.base.errors import InputError
from arquant.base.options import PYTHON_ONLY, built
from arquant.certification.options import CertificateOptions, ClusterOptions
from arquant.commands.command import Watched, command
from arquant.commands.shared import DataLike, EngineOptions, LogOptions, ModelLike, ModelOptions, PathLike
from arquant.loading.options import RoleOptions
from arquant.noise.options import NoiseOptions
from arquant.quantization.options import QuantizerOptions
from arquant.reporting.options import TableFormat
from arquant.searching.options import FineTuningOptions, LoopOptions, PresetName, TaskOptions, WidthOptions

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.searching.run import SearchRun
    from arquant.searching.task import Task

METHODS = ("arq", "haq", "limpq", "hawq", "nipq", "pact", "uniform", "random")
FILES: dict[str, TableFormat] = {"benchmark.md": "md", "benchmark.tex": "latex", "benchmark.csv": "csv"}


@dataclass(frozen=True)
class Benchmark(
    NoiseOptions, WidthOptions, FineTuningOptions, QuantizerOptions, CertificateOptions, RoleOptions, ModelOptions,
    EngineOptions, ClusterOptions, LogOptions, Watched,
):  # fmt: skip
    """What to compare"""

    model: ModelLike
    """a float MODEL with weights, as of arquant search"""
    data: DataLike = "sample"
    """sample, cifar10[:DIR], folder:DIR, npz:FILE, package.module:factory"""
    _: KW_ONLY
    budget: str
    """one budget, as of arquant search: bops<=3bit, ..."""
    out: PathLike
    """folder, with one for each method below it; the same command resumes, other methods or seeds may be added"""
    methods: tuple[str, ...] = METHODS
    """which, of those of arquant search and of atmc, icr; the others are compared with the first"""
    seeds: int = 3
    """full fine-tunings of every method's result; 3 or more for intervals"""
    native: bool = False
    """let each method have the quantizer of its paper (limpq: steps, hawq, icr: per channel, haq: clips by kl)"""
    preset: PresetName | None = None
    """the paper's settings, as of arquant search, for all methods"""
    trials: int | None = None
    """end each search after so many candidates"""
    hours: float | None = 1.0
    """end each search after so many hours; --trials alone lifts this limit"""
    round: int = LoopOptions.round
    """candidates that each search asks for at once, for as many workers of --cluster"""
    search_images: int | None = LoopOptions.search_images
    """images that candidates are scored on; up to 500 if not given"""
    search_n: int = LoopOptions.search_n
    """votes per image of a candidate"""
    reference_n: int = LoopOptions.reference_n
    """votes per image of the float model"""
    table: Annotated[tuple[PathLike, ...], "repeated"] = ()
    """latency or energy per layer; may be repeated"""
    images: str | None = None
    """which certify images: every:20 | most:500 (evenly spaced) | first:500 | 0-499; all if not given"""
    format: TableFormat = "text"
    """how the table is printed; DIR has it as Markdown, LaTeX, CSV and JSON"""
    compiled: Annotated[bool | None, PYTHON_ONLY] = None
    """compile the training step; by default where so many steps are planned that it pays"""

    @staticmethod
    def preset_values(stated: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a preset implies, and which of trials and hours, and of steps and epochs, count."""
        known = {item.name for item in fields(Benchmark)}
        about = {name: value for name, value in stated.items() if name in ("preset", "steps", "epochs")}
        implied = TaskOptions.preset_values({**about, "strategy": "uniform"})
        values = {name: value for name, value in implied.items() if name in known}
        return values | ({"hours": None} if "trials" in stated else {})

    def task_options(self) -> TaskOptions:
        """Return them as options of a search by the first method that leaves the quantizer to all, else by `uniform`."""
        from arquant.searching.method import find_method
        from arquant.searching.trained_methods import TRAINED

        names = {item.name for item in fields(self)}
        own = {item.name: getattr(self, item.name) for item in fields(TaskOptions) if item.name in names}
        searching = (name for name in self.methods if name not in TRAINED)
        first = next((name for name in searching if find_method(name).quantizer is None), "uniform")
        return built(TaskOptions, {**own, "strategy": first, "controls": ()})


@command(
    Benchmark,
    "compare methods of search: one protocol, several seeds, paired differences",
    common=("methods", "seeds", "native", "trials", "hours", "images", "n", "final_epochs", "format", "arch", "input"),
    examples=(
        'arquant benchmark resnet20:sigma=0.5 cifar10 --sigma 0.5 --budget "bops<=3bit" \\\n'
        "      --methods arq,haq,limpq,hawq,nipq,pact,uniform,random --seeds 3 --out runs/benchmark",
    ),
    resumes=True,
)
def benchmark(options: Benchmark) -> dict[str, Any]:
    """Let every method choose a policy within one budget, fine-tune and certify each choice with every seed, and compare.

    Float network, images, noise, fixed layers, quantizer (unless `native`), fine-tuning and cost are the same for all; the
    float network is fine-tuned and certified alike. Each search is in `out/METHOD`, its models in `out/METHOD/seed-K`; of
    methods that chose the same policy one model per seed is made. A method whose models cannot be had is a row that says so.
    `atmc` and `icr` do not search: they have 8 bits everywhere and a fine-tuning of their own, from the same float network.

    Returns:
        The rows, which are also in `out/benchmark.json`: means, standard deviations, costs, paired differences from the first.

    Raises:
        InputError: an unknown method, one that cannot keep the budget, one with a quantizer of its own without `native`.
        MismatchError: the folder holds another benchmark.
    """
    from arquant.base.file_lock import in_use
    from arquant.base.run_folder import open_run
    from arquant.loading.run_images import check_unseen
    from arquant.quantization.latency import read_table
    from arquant.reporting.benchmark_page import keep
    from arquant.reporting.benchmark_tables import FORMATS, Comparison
    from arquant.searching.benchmarking import FIRST_SEED
    from arquant.searching.benchmarking import Benchmark as Runs
    from arquant.searching.task import prepare

    _check(options)
    task = prepare(options.task_options(), options.note)
    runs = _searches(task, options)
    check_unseen(task.classifier, task.roles.certify)
    out, seeds = Path(options.out), [options.seed + FIRST_SEED + place for place in range(options.seeds)]
    open_run(out, _protocol(task, options))
    with in_use(out):
        contenders = Runs(out, runs, seeds, options.compiled).contenders()
        space = task.spaces[0]
        found = Comparison(
            contenders, options.methods[0], space.layers, [read_table(path) for path in task.tables.values()]
        )
        result = {
            "budget": space.budget.text, "first": options.methods[0], "seeds": seeds, "native": options.native,
            "sigma": options.sigma, "images": len(task.roles.certify), "constant_acr": found.constant_acr(),
            "certified_with": f"n = {options.n:,}, alpha = {options.alpha:g}, sigma = {options.sigma:g}",
            "rows": found.rows(),
        }  # fmt: skip
        keep(out, result)
        for name, kind in FILES.items():
            (out / name).write_text(FORMATS[kind](result), encoding="utf-8")
    return result


def _check(options: Benchmark) -> None:
    if not options.methods or len(set(options.methods)) < len(options.methods):
        raise InputError(f"state one or more different methods, got {', '.join(options.methods) or 'none'}")
    if options.seeds < 1:
        raise InputError(f"seeds must be at least 1, got {options.seeds}")


def _searches(task: "Task", options: Benchmark) -> "dict[str, SearchRun]":
    """Return the search of every method; each refuses now what it cannot do."""
    from arquant.engines.choice import EngineOptions as Engines
    from arquant.engines.pool import cluster_of, threads_of
    from arquant.quantization.latency import read_table
    from arquant.searching.benchmarking import options_for
    from arquant.searching.options import reward_of
    from arquant.searching.run import SearchRun
    from arquant.searching.study import Limits
    from arquant.searching.task import spaces_of
    from arquant.searching.trained_methods import TRAINED

    cluster = cluster_of(options.cluster, options.workers)
    engines = Engines(**{**options.engine_options, "threads": threads_of(cluster, options.threads)})
    smoothing = task.options.smoothing(engines, cluster)
    smoothing.settings(len(task.roles.certify))
    if len(task.spaces) > 1:
        raise InputError(f"a benchmark has one budget, got {len(task.spaces)} in {options.budget}")
    runs = {}
    for name in options.methods:
        own = options_for(name, task.options, native=options.native)
        reward_of(own)
        spaces = task.spaces
        if name in TRAINED:
            TRAINED[name].policy(spaces[0])
        elif own.learn != task.options.learn:  # another quantizer may take other bytes
            tables = [read_table(path) for path in task.tables.values()]
            spaces = spaces_of(task.classifier, replace(options.task_options(), strategy=name), tables)
        runs[name] = SearchRun(
            Path(options.out) / name, task.classifier.snapshot(), task.roles, spaces, own,
            Limits(options.trials, options.hours), engines, smoothing, task.config, options.report, options.note,
            options.compiled, task.tables, cluster,
        )  # fmt: skip
    return runs


def _protocol(task: "Task", options: Benchmark) -> dict[str, Any]:
    """Return what all methods have in common, now and when others are added."""
    of_a_method = ("strategy", "strategy_options", "reward", "racing", "shortlist", "controls")
    common = {name: value for name, value in task.options.to_json().items() if name not in of_a_method}
    return {**task.config, **common, "command": "benchmark", "native": options.native}


@benchmark.shown
def _show(result: dict[str, Any], options: Benchmark, console: "Console") -> None:
    from arquant.reporting.benchmark_tables import FORMATS

    console.result(result, [*FORMATS[options.format](result).splitlines(), f"folder: {options.out}"])
