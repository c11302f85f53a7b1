"""`arquant predict`: classify with the smoothed model, or abstain."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from arquant.base.errors import InputError
from arquant.commands.command import Watched, command
from arquant.commands.shared import (
    DataLike,
    ImageOptions,
    ModelLike,
    ModelOptions,
    PathLike,
    Paths,
    PreciseEngineOptions,
)
from arquant.noise.options import OwnNoiseOptions

if TYPE_CHECKING:
    from arquant.certification.smoothing import Prediction
    from arquant.commands.console import Console


@dataclass(frozen=True)
class Predict(OwnNoiseOptions, PreciseEngineOptions, ImageOptions, ModelOptions, Watched):
    """Predict"""

    model: ModelLike
    """a MODEL with weights: resnet20:sigma=0.5, a run folder, model.safetensors, .onnx, OpenVINO .xml, weights.pt with
    --arch, timm:NAME, torchvision:NAME, package.module:factory"""
    data: DataLike | Paths = ()
    """what to classify: picture files, folders of pictures, npz archives; or one DATA with labels: sample, cifar10[:DIR],
    folder:DIR, npz:FILE, package.module:factory; what the run folder kept to certify, else sample, if not given"""
    _: KW_ONLY
    n: int = 1000
    """noisy votes per image"""
    alpha: float = 0.001
    """probability that an answer is not the smoothed model's, per image"""
    seed: int | None = None
    """of the noise; other noise every time if not given"""
    out: PathLike | None = None
    """also write the predictions to this TSV file"""


@command(
    Predict,
    "classify with the smoothed model, or abstain",
    common=("sigma", "noise", "images", "n", "alpha", "seed", "out", "engine", "arch", "input"),
    examples=("arquant predict runs/w4 photo.jpg holiday/", "arquant predict runs/w4 --n 1000 --images most:10"),
)
def predict(options: Predict) -> "list[Prediction]":
    """Return PREDICT's answers: with probability at least 1 - alpha per image, the class is the smoothed model's or abstained.

    `data` is a picture, a list of pictures and folders, a DATA or an ImageSet. Each answer has votes, the name of the class,
    the file, and the radius within which the smoothed model is proved, with probability at least 1 - alpha, to say the same.
    The noise comes from the operating system unless `seed` is given. Certificates hold for the arithmetic that they were
    made with: predict with the same `precision`.
    """
    from arquant.certification.predictions import predict as predict_classes
    from arquant.certification.subject import find_pictures, find_subject
    from arquant.loading.run_images import keeps_images

    how: dict[str, Any] = {
        "sigma": options.sigma, "noise": options.noise, "images": options.images, **options.model_options,
    }  # fmt: skip
    if isinstance(options.data, tuple) and options.data:
        subject = find_pictures(options.model, [str(word) for word in options.data], **how)
    else:
        subject = find_subject(options.model, None if isinstance(options.data, tuple) else options.data, **how)
        if isinstance(options.data, tuple) and subject.run is not None and not keeps_images(subject.run):
            raise InputError(
                f"DATA was not given, and {subject.run} kept no images to certify: name pictures, photo.jpg or folder:DIR"
            )
    return predict_classes(
        subject, n=options.n, alpha=options.alpha, seed=options.seed, out=options.out, report=options.report,
        **options.engine_options,
    )  # fmt: skip


@predict.shown
def _show(predictions: "list[Prediction]", _options: Predict, console: "Console") -> None:
    from arquant.certification.predictions import prediction_lines

    console.result([vars(prediction) for prediction in predictions], prediction_lines(predictions))
