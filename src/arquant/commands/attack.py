"""`arquant attack`: move images until a model is wrong, and hold its certificates against that."""

from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arquant.base.errors import InputError
from arquant.commands.command import Watched, command
from arquant.commands.shared import DataLike, ImageOptions, ModelLike, ModelOptions, PathLike, PreciseEngineOptions
from arquant.noise.options import OwnNoiseOptions

if TYPE_CHECKING:
    from arquant.certification.subject import Subject
    from arquant.commands.console import Console
    from arquant.training.attacks import Attack as Moves


@dataclass(frozen=True)
class Attack(OwnNoiseOptions, PreciseEngineOptions, ImageOptions, ModelOptions, Watched):
    """Attack"""

    model: ModelLike
    """a MODEL with weights and gradients: resnet20:sigma=0.5, a run folder, model.safetensors, weights.pt with --arch, ..."""
    data: DataLike | None = None
    """sample, cifar10[:DIR], folder:DIR, npz:FILE; what the run folder kept to certify, else sample, if not given"""
    _: KW_ONLY
    epsilon: tuple[float, ...]
    """how far images may be moved, 1.0 is black to white; several: 0.25,0.5,1"""
    attack: Literal["fgsm", "pgd"] = "pgd"
    """one step along the gradient, or many, each followed by a projection"""
    norm: Literal["l2", "linf"] = "l2"
    """in which epsilon is measured"""
    steps: int = 20
    """of pgd"""
    judge: Literal["smoothed", "plain"] = "smoothed"
    """who says what an image is: PREDICT of the smoothed model, or the network without noise; it is also what is attacked"""
    draws: int = 32
    """noisy copies per step, against the smoothed model"""
    n: int = 1000
    """noisy votes per image of PREDICT"""
    alpha: float = 0.001
    """probability that PREDICT's answer is not the smoothed model's, per image"""
    seed: int = 0
    """of noise and random starts"""
    certificates: PathLike | None = None
    """of this model, as a file or folder; those of the run folder if not given"""
    out: PathLike | None = None
    """also write a line per image and epsilon to this TSV file"""


@command(
    Attack,
    "move images until a model is wrong, beside its certified radii",
    common=("attack", "norm", "steps", "judge", "images", "n", "certificates", "out", "sigma", "arch", "input"),
    examples=(
        "arquant attack runs/w4 --epsilon 0.25,0.5,1 --images most:50",
        "arquant attack resnet20:sigma=0.5 sample --attack fgsm --norm linf --epsilon 0.0157 --judge plain",
    ),
)
def attack(options: Attack) -> dict[str, Any]:
    """Attack every image at each epsilon, against its label, and return how often the judge was right before and after.

    A failed attack proves nothing; a certificate does. Certificates stand beside it if they are of the same model, images,
    sigma and noise. They are of the smoothed model: against it, an attack that succeeds within a certified radius is a
    contradiction, which PREDICT shows by mistake with probability at most `alpha`.

    Returns:
        `judge`, `rows` (one per epsilon: clean_accuracy, attacked_accuracy, success, certified_accuracy, contradictions) and
        `images` (one per image and epsilon).
    """
    from arquant.certification import attack_run
    from arquant.certification.smoothing import Smoothed
    from arquant.certification.subject import find_subject
    from arquant.engines.choice import resolve_device
    from arquant.images.imageset import ALL
    from arquant.loading.run_images import run_images

    subject = find_subject(
        options.model, options.data, sigma=options.sigma, noise=options.noise, images=options.images, **options.model_options,
    )  # fmt: skip
    attacks = _attacks(options, subject)
    certificates = attack_run.certificates_for(
        subject, options.certificates,
        lambda: run_images(subject.run, "certify", subject.classifier, data=options.data, images=ALL), options.note,
    )  # fmt: skip
    device = str(resolve_device(options.device))
    smoothed: Smoothed | None = None
    if options.judge == "smoothed":
        frozen = replace(subject, classifier=subject.classifier.snapshot())
        smoothed = Smoothed(frozen.classifier, subject.sigma, noise=subject.noise, **options.engine_options)
        judge = attack_run.smoothed_judge(smoothed, n=options.n, alpha=options.alpha, seed=options.seed)
    else:
        judge = attack_run.plain_judge(subject, device)
    try:
        struck = attack_run.strike(
            subject, attacks, judge, certificates, seed=options.seed, device=device, report=options.report
        )
    finally:
        if smoothed is not None:
            smoothed.close()
    result: dict[str, Any] = {
        "judge": options.judge, "attack": options.attack, "norm": options.norm, "sigma": subject.sigma,
        "rows": attack_run.summary_of(struck, options.judge),
        "images": [{**asdict(each), "succeeded": each.succeeded, "inside": each.inside} for each in struck],
    }  # fmt: skip
    if options.out is not None:
        _write(Path(options.out), result["images"])
    return result


def _attacks(options: Attack, subject: "Subject") -> "list[Moves]":
    from arquant.training import attacks

    if not options.epsilon:
        raise InputError("state how far images may be moved: --epsilon 0.25,0.5")
    found = []
    for epsilon in options.epsilon:
        if options.attack == "fgsm":
            made = attacks.fgsm(epsilon, options.norm)
        else:
            # noise is a random start already
            made = attacks.pgd(epsilon, options.norm, options.steps, random_start=options.judge == "plain")
        if options.judge == "smoothed":
            made = replace(made, sigma=subject.sigma, draws=options.draws, grid=subject.noise == "grid")
        found.append(made)
    return found


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    import csv

    from arquant.base.files import in_one_move

    with in_one_move(path) as scratch, scratch.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), dialect="excel-tab", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@attack.shown
def _show(result: dict[str, Any], options: Attack, console: "Console") -> None:
    who = (
        f"PREDICT of the smoothed model (sigma {result['sigma']:g})"
        if options.judge == "smoothed"
        else "the plain network"
    )
    lines = [f"{result['attack']} in {result['norm']}, judged by {who}"]
    for row in result["rows"]:
        certified, contradictions = row["certified_accuracy"], row["contradictions"]
        success = "–" if row["success"] is None else f"{row['success']:.1%}"
        lines.append(
            f"epsilon {row['epsilon']:g}: {row['clean_accuracy']:.1%} right, {row['attacked_accuracy']:.1%} under attack, "
            f"which succeeds on {success} of those; certified: {'–' if certified is None else f'{certified:.1%}'}"
            + (f"; {contradictions} within their certified radius" if contradictions else "")
        )
    if options.judge == "plain":
        lines.append("certificates are of the smoothed model, not of the plain network")
    lines.append("an attack that fails proves nothing; a certificate does")
    console.result(result, lines)
