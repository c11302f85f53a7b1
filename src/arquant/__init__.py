"""arquant: small and provably robust classifiers, by mixed-precision quantization steered by certified radii.

Every command of the command line is a function here: `arquant.certify` is `arquant certify`. Names are imported when they
are first used, so that `import arquant` is light.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "ABSTAIN": "certificate",
    "Adaptive": "adaptive",
    "Bits": "policy",
    "Bops": "costs",
    "Budget": "budget",
    "Certificate": "certificate",
    "CertificateSet": "certificate",
    "Classifier": "classifier",
    "ImageSet": "imageset",
    "LatencyTable": "costs",
    "Noise": "noise",
    "Policy": "policy",
    "Recipe": "recipe",
    "Settings": "certificate",
    "Smoothed": "smoothing",
    "WeightBytes": "costs",
    "certified_radius": "bounds",
    "certify": "commands.certification",
    "check": "commands.checking",
    "clopper_pearson_lower": "bounds",
    "clopper_pearson_upper": "bounds",
    "compare": "commands.comparing",
    "cost": "commands.inspection",
    "data": "commands.fetching",
    "demo": "commands.demonstration",
    "export": "commands.shipping",
    "find_layers": "layers",
    "finetune": "commands.quantizing",
    "inspect": "commands.inspection",
    "load_data": "datasets",
    "load_model": "models.zoo",
    "metrics": "commands.comparison",
    "plan": "commands.planning",
    "predict": "commands.prediction",
    "quantize": "commands.quantizing",
    "read_certificates": "certificate_files",
    "report": "commands.report_writing",
    "search": "commands.searching",
    "sensitivity": "commands.sensing",
    "train": "commands.model_training",
    "watch": "commands.watching",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'arquant' has no attribute {name!r}")
    return getattr(import_module(f"arquant.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
