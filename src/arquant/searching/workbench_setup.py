"""Set up the workbench that the options of a search ask for."""

from arquant.engines.choice import EngineOptions
from arquant.images.imageset import ImageSet
from arquant.loading.plausibility import warn_of_sigma
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import Layers
from arquant.quantization.calibration import NoisyImages
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import quantize
from arquant.searching.options import SearchOptions
from arquant.searching.workbench import Workbench


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
    """Return a workbench with a quantized copy of `classifier`, at first by `policy`.

    Args:
        compiled: compile the training step.
    """
    warn_of_sigma(classifier, options.sigma)
    quantized = quantize(
        classifier,
        policy,
        calibrate,
        sigma=options.sigma,
        clip=options.clip,
        per_channel=options.per_channel,
        learn=options.learn,
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
