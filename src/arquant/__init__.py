"""arquant: small and provably robust classifiers, by mixed-precision quantization steered by certified radii.

Every command of the command line is a function here: `arquant.certify` is `arquant certify`. Names are imported when they
are first used, so that `import arquant` is light.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "ABSTAIN": "certificates.certificate",
    "Adaptive": "certificates.adaptive",
    "Bits": "quantization.policy",
    "Bops": "quantization.costs",
    "Budget": "quantization.budget",
    "Certificate": "certificates.certificate",
    "CertificateSet": "certificates.certificate",
    "Classifier": "models.classifier",
    "FileBytes": "quantization.costs",
    "ImageSet": "images.imageset",
    "LatencyTable": "quantization.costs",
    "Noise": "noise.source",
    "Policy": "quantization.policy",
    "Recipe": "training.recipe",
    "Settings": "certificates.certificate",
    "Smoothed": "certification.smoothing",
    "WeightBytes": "quantization.costs",
    "attack": "commands.attack",
    "benchmark": "commands.benchmark",
    "certified_radius": "certificates.bounds",
    "certify": "commands.certify",
    "check": "commands.check",
    "clopper_pearson_lower": "certificates.bounds",
    "clopper_pearson_upper": "certificates.bounds",
    "compare": "commands.compare",
    "completion": "commands.completion",
    "cost": "commands.cost",
    "data": "commands.data",
    "demo": "commands.demo",
    "export": "commands.export",
    "find_layers": "models.tracing.layers",
    "finetune": "commands.finetune",
    "inspect": "commands.inspect",
    "load_data": "loading.datasets",
    "load_model": "loading.models",
    "metrics": "commands.metrics",
    "plan": "commands.plan",
    "predict": "commands.predict",
    "quantize": "commands.quantize",
    "read_certificates": "certificates.files",
    "report": "commands.report",
    "reproduce": "commands.reproduce",
    "search": "commands.search",
    "sensitivity": "commands.sensitivity",
    "train": "commands.train",
    "watch": "commands.watch",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'arquant' has no attribute {name!r}")
    return getattr(import_module(f"arquant.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
