"""`arquant inspect`, `arquant cost`, `arquant quantize` and `arquant finetune`."""

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli import Command
from arquant.cli.arguments import (
    CLIP_RULES,
    NOISES,
    add_data,
    add_model,
    add_output,
    add_tensorboard,
    add_training_threads,
    integer,
    listed,
    model_options,
)
from arquant.commands.console import Console, duration


def _inspect_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_output(parser)


def _inspect(args: Any, console: Console) -> None:
    from arquant.commands.inspection import inspect, inspect_lines

    facts = inspect(args.model, **model_options(args))
    console.result(facts, inspect_lines(facts))


def _add_policy(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("policy")
    group.add_argument("--bits", type=str, help="the same widths for all layers but first and last: 3, or w3a4")
    group.add_argument("--policy", type=str, help="a policy.json")
    group.add_argument(
        "--keep", action="append", type=str, default=[], help="fix layers by pattern: 'head.*=8'; repeatable"
    )


def _cost_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    _add_policy(parser)
    parser.add_argument(
        "--convention", choices=["exact", "paper"], default="exact", help="how bit operations are counted"
    )
    parser.add_argument("--table", type=str, help="latency table: HAQ's .npy (layer, w-1, a-1, cycles) or our .json")
    group = parser.add_argument_group("make a latency table (a bit-serial roofline: an estimate)")
    group.add_argument("--make-table", type=str, help="write the table of this model to FILE.npy or FILE.json")
    group.add_argument("--table-batch", type=integer, default=16, help="images per batch")
    group.add_argument("--rows", type=integer, default=16, help="dot-product units along output pixels")
    group.add_argument("--columns", type=integer, default=16, help="dot-product units along output channels")
    group.add_argument("--word-bits", type=integer, default=256, help="bits of a dot product per cycle")
    group.add_argument("--clock-ghz", type=float, default=1.0, help="cycles per nanosecond")
    add_output(parser)


def _cost(args: Any, console: Console) -> None:
    from arquant.commands.inspection import check_widths, cost

    stated = args.bits is not None or args.policy is not None or bool(args.keep)
    if stated or args.make_table is None:
        check_widths(args.bits, args.policy, args.keep)
    made: dict[str, Any] = {}
    lines: list[str] = []
    if args.make_table is not None:
        made = {"table": _make_table(args)}
        lines = [f"latency table (estimated): {made['table']}"]
    if not stated:
        console.result(made, lines)
        return
    result = cost(
        args.model,
        bits=args.bits,
        policy=args.policy,
        keep=args.keep,
        convention=args.convention,
        table=made.get("table", args.table),
        **model_options(args),
    )
    console.result({**made, **result}, [*lines, *_cost_lines(result, args.convention), _table_line(result)])


def _make_table(args: Any) -> str:
    from arquant.base.errors import InputError
    from arquant.commands.inspection import make_latency_table
    from arquant.quantization.latency import BitSerial

    if args.table is not None:
        raise InputError(f"--make-table {args.make_table} and --table {args.table} are two tables; give one of them")
    device = BitSerial(
        batch=args.table_batch, rows=args.rows, columns=args.columns, word_bits=args.word_bits, clock_ghz=args.clock_ghz
    )
    return str(make_latency_table(args.model, args.make_table, accelerator=device, **model_options(args)))


def _table_line(result: dict[str, Any]) -> str:
    """What a table says: the latency, or the quantity that it is of, in its own unit."""
    counted = ("gbops", "percent_of_fp32", "bytes", "latency_ms", "not_counted")
    for name, value in result.items():
        if name not in counted:
            return f"{name:15} {value:g} (in the unit of the table)"
    latency = "unknown without a table (--table)" if result["latency_ms"] is None else f"{result['latency_ms']:.2f} ms"
    return f"latency         {latency}"


def _cost_lines(result: dict[str, Any], convention: str) -> list[str]:
    names = result.get("not_counted", [])
    left_out = [f"not counted     {', '.join(names)}: stays in float, see arquant inspect"] if names else []
    return [
        *left_out,
        f"bit operations  {result['gbops']:.4f} G ({convention} convention), {result['percent_of_fp32']:.2f} % of float32",
        f"weights         {result['bytes']:,} bytes",
    ]


def _quantize_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_data(parser)
    _add_policy(parser)
    group = parser.add_argument_group("quantization")
    group.add_argument(
        "--sigma", type=float, required=True, help="noise of the calibration images; 1.0 is black to white"
    )
    group.add_argument(
        "--noise", choices=NOISES, default="grid",
        help="kind of that noise, which the certificates of the run then have too",
    )  # fmt: skip
    group.add_argument(
        "--clip", choices=CLIP_RULES, default="auto", help="how ranges are chosen; auto: kl up to 2 bits, else mse"
    )
    group.add_argument("--per-channel", action="store_true", help="a scale per output channel of each weight")
    group.add_argument(
        "--learn", choices=["pact", "lsq"], default="pact", help="what fine-tuning learns: clips or steps"
    )
    group.add_argument("--estimate-bn", action="store_true", help="re-estimate BatchNorm statistics")
    group.add_argument(
        "--calibration-images", type=integer, default=512, help="how many of them at most, evenly spaced"
    )
    group.add_argument("--seed", type=integer, default=0, help="of the noise on the calibration images")
    group.add_argument("--out", type=str, required=True, help="run folder")
    add_output(parser)


def _quantize(args: Any, console: Console) -> None:
    from arquant.commands.quantizing import quantize
    from arquant.loading.roles import has_all_roles
    from arquant.models.factory import needs_consent

    result = quantize(
        args.model,
        args.data,
        sigma=args.sigma,
        out=args.out,
        bits=args.bits,
        policy=args.policy,
        keep=args.keep,
        clip=args.clip,
        per_channel=args.per_channel,
        learn=args.learn,
        estimate_bn=args.estimate_bn,
        noise=args.noise,
        images=args.images,
        calibration_images=args.calibration_images,
        seed=args.seed,
        **model_options(args),
    )
    arch = args.arch or args.model
    more = f" --arch {arch}" if needs_consent(arch) else ""
    data = "" if has_all_roles(args.data) else " OTHER_DATA"
    lines = [
        *_cost_lines(result, "exact"),
        f"file            {result['file_bytes']:,} bytes: weights {result['weight_bytes']:,}, float parameters "
        f"{result['float_bytes']:,}, header {result['header_bytes']:,}, record of seen images {result['seen_bytes']:,}",
        f"model: {result['model']}, policy: {result['policy']}",
        f"next: arquant finetune {args.out}{more}; arquant certify {args.out}{data} --sigma {args.sigma:g}{more}",
    ]
    console.result(result, lines)


def _finetune_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder of arquant quantize or arquant search")
    parser.add_argument("--data", type=str, help="images to train on; default: the run's")
    parser.add_argument("--arch", type=str, help="the run's package.module:factory, to allow its code to run")
    group = parser.add_argument_group("fine-tuning (defaults: ours, or the preset's)")
    group.add_argument(
        "--preset", choices=["paper-cifar", "paper-imagenet"], help="the paper's recipe; docs/paper-vs-code.md"
    )
    group.add_argument("--sigma", type=float, help="noise; default: the run's")
    group.add_argument("--epochs", type=float, help="default 10")
    group.add_argument("--steps", type=integer, help="optimizer steps; overrides --epochs")
    group.add_argument("--batch", type=integer, help="noisy images per step, all copies counted; default 256")
    group.add_argument("--lr", type=float, help="default 0.05")
    group.add_argument("--weight-decay", type=float, help="default 2e-4")
    group.add_argument("--schedule", choices=["onecycle", "step", "plateau", "constant"], help="default onecycle")
    group.add_argument("--milestones", type=listed(float), help="epochs at which the step schedule decays")
    group.add_argument(
        "--distill", type=float, help="weight of the float model's probabilities in the loss, 0 to 1; default 1"
    )
    group.add_argument(
        "--consistency",
        type=float,
        help="weight of the penalty on answers that differ between two noisy copies of an image; default 1",
    )
    group.add_argument(
        "--freeze-batchnorm", action="store_true", default=None, help="leave BatchNorm statistics as they are"
    )
    group.add_argument("--settle-batchnorm", type=integer, help="noisy batches to average BatchNorm over at the end")
    group.add_argument("--clip-lr", type=float, help="learning rate of clips, as a multiple of that of the weights")
    group.add_argument(
        "--precision", choices=["float32", "bfloat16"], help="default: bfloat16 where this machine has it"
    )
    group.add_argument("--seed", type=integer, help="default 0")
    group.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda, ...")
    add_training_threads(group)
    add_tensorboard(parser)
    add_output(parser)


_RECIPE_FIELDS = (
    "epochs", "steps", "batch", "lr", "weight_decay", "schedule", "milestones", "distill", "consistency",
    "freeze_batchnorm", "settle_batchnorm", "clip_lr", "precision", "seed",
)  # fmt: skip


def _finetune(args: Any, console: Console) -> None:
    from arquant.commands.quantizing import finetune
    from arquant.loading.run_images import keeps_images

    fields = {name: args[name] for name in _RECIPE_FIELDS if args[name] is not None}
    with console.progress(args.tensorboard) as report:
        result = finetune(
            args.run,
            sigma=args.sigma,
            preset=args.preset,
            data=args.data,
            arch=args.arch,
            device=args.device,
            threads=args.threads,
            report=report,
            note=console.note,
            **fields,
        )
    data = "" if keeps_images(Path(args.run)) else " OTHER_DATA"
    console.result(
        result,
        [
            f"fine-tuned for {result['steps']:,} steps in {duration(result['seconds'])}: loss {result['loss']:.4f}, "
            f"accuracy on noisy training images {result['accuracy']:.1%}",
            f"model: {result['model']} ({result['file_bytes']:,} bytes)",
            f"next: arquant certify {args.run}{data}" + (f" --arch {args.arch}" if args.arch else ""),
        ],
    )


COMMANDS = [
    Command(
        "inspect",
        "list the layers that can be quantized, and what stays in float and why",
        _inspect_arguments,
        _inspect,
    ),
    Command("cost", "bit operations, bytes and latency of a policy; or make a latency table", _cost_arguments, _cost),
    Command("quantize", "quantize a model by a policy, without a search", _quantize_arguments, _quantize),
    Command(
        "finetune",
        "train a quantized model's accuracy back on noisy images",
        _finetune_arguments,
        _finetune,
        resumes=True,
    ),
]
