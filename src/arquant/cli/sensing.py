"""`arquant sensitivity`."""

from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser

from arquant.cli import Command
from arquant.cli.arguments import CLIP_RULES, NOISES, add_engine, add_model, add_output, integer, listed, model_options
from arquant.commands.console import Console

if TYPE_CHECKING:
    from arquant.searching.sensitivity_table import SensitivityTable

_OPTIONS = (
    "noise", "seed", "min_bits", "reward", "search_images", "search_n", "reference_n", "lr", "train_batch", "clip",
    "per_channel", "alpha",
)  # fmt: skip


def _arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "data", nargs="?", default="sample", help="sample (default), cifar10[:DIR], or DATA with roles below"
    )
    group = parser.add_argument_group("what to measure")
    group.add_argument(
        "--sigma", type=float, required=True, help="standard deviation of the noise; 1.0 is black to white"
    )
    group.add_argument("--out", type=str, required=True, help="folder for sensitivity.json; the same command resumes")
    group.add_argument("--base", type=str, default="8", help="widths of all layers but the one: 8, or w8a8")
    group.add_argument("--min-bits", type=integer, help="smallest width; default 2")
    group.add_argument("--keep", action="append", default=[], help="layers with fixed bits: 'head.*=8'")
    group.add_argument("--steps", type=integer, default=0, help="of fine-tuning before every score")
    group.add_argument("--lr", type=float, help="of fine-tuning; default 0.05")
    group.add_argument("--train-batch", type=integer, help="images per step of fine-tuning; default 256")
    group.add_argument(
        "--clip", choices=CLIP_RULES, help="how ranges are chosen; default auto: kl up to 2 bits, else mse"
    )
    group.add_argument("--per-channel", action="store_true", default=None, help="a scale per output channel")
    group = parser.add_argument_group("score (an estimate)")
    group.add_argument("--reward", type=str, help="acr-cv (default), acr, acr-signed, val, acc, acc@0.5, acr+acc, irs")
    group.add_argument("--search-images", type=integer, help="default 100")
    group.add_argument("--search-n", type=integer, help="votes per image of every policy; default 200")
    group.add_argument("--reference-n", type=integer, help="votes per image of the float model; default 1000")
    group.add_argument("--noise", choices=NOISES, help="default grid")
    group.add_argument("--alpha", type=float, help="of the bounds in the score; default 0.001")
    group.add_argument("--seed", type=integer, help="default 0")
    group = parser.add_argument_group("images (sample and cifar10 have all roles)")
    group.add_argument("--calibrate", type=str, help="DATA to calibrate and fine-tune on")
    group.add_argument("--certify", type=str, help="DATA that a later search certifies; left alone here")
    group.add_argument("--split", type=listed(float, 3), help="instead: percentages of DATA, as for search")
    add_engine(parser)
    add_output(parser)


def _run(args: Any, console: Console) -> None:
    from arquant.commands.sensing import sensitivity

    with console.progress() as report:
        table = sensitivity(
            args.model,
            args.data,
            sigma=args.sigma,
            out=args.out,
            base=args.base,
            steps=args.steps,
            calibrate=args.calibrate,
            certify=args.certify,
            split=args.split,
            engine=args.engine,
            device=args.device,
            batch=args.batch,
            threads=args.threads,
            model_options=model_options(args),
            keep=tuple(args.keep),
            report=report,
            note=console.note,
            **{name: args[name] for name in _OPTIONS if args[name] is not None},
        )
    console.result(table.to_json(), [*_lines(table), f"arquant report {args.out} draws {args.out}/sensitivity.json"])


def _lines(table: "SensitivityTable") -> list[str]:
    facts, longest = table.facts, max(map(len, table.values))
    columns = [(kind, bits) for kind in "wa" for bits in table.widths[:-1]]
    lines = [
        f"loss of {facts['score']} (an estimate) when one layer has fewer bits; all others {facts['base']}, where it is "
        f"{facts['base_score']:.4f}; {facts['steps']} steps of fine-tuning",
        " " * longest + "".join(f"{kind}{bits}".rjust(9) for kind, bits in columns),
    ]
    for name, kinds in table.values.items():
        cells = [kinds[kind].get(bits) for kind, bits in columns]
        lines.append(name.ljust(longest) + "".join(("" if cell is None else f"{cell:+.4f}").rjust(9) for cell in cells))
    return lines


SENSITIVITY = Command(
    "sensitivity",
    "measure what each layer loses at each width: an estimate for people and for the strategy ilp",
    _arguments,
    _run,
    resumes=True,
)
