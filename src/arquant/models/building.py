"""Build a network by its spelling: a name of ours, of timm, of torchvision, or a factory of the user's."""

import difflib

from arquant.base.errors import InputError
from arquant.models.architectures.registry import ALIASES, ARCHITECTURES, build_architecture, canonical_name
from arquant.models.classifier import Classifier
from arquant.models.factory import build_factory, is_factory
from arquant.models.hubs import build_timm, build_torchvision
from arquant.models.options import Options
from arquant.models.weights import shipped_models

HUBS = {"timm": build_timm, "torchvision": build_torchvision}


def build_network(spec: str, options: Options, *, pretrained: bool) -> Classifier:
    """Build the network that `spec` names: a name of ours, of timm, of torchvision, or a factory.

    Args:
        pretrained: with the public weights of a hub; otherwise the weights are random, always the same.
    """
    hub, _, name = spec.partition(":")
    if canonical_name(spec) is not None:
        classifier = build_architecture(spec, options)
    elif hub in HUBS:
        classifier = HUBS[hub](name, options, pretrained=pretrained)
    elif is_factory(spec):
        classifier = build_factory(spec, options)
    else:
        raise _unknown(spec)
    classifier.arch = spec
    return classifier


def _unknown(spec: str) -> InputError:
    """Return the error that says what a model may be, and what `spec` was probably meant to be."""
    known = [*ARCHITECTURES, *ALIASES, *shipped_models()]
    close = difflib.get_close_matches(spec, known, n=3)
    meant = f"did you mean {', '.join(close)}? " if close else ""
    if "/" in spec:
        meant = "there is no such file or folder. "
    names = ", ".join([*shipped_models(), *ARCHITECTURES])
    return InputError(
        f"unknown model {spec!r}: {meant}A model is a name ({names}), a run folder, a file "
        "(.safetensors, .pt with --arch, .onnx, .xml), timm:NAME, torchvision:NAME or package.module:factory"
    )
