"""Predict classes by the smoothed model's vote, or abstain; the table of what was predicted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError
from arquant.base.files import in_one_move
from arquant.base.progress import Report, Status, silent
from arquant.certificates.certificate import ABSTAIN
from arquant.certificates.table import format_time
from arquant.certification.smoothing import Prediction, Smoothed
from arquant.certification.subject import Subject

HEADER = "idx\tlabel\tpredict\tcorrect\ttime\tvotes\trunner_up\tn\tp_value\tradius\tclass\tfile"
"""the first five columns are those of the field's files; label and correct are -1 where nobody says what an image shows"""


def predict(
    subject: Subject, *, n: int, alpha: float, seed: int | None = None, out: str | Path | None = None,
    report: Report = silent, **engine: Any,
) -> list[Prediction]:  # fmt: skip
    """Return PREDICT's answer for each image: with probability at least 1 - alpha the smoothed model's class, or abstained.

    Args:
        seed: of the noise, which otherwise comes from the operating system.
        out: a TSV file to write as well.
        engine: keyword arguments of `Smoothed`. Certificates hold for the arithmetic they were made with: use the same.
    """
    if out is not None and (Path(out).is_dir() or not Path(out).parent.is_dir()):
        reason = "it is a folder" if Path(out).is_dir() else f"there is no folder {Path(out).parent}"
        raise InputError(f"cannot write {out}: {reason}")
    smoothed = Smoothed(subject.classifier, subject.sigma, noise=subject.noise, **engine)
    counted = 0

    def voted(votes: int) -> None:
        nonlocal counted
        counted += votes
        report(Status("predict", counted, len(subject.images) * n, "votes"))

    voted(0)
    try:
        predictions = smoothed.predict(subject.images, n=n, alpha=alpha, seed=seed, on_votes=voted)
    finally:
        smoothed.close()
    predictions = [_named(one, row, subject) for row, one in enumerate(predictions)]
    if out is not None:
        with in_one_move(Path(out)) as scratch:
            scratch.write_text("\n".join([HEADER, *map(_row, predictions)]) + "\n")
    return predictions


def _named(found: Prediction, row: int, subject: Subject) -> Prediction:
    """Return a prediction with the names of its class and its image, and without a label that nobody gave."""
    known = subject.images.class_names or subject.classifier.class_names
    name = known[found.predict] if known and found.predict != ABSTAIN else ""
    file = subject.names[row] if subject.names else ""
    return replace(found, class_name=name, file=file, label=found.label if subject.labelled else -1)


def prediction_lines(predictions: list[Prediction]) -> list[str]:
    """Return the table that people read, and the accuracy under it."""
    total, labelled = len(predictions), [p for p in predictions if p.label >= 0]
    abstained = sum(p.predict == ABSTAIN for p in predictions)
    right = f"{sum(p.predict == p.label for p in labelled) / total:.1%} right, " if labelled else ""
    return [HEADER, *map(_row, predictions), f"{total} images: {right}{abstained / total:.1%} abstained"]


def _row(p: Prediction) -> str:
    correct, time = -1 if p.label < 0 else int(p.predict == p.label), format_time(p.seconds)
    fields = (p.idx, p.label, p.predict, correct, time, p.votes, p.runner_up_votes, p.n, f"{p.p_value:.3g}")
    names = (name.replace("\t", " ").replace("\n", " ") for name in (p.class_name, p.file))
    return "\t".join([*map(str, fields), f"{p.radius:.8f}", *names])
