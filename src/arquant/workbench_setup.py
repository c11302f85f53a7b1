"""The workbench that the options of a search ask for."""

from arquant.calibration import NoisyImages
from arquant.classifier import Classifier
from arquant.imageset import ImageSet
from arquant.layers import Layers
from arquant.policy import Policy
from arquant.quantization import quantize
from arquant.search_options import SearchOptions
from arquant.workbench import EngineOptions, Workbench


def workbench_for(
    classifier: Classifier,
    policy: Policy,
    calibrate: ImageSet,
    options: SearchOptions,
    engines: EngineOptions,
    *,
    layers: Layers,
    compiled: bool,
) -> Workbench:
    """A quantized copy of `classifier`, to begin with by `policy`, and what it is fine-tuned on.

    Args:
        compiled: compile the training step.
    """
    quantized = quantize(
        classifier,
        policy,
        calibrate,
        sigma=options.sigma,
        clip=options.clip,  # type: ignore[arg-type]
        per_channel=options.per_channel,
        learn=options.learn,  # type: ignore[arg-type]
        noise=options.noise,
        images=options.calibration_images,
        seed=options.seed,
        layers=layers,
    )
    statistics = None
    if options.estimate_bn:
        statistics = NoisyImages(
            calibrate, classifier, sigma=options.sigma, noise=options.noise, seed=options.seed,
            count=options.calibration_images,
        )  # fmt: skip
    return Workbench(
        classifier, quantized, calibrate, noise=options.noise, statistics=statistics, engines=engines, compiled=compiled
    )
