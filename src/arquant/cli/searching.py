"""`arquant search`."""

from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli import Command
from arquant.cli.arguments import (
    CLIP_RULES,
    NOISES,
    add_data,
    add_engine,
    add_model,
    add_output,
    add_tensorboard,
    integer,
    listed,
    model_options,
)
from arquant.cli.sensing import SENSITIVITY
from arquant.commands.console import Console

_OPTIONS = (
    "noise", "seed", "min_bits", "max_bits", "strategy", "reward", "search_images", "search_n", "reference_n", "alpha_zeta",
    "gamma", "shortlist", "shortlist_seeds", "shortlist_steps", "shortlist_n", "steps", "epochs", "lr", "schedule",
    "milestones", "final_steps", "final_epochs", "final_lr", "final_schedule", "final_milestones", "final_start", "train_batch",
    "train_images", "train_precision", "distill", "consistency", "freeze_batchnorm", "clip", "per_channel", "learn",
    "estimate_bn", "calibration_images", "n0", "n", "alpha", "label_directed", "multiclass", "family_wise", "adaptive",
    "tolerance",
)  # fmt: skip
"""passed on where they are stated; what is not stated is the preset's, or our default"""


def _arguments(parser: ArgumentParser) -> None:
    add_task(parser)
    group = parser.add_argument_group("the run")
    group.add_argument("--out", type=str, required=True, help="run folder; the same command resumes")
    group.add_argument("--trials", type=integer, help="end the loop after so many candidates, over all budgets")
    group.add_argument(
        "--hours",
        type=float,
        help="end the loop after so many hours, once every budget is tried; default 1 without --trials",
    )
    group.add_argument("--target-acr", type=float, help="end the loop at this estimated ACR")
    add_tensorboard(parser)
    add_output(parser)


def add_task(parser: ArgumentParser) -> None:
    """What is searched and how, without where to and how long."""
    add_model(parser)
    add_data(parser)
    group = parser.add_argument_group("what to find")
    group.add_argument(
        "--sigma", type=float, required=True, help="standard deviation of the noise; 1.0 is black to white"
    )
    group.add_argument(
        "--budget", action="append", required=True,
        help="bops<=3bit, bops<=1.5%, bops@paper<=4bit, bytes<=100k, ...; a comma joins limits; repeat for several points",
    )  # fmt: skip
    group.add_argument("--table", action="append", default=[], help="latency or energy per layer, for budgets on these")
    group.add_argument("--keep", action="append", default=[], help="layers with fixed bits: 'head.*=8'")
    group.add_argument("--min-bits", type=integer, help="smallest width of a searched layer; default 2")
    group.add_argument("--max-bits", type=integer, help="largest width; default 8")
    _add_loop(parser)
    _add_data_roles(parser)
    _add_finetuning(parser)
    _add_certificates(parser)
    add_engine(parser)


def _add_loop(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("search (defaults: for two cores, or the preset's)")
    group.add_argument(
        "--preset",
        choices=["paper-cifar", "paper-imagenet"],
        help="the paper's settings; what it leaves open is in docs/paper-vs-code.md",
    )
    group.add_argument(
        "--strategy", type=str, help="arq (default), arq-paper, additive, ilp, evolve, random, uniform, haq, pact"
    )
    group.add_argument("--option", action="append", default=[], help="of the strategy: NAME=VALUE; repeat for several")
    group.add_argument(
        "--reward", type=str, help="acr-cv, acr, acr-signed, val, acc, acc@0.5, acr+acc, irs; default: the strategy's"
    )
    group.add_argument("--no-racing", action="store_true", help="draw all votes of every candidate")
    group.add_argument("--search-images", type=integer, help="images that candidates are scored on; default up to 500")
    group.add_argument("--search-n", type=integer, help="votes per image of a candidate; default 200")
    group.add_argument("--reference-n", type=integer, help="votes per image of the float model; default 2000")
    group.add_argument("--alpha-zeta", type=float, help="of the reward irs; default 0.001")
    group.add_argument("--gamma", type=float, help="of the reward irs; default 0.99")
    group.add_argument(
        "--shortlist", type=integer, help="candidates that get a second look; default 3, of arq-paper and haq 1"
    )
    group.add_argument("--shortlist-seeds", type=integer, help="how often each is fine-tuned anew for that; default 2")
    group.add_argument(
        "--shortlist-steps", type=integer, help="steps of each of these; more than a candidate's: they decide alone"
    )
    group.add_argument(
        "--shortlist-n",
        type=integer,
        help="votes per image after each; default a quarter of --reference-n, or --search-n",
    )
    group.add_argument("--seed", type=integer, help="default 0")


def _add_data_roles(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("images (sample and cifar10 have all roles)")
    group.add_argument("--calibrate", type=str, help="DATA to calibrate and fine-tune on")
    group.add_argument(
        "--certify", type=str, help="DATA to certify, never seen by the search; --images selects of them"
    )
    group.add_argument(
        "--split", type=listed(float, 3), help="instead: percentages of DATA to calibrate, search, certify on"
    )


def _add_finetuning(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("quantization and fine-tuning")
    group.add_argument(
        "--clip", choices=CLIP_RULES, help="how ranges are chosen; default auto: kl up to 2 bits, else mse"
    )
    group.add_argument("--per-channel", action="store_true", default=None, help="a scale per output channel")
    group.add_argument("--learn", choices=["pact", "lsq"], help="what fine-tuning learns: clips (default) or steps")
    group.add_argument("--estimate-bn", action="store_true", default=None, help="re-estimate BatchNorm statistics")
    group.add_argument("--calibration-images", type=integer, help="default 512")
    group.add_argument("--steps", type=integer, help="fine-tuning steps of a candidate; default 60")
    group.add_argument("--epochs", type=float, help="or epochs")
    group.add_argument("--lr", type=float, help="of candidates; default 0.05")
    group.add_argument(
        "--schedule",
        choices=["onecycle", "step", "plateau", "constant"],
        help="how the learning rate of a candidate changes; default onecycle",
    )
    group.add_argument("--milestones", type=listed(float), help="epochs at which the step schedule decays")
    group.add_argument(
        "--train-batch", type=integer, help="noisy images per training step, all copies counted; default 256"
    )
    group.add_argument(
        "--train-images", type=integer, help="train on so many of the images only; default all, or the preset's"
    )
    group.add_argument(
        "--distill", type=float, help="weight of the float model's probabilities in the loss, 0 to 1; default 1"
    )
    group.add_argument(
        "--consistency",
        type=float,
        help="weight of the penalty on answers that differ between two noisy copies of an image; default 1",
    )
    group.add_argument(
        "--train-precision",
        choices=["float32", "bfloat16"],
        help="of fine-tuning; default: bfloat16 where this machine has it",
    )
    group.add_argument(
        "--freeze-batchnorm", action="store_true", default=None, help="leave BatchNorm statistics as they are"
    )
    group.add_argument("--final-epochs", type=float, help="of the winner and of the uniform control; default 10")
    group.add_argument("--final-steps", type=integer, help="or steps")
    group.add_argument("--final-lr", type=float, help="default 0.05")
    group.add_argument(
        "--final-schedule",
        choices=["onecycle", "step", "plateau", "constant"],
        help="how that learning rate changes; default onecycle",
    )
    group.add_argument("--final-milestones", type=listed(float), help="epochs at which the step schedule decays")
    group.add_argument("--final-start", choices=["float", "kept"], help="weights to start from; default float")


def _add_certificates(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("certificates")
    group.add_argument("--noise", choices=NOISES, help="default grid")
    group.add_argument("--n0", type=integer, help="samples that select the class; default 100")
    group.add_argument("--n", type=integer, help="samples per image; default 10000")
    group.add_argument(
        "--alpha", type=float, help="probability that a certificate may be wrong, per image; default 0.001"
    )
    group.add_argument("--label-directed", action="store_true", default=None, help="bound the label's probability")
    group.add_argument("--multiclass", action="store_true", default=None, help="bound the runner-up too")
    group.add_argument("--family-wise", action="store_true", default=None, help="all certificates hold together")
    group.add_argument("--adaptive", action="store_true", default=None, help="stop early where the outcome is clear")
    group.add_argument(
        "--tolerance", type=float, help="radius, in units of sigma, that --adaptive may give away; default 0.02"
    )
    group.add_argument(
        "--controls", type=listed(str), help="certified beside the result: float,uniform (default), or none"
    )


def _run(args: Any, console: Console) -> None:
    from arquant.commands.searching import search
    from arquant.searching.summary import summary_lines

    with console.progress(args.tensorboard) as report:
        summary = search(
            args.model, args.data, out=args.out, trials=args.trials, hours=args.hours, target_acr=args.target_acr,
            report=report, note=console.note, **task_options(args),
        )  # fmt: skip
    console.result(summary, summary_lines(summary))


def task_options(args: Any) -> dict[str, Any]:
    """The options of `add_task` as keyword arguments of the commands."""
    options = {name: args[name] for name in _OPTIONS if args[name] is not None}
    if args.controls is not None:
        options["controls"] = () if args.controls == ("none",) else args.controls
    names = (
        "sigma", "budget", "preset", "calibrate", "certify", "split", "images", "engine", "device", "batch", "threads",
    )  # fmt: skip
    return {
        **{name: args[name] for name in names},
        "tables": args.table,
        "model_options": model_options(args),
        "keep": tuple(args.keep),
        "strategy_options": _pairs(args.option),
        "racing": False if args.no_racing else None,
        **options,
    }


def _pairs(texts: list[str]) -> dict[str, str]:
    from arquant.base.errors import InputError

    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"an option of a strategy must be written NAME=VALUE, got {text!r}")
        pairs[name.strip()] = value.strip()
    return pairs


COMMANDS = [
    Command(
        "search",
        "find the bit-widths with the largest certified radius within a budget, and certify the model",
        _arguments,
        _run,
        resumes=True,
    ),
    SENSITIVITY,
]
