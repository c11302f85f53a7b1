"""`arquant certify` and `arquant predict`."""

from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli import Command
from arquant.cli.arguments import (
    add_data,
    add_engine,
    add_model,
    add_output,
    add_smoothing,
    integer,
    model_options,
    smoothing_options,
)
from arquant.commands.console import Console


def _certify_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_data(parser, default=None)
    add_smoothing(parser)
    group = parser.add_argument_group("certificate")
    group.add_argument("--n0", type=integer, default=100, help="samples that select the class")
    group.add_argument(
        "--label-directed", action="store_true", help="bound the label's probability; no n0 (evaluation)"
    )
    group.add_argument(
        "--multiclass", action="store_true", help="bound the runner-up too; larger radii, not comparable"
    )
    group.add_argument("--family-wise", action="store_true", help="all certificates hold together: alpha / images each")
    group.add_argument(
        "--adaptive", action="store_true", help="stop early where the outcome is clear; alpha is paid for"
    )
    group.add_argument(
        "--tolerance", type=float, help="radius, in units of sigma, that --adaptive may give away; default 0.02"
    )
    group.add_argument("--out", type=str, help="run folder; default runs/certify-<id>; the same command resumes")
    group.add_argument(
        "--compat", action="store_true", help="radii with 3 decimals, as the field's files have them, not 8"
    )
    add_engine(parser)
    _add_precision(parser)
    add_output(parser)


def _add_precision(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        default="float32",
        help="arithmetic of a float model; bfloat16 is faster where the processor has it, but another function: certify and "
        "predict with the same",
    )


def _certify(args: Any, console: Console) -> None:
    from arquant.certification.run import certify
    from arquant.commands.metrics import metrics, metrics_lines

    with console.progress() as report:
        run = certify(
            args.model,
            args.data,
            n0=args.n0,
            label_directed=args.label_directed,
            multiclass=args.multiclass,
            family_wise=args.family_wise,
            adaptive=args.adaptive,
            tolerance=args.tolerance,
            precision=args.precision,
            compat=args.compat,
            report=report,
            note=console.note,
            **smoothing_options(args),
            **model_options(args),
        )
    summary = {**metrics(run.path), "certificates": str(run.path)}
    console.result(summary, metrics_lines(summary))


def _predict_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_data(parser, default=None)
    add_smoothing(
        parser,
        n=1000,
        risk="probability that an answer is not the smoothed model's, per image",
        seed="of the noise; default: other noise every time",
    )
    parser.set_defaults(seed=None)
    parser.add_argument("--out", type=str, help="also write the predictions to this TSV file")
    add_engine(parser)
    _add_precision(parser)
    add_output(parser)


def _predict(args: Any, console: Console) -> None:
    from arquant.commands.prediction import predict, prediction_lines

    with console.progress() as report:
        options = {**smoothing_options(args), **model_options(args)}
        predictions = predict(args.model, args.data, precision=args.precision, report=report, **options)
    console.result([vars(p) for p in predictions], prediction_lines(predictions))


COMMANDS = [
    Command(
        "certify",
        "prove radii within which a smoothed model's answers cannot change",
        _certify_arguments,
        _certify,
        resumes=True,
    ),
    Command("predict", "classify with the smoothed model, or abstain", _predict_arguments, _predict),
]
