"""`arquant train`."""

from typing import Any

from jsonargparse import ArgumentParser

from arquant.cli import Command
from arquant.cli.arguments import (
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


def _train_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_data(parser)
    group = parser.add_argument_group("training")
    group.add_argument(
        "--sigma", type=float, required=True, help="standard deviation of the noise; 1.0 is black to white"
    )
    group.add_argument("--epochs", type=float, default=64.0, help="passes over the images")
    group.add_argument("--steps", type=integer, default=0, help="optimizer steps; overrides --epochs")
    group.add_argument("--batch", type=integer, default=256, help="noisy images per step, all copies counted")
    group.add_argument("--lr", type=float, default=0.2, help="peak learning rate")
    group.add_argument("--momentum", type=float, default=0.9, help="of stochastic gradient descent")
    group.add_argument("--nesterov", type=bool, default=True, help="Nesterov's kind of momentum")
    group.add_argument("--weight-decay", type=float, default=2e-4, help="pull of the weights towards zero")
    group.add_argument(
        "--schedule",
        choices=["onecycle", "step", "plateau", "constant"],
        default="onecycle",
        help="how the learning rate changes",
    )
    group.add_argument("--warm-up", type=float, default=0.1, help="share of the steps that onecycle warms up over")
    group.add_argument("--milestones", type=listed(float), default=(), help="epochs at which the step schedule decays")
    group.add_argument("--decay", type=float, default=0.1, help="factor of the step and plateau schedules")
    group.add_argument("--augment", type=bool, default=True, help="random crops and flips")
    group.add_argument(
        "--consistency",
        type=float,
        default=0.0,
        help="weight of the penalty on answers that differ between two noisy copies of an image (larger radii); default 0",
    )
    group.add_argument(
        "--distill",
        type=float,
        default=0.0,
        help="weight, in the loss, of the probabilities that the network training starts from gives, 0 to 1; default 0",
    )
    group.add_argument(
        "--precision", choices=["float32", "bfloat16"], default="float32", help="of the products in training"
    )
    group.add_argument("--init", type=str, help="a MODEL to start from instead of random weights")
    group.add_argument("--seed", type=integer, default=0, help="of first weights, order, crops and noise")
    group.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda, ...")
    add_training_threads(group)
    group.add_argument("--out", type=str, required=True, help="run folder; the same command resumes")
    add_tensorboard(parser)
    add_output(parser)


_RECIPE_FIELDS = (
    "sigma", "epochs", "steps", "batch", "lr", "momentum", "nesterov", "weight_decay", "schedule", "warm_up", "milestones",
    "decay", "augment", "distill", "consistency", "precision", "seed",
)  # fmt: skip


def _train(args: Any, console: Console) -> None:
    from arquant.commands.model_training import train
    from arquant.loading.roles import has_all_roles
    from arquant.models.factory import needs_consent
    from arquant.training.recipe import Recipe

    recipe = Recipe(**{name: args[name] for name in _RECIPE_FIELDS})
    with console.progress(args.tensorboard) as report:
        record = train(
            args.model, args.data, recipe=recipe, out=args.out, init=args.init, images=args.images, device=args.device,
            threads=args.threads, report=report, **model_options(args),
        )  # fmt: skip
    arch = args.arch or args.model
    more = f" --arch {arch}" if needs_consent(arch) else ""
    if tuple(args.bounds) != (0.0, 1.0):
        more += " --bounds " + ",".join(f"{bound:g}" for bound in args.bounds)
    data = args.data if has_all_roles(args.data) else "OTHER_DATA"
    few = ["the sample has few images to learn from: `arquant data cifar10` fetches all 50,000, as DATA cifar10"]
    console.result(
        record,
        [
            *(few if args.data == "sample" else []),
            f"trained {args.model} for {record['steps']:,} steps in {duration(record['seconds'])}: "
            f"accuracy on noisy training images {record['accuracy']:.1%}",
            f"weights: {args.out}/model.safetensors",
            f"next: arquant certify {args.out}/model.safetensors {data} --sigma {recipe.sigma:g}{more}",
        ],
    )


COMMANDS = [
    Command("train", "train a base classifier with noisy images", _train_arguments, _train, resumes=True),
]
