"""What the benchmarks run: a network, float or quantized, and images of its shape."""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from arquant.images.imageset import ImageSet
from arquant.loading.datasets import load_data
from arquant.loading.models import has_weights, load_model
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.quantization.calibration import NoisyImages, estimate_batchnorm_
from arquant.quantization.policy import Bits, Policy
from arquant.quantization.quantized import QuantizedClassifier, quantize

SHIPPED = Path(__file__).parents[1] / "results" / "search" / "arq" / "policy.json"
CALIBRATION, SMALL = 128, 64
"""images that networks of larger images than `SMALL` x `SMALL` are calibrated on; others have the usual number"""


def add_subject(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which network and which images."""
    parser.add_argument("--model", default="resnet20:sigma=0.5", help="without weights: seeded random ones")
    parser.add_argument("--policy", help="policy file; by default the one that our search found for ResNet-20")
    parser.add_argument("--bits", help="uniform widths instead of a policy: 4, w3a4")
    parser.add_argument("--data", default="sample", help="folder:DIR, ...; images of another size are resized")
    parser.add_argument("--sigma", type=float, default=0.5)


def float_network(options: argparse.Namespace) -> Classifier:
    """Return the float network; one without weights has BatchNorm statistics of the noisy images."""
    classifier = load_model(options.model, weights_required=False)
    if not has_weights(options.model):
        batches = NoisyImages(
            images(options, classifier, "calibrate"), classifier, sigma=options.sigma, count=64, batch=16
        )
        estimate_batchnorm_(classifier, batches)
    return classifier


def quantized_network(options: argparse.Namespace, *, bits: int | None = None) -> QuantizedClassifier:
    """Return the network quantized by the options' widths, or uniformly to `bits`."""
    classifier = float_network(options)
    policy = Policy.uniform(find_layers(classifier), bits) if bits else policy_of(classifier, options)
    calibrate = images(options, classifier, "calibrate")
    if max(classifier.input_shape[1:]) <= SMALL:
        return quantize(classifier, policy, calibrate, sigma=options.sigma)
    return quantize(classifier, policy, calibrate, sigma=options.sigma, images=CALIBRATION, batch=16)


def policy_of(classifier: Classifier, options: argparse.Namespace) -> Policy:
    """Return the options' policy; by default the one that our search found.

    For another network than the search's: widths from 2 to 6 in turn between 8-bit ends.
    """
    if options.policy is not None:
        return Policy.load(options.policy)
    layers = find_layers(classifier)
    if options.bits is not None:
        return Policy.uniform(layers, options.bits)
    uniform, shipped = Policy.uniform(layers, 4), Policy.load(SHIPPED)
    if set(shipped) == set(uniform):
        return shipped
    inner = [name for name in uniform if name not in (layers[0].name, layers[len(layers) - 1].name)]
    return uniform.with_({name: Bits(2 + place % 5, 2 + (3 * place + 1) % 5) for place, name in enumerate(inner)})


def images(options: argparse.Namespace, classifier: Classifier, role: str) -> ImageSet:
    """Return the data's images of a role, at most `CALIBRATION` if they have to be resized to the network's."""
    found = load_data(options.data, role)
    _, height, width = classifier.input_shape
    if found.shape[1:] == (height, width):
        return found
    chosen = found.select(f"most:{CALIBRATION}")
    pictures = (Image.fromarray(pixels.transpose(1, 2, 0)) for pixels in chosen.images)
    resized = [np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC)) for picture in pictures]
    return replace(chosen, images=np.stack(resized).transpose(0, 3, 1, 2), role=None)
