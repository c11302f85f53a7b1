"""`arquant certify`: prove radii within which a smoothed model keeps its answers."""

from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Annotated

from arquant.base.options import PYTHON_ONLY
from arquant.certification.options import CertificateOptions, ClusterOptions
from arquant.commands.command import Watched, command
from arquant.commands.metrics import metrics, metrics_lines
from arquant.commands.shared import DataLike, ImageOptions, ModelLike, ModelOptions, PathLike, PreciseEngineOptions
from arquant.noise.options import OwnNoiseOptions

if TYPE_CHECKING:
    from arquant.certification.run import CertifyRun
    from arquant.commands.console import Console


@dataclass(frozen=True)
class Certify(
    OwnNoiseOptions, CertificateOptions, PreciseEngineOptions, ClusterOptions, ImageOptions, ModelOptions, Watched
):
    """Certify"""

    model: ModelLike
    """resnet20:sigma=0.5 (shipped weights), a run folder, model.safetensors, .onnx, OpenVINO .xml, weights.pt with --arch,
    timm:NAME, torchvision:NAME, package.module:factory"""
    data: DataLike | None = None
    """sample (embedded CIFAR-10 images), cifar10[:DIR], folder:DIR (one folder per class), npz:FILE (images, labels),
    package.module:factory; what the run folder kept, else sample, if not given"""
    _: KW_ONLY
    seed: int = 0
    """of the noise"""
    out: PathLike | None = None
    """run folder, runs/certify-<id> if not given; the same command resumes"""
    compat: bool = False
    """radii with 3 decimals, as the field's files have them, not 8"""
    candidates_examined: Annotated[int | None, PYTHON_ONLY] = None
    """how many models were looked at before this one was chosen; what its file says, else unknown, if not given"""


@command(
    Certify,
    "prove radii within which a smoothed model keeps its answers, each with probability 1 - alpha",
    common=("sigma", "noise", "images", "n", "alpha", "adaptive", "out", "engine", "arch", "input", "bounds"),
    examples=(
        "arquant certify resnet20:sigma=0.5 sample --sigma 0.5 --images first:20 --n 1000",
        "arquant certify runs/w4 --n 100000 --adaptive --out runs/w4",
        "arquant certify model.onnx npz:test.npz --sigma 0.25",
    ),
    resumes=True,
)
def certify(options: Certify) -> "CertifyRun":
    """Certify a model on images and write `certificates.tsv` with its sidecar `certificates.json` into `out`.

    For each image, with probability at least 1 - alpha over the noise (over all images together if `family_wise`): if a
    class is given, the smoothed classifier returns it at the image and within the radius. An abstention claims nothing.

    The same call on the same folder resumes; a folder that holds certificates of another model, of other images or of other
    settings is refused, and so are images that the model has seen and a network that is not one fixed function of one image.

    Returns:
        The certificates, and the file that they are in.
    """
    from arquant.certification.run import certify as certify_classifier
    from arquant.certification.settings import settings_of
    from arquant.certification.subject import find_subject
    from arquant.engines.pool import cluster_of
    from arquant.models.classifier import Classifier
    from arquant.quantization.quantized import QuantizedClassifier
    from arquant.searching.history import record_certified

    cluster = cluster_of(options.cluster, options.workers)
    subject = find_subject(
        options.model,
        options.data,
        sigma=options.sigma,
        noise=options.noise,
        images=options.images,
        **options.model_options,
    )
    claimed = {item.name: getattr(options, item.name) for item in fields(CertificateOptions)}
    settings = settings_of(len(subject.images), sigma=subject.sigma, noise=subject.noise, seed=options.seed, **claimed)

    def certified(model: str, images: str) -> None:
        if subject.run is not None and isinstance(subject.classifier, QuantizedClassifier):
            record_certified(subject.run, model, images)

    return certify_classifier(
        subject.classifier, subject.images, settings, out=options.out, **options.engine_options,
        origin=None if isinstance(options.model, Classifier) else options.model, compat=options.compat,
        cluster=cluster, candidates_examined=options.candidates_examined, report=options.report, note=options.note,
        certified=certified,
    )  # fmt: skip


@certify.shown
def _show(run: "CertifyRun", _options: Certify, console: "Console") -> None:
    summary = {**metrics(run.path), "certificates": str(run.path)}
    console.result(summary, metrics_lines(summary))
