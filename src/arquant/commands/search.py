"""`arquant search`: from a trained model and a budget to the quantized model with the largest certified radius."""

import errno
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from arquant.base.errors import InputError, Interrupted
from arquant.base.options import PYTHON_ONLY
from arquant.certification.options import ClusterOptions
from arquant.commands.command import Watched, command
from arquant.commands.shared import EngineOptions, LogOptions, PathLike
from arquant.searching.options import TaskOptions

if TYPE_CHECKING:
    from arquant.certification.certifier import Certifier as CertifierLike
    from arquant.commands.console import Console
    from arquant.searching.run import SearchRun
    from arquant.searching.task import Task
else:  # no command line can say it, and importing it would import torch
    CertifierLike = object


@dataclass(frozen=True)
class Search(TaskOptions, EngineOptions, ClusterOptions, LogOptions, Watched):
    """The run"""

    _: KW_ONLY
    out: PathLike
    """run folder; the same command resumes"""
    trials: int | None = None
    """end the loop after so many candidates, over all budgets"""
    hours: float | None = 1.0
    """end the loop after so many hours, once every budget is tried; --trials alone lifts this limit"""
    target_acr: float | None = None
    """end the loop at this estimated ACR"""
    compiled: Annotated[bool | None, PYTHON_ONLY] = None
    """compile the training step; by default where so many steps are planned that it pays"""
    certifier: Annotated[CertifierLike | None, PYTHON_ONLY] = None
    """scores candidates and certifies what ships; randomized smoothing if not given"""

    @staticmethod
    def preset_values(stated: Mapping[str, Any]) -> dict[str, Any]:
        """Add that a number of candidates takes the place of the hours."""
        return {**TaskOptions.preset_values(stated), **({"hours": None} if "trials" in stated else {})}


@command(
    Search,
    "find the bit-widths with the largest certified radius within a budget, and certify the model",
    common=(
        "hours", "trials", "strategy", "preset", "calibrate", "certify", "split", "images", "n", "final_epochs", "arch",
        "input",
    ),
    examples=(
        'arquant search resnet20:sigma=0.5 sample --sigma 0.5 --budget "bops<=3bit" --out runs/search',
        "arquant search weights.pt folder:photos --arch mynet:build --split 60,20,20 --sigma 0.25 \\\n"
        '      --budget "bops<=4bit,bytes<=100k" --budget "bops<=3bit" --out runs/mine',
    ),
    resumes=True,
)  # fmt: skip
def search(options: Search) -> dict[str, Any]:
    """Search the policy with the largest certified radius within each budget; fine-tune, freeze and certify it.

    Everything is written to the folder `out`. The same call on the same folder resumes, wherever it was stopped, and ends
    with the same result as one that was never stopped (same machine, engine, batch, threads; `hours` cut by the clock).
    With larger `trials` or `hours` a finished search goes on, by the schedule that it began with; if it then finds another
    winner, what it ended with before is kept in `out/earlier`.

    Returns:
        The summary, which is also in `out/summary.json`: policies, costs, estimates, certificates and paired differences
        to the controls.

    Raises:
        InputError: bad input: an unreachable budget, nothing to quantize, too few images, a full disk.
        MismatchError: the folder holds another search, or an image is in two roles.
        Interrupted: Ctrl-C; what was computed is kept, and `out/policy.json` has the best policy so far.
    """
    from arquant.engines.choice import EngineOptions as Engines
    from arquant.engines.pool import cluster_of, threads_of
    from arquant.loading.run_images import check_unseen
    from arquant.searching.run import SearchRun
    from arquant.searching.study import Limits
    from arquant.searching.task import prepare

    cluster = cluster_of(options.cluster, options.workers)
    task = prepare(options, options.note)
    engines = Engines(**{**options.engine_options, "threads": threads_of(cluster, options.threads)})
    smoothing = task.options.smoothing(engines, cluster)
    smoothing.settings(len(task.roles.certify))  # refused now, not after the search
    check_unseen(task.classifier, task.roles.certify)
    limits = Limits(options.trials, options.hours, options.target_acr)
    if options.trials is not None and options.trials < len(task.spaces):
        raise InputError(f"{options.trials} trials for {len(task.spaces)} budgets: every budget needs at least one")
    run = SearchRun(
        Path(options.out), task.classifier, task.roles, task.spaces, task.options, limits, engines,
        options.certifier or smoothing, _config(task, options), options.report, options.note, options.compiled, task.tables,
        cluster,
    )  # fmt: skip
    with _clear_errors(run):
        return run.work()


def _config(task: "Task", options: Search) -> dict[str, Any]:
    """Return what the run folder says; a search with another certifier is another search."""
    named = {} if options.certifier is None else {"certifier": type(options.certifier).__qualname__}
    return {**task.config, **named}


@contextmanager
def _clear_errors(run: "SearchRun") -> Iterator[None]:
    """Turn Ctrl-C and a full disk, or a used-up quota of it, into errors that say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {run.save_best()}; to go on: {_resume_command()}") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(
            f"no space left on the disk of {run.out}; all that was finished is kept: free some space, then {_resume_command()}"
        ) from error


def _resume_command() -> str:
    from arquant.base.provenance import command_line

    typed = command_line()
    return typed if shlex.split(typed)[:1] == ["arquant"] else "make the same call again"


@search.shown
def _show(summary: dict[str, Any], _options: Search, console: "Console") -> None:
    from arquant.searching.summary import summary_lines

    console.result(summary, summary_lines(summary))
