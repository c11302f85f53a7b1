"""`arquant predict`: classes by the smoothed model's vote, or abstentions."""

from pathlib import Path
from typing import Any

from arquant.base.errors import InputError
from arquant.base.files import in_one_move
from arquant.base.progress import Report, Status, silent
from arquant.certificates.certificate import ABSTAIN
from arquant.certificates.table import format_time
from arquant.certification.smoothing import Prediction, Smoothed
from arquant.engines.base import Precision
from arquant.images.imageset import ImageSet
from arquant.loading.models import as_classifier
from arquant.loading.run_images import run_images, run_noise, run_of, run_sigma
from arquant.models.classifier import Classifier

HEADER = "idx\tlabel\tpredict\tcorrect\ttime\tvotes\trunner_up\tn\tp_value"
"""the first five columns are those of the field's files"""


def predict(
    model: str | Path | Classifier,
    data: str | ImageSet | None = None,
    *,
    sigma: float | None = None,
    noise: str | None = None,
    images: str | None = None,
    n: int = 1000,
    alpha: float = 0.001,
    seed: int | None = None,
    out: str | Path | None = None,
    engine: str = "auto",
    device: str = "auto",
    batch: int | None = None,
    threads: int | None = None,
    precision: Precision = "float32",
    report: Report = silent,
    **model_options: Any,
) -> list[Prediction]:
    """PREDICT: for each image, with probability at least 1 - alpha, the class is the smoothed model's or an abstention.

    The noise comes from the operating system unless `seed` is given. `out` is a TSV file to write as well. Without `data`,
    the images are those that the run kept for certification, or `sample`; without `sigma` or `noise`, it is the run's.
    Certificates hold for the arithmetic that they were made with: predict with the same `precision`.
    """
    run = run_of(model)
    classifier = as_classifier(model, **model_options)
    sigma, noise = run_sigma(run, sigma, classifier), run_noise(run, noise)
    image_set = run_images(run, "certify", classifier, data=data, images=images)
    if out is not None and (Path(out).is_dir() or not Path(out).parent.is_dir()):
        reason = "it is a folder" if Path(out).is_dir() else f"there is no folder {Path(out).parent}"
        raise InputError(f"cannot write {out}: {reason}")
    smoothed = Smoothed(
        classifier, sigma, noise=noise, engine=engine, device=device, batch=batch, threads=threads, precision=precision
    )
    counted = 0

    def voted(votes: int) -> None:
        nonlocal counted
        counted += votes
        report(Status("predict", counted, len(image_set) * n, "votes"))

    voted(0)
    try:
        predictions = smoothed.predict(image_set, n=n, alpha=alpha, seed=seed, on_votes=voted)
    finally:
        smoothed.close()
    if out is not None:
        with in_one_move(Path(out)) as scratch:
            scratch.write_text("\n".join([HEADER, *map(_row, predictions)]) + "\n")
    return predictions


def prediction_lines(predictions: list[Prediction]) -> list[str]:
    """The table that people read, and the accuracy under it."""
    right = sum(p.predict == p.label for p in predictions)
    abstained = sum(p.predict == ABSTAIN for p in predictions)
    total = len(predictions)
    return [
        HEADER,
        *map(_row, predictions),
        f"{total} images: {right / total:.1%} right, {abstained / total:.1%} abstained",
    ]


def _row(p: Prediction) -> str:
    correct, time = int(p.predict == p.label), format_time(p.seconds)
    fields = (p.idx, p.label, p.predict, correct, time, p.votes, p.runner_up_votes, p.n, f"{p.p_value:.3g}")
    return "\t".join(map(str, fields))
