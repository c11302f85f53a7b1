"""Distrust a sidecar: recompute what its record derives from its settings and the model, and compare the rest with itself."""

import json
import math
from collections.abc import Mapping
from typing import Any

from arquant.base.errors import InputError
from arquant.certificates.certificate import CertificateSet, Settings
from arquant.certificates.files import certified_model, settings_json
from arquant.models.classifier import Classifier
from arquant.noise.keys import NoiseKey, noise_key
from arquant.noise.source import Noise, NoiseSource

_ENGINES = ("torch", "openvino", "onnxruntime")
"""each is also the name of the package whose version it states"""


def check_record(found: CertificateSet) -> None:
    """Refuse a record that contradicts itself.

    Recomputed: the key's id from seed, purpose and fingerprint. Compared: settings, images and model with those of the run's
    identity, the number of images with the rows, precision and version of the engine with what else says them.

    Raises:
        InputError: the first contradiction.
    """
    record, settings = found.provenance, found.settings
    identity = record.get("identity")
    if not isinstance(identity, Mapping) or settings is None:
        raise InputError("the certificates do not say what run they belong to")
    model = certified_model(record)
    if model is None:
        raise InputError("the certificates do not say what model they are of")
    now = {"settings": settings_json(settings), "images": found.images_sha256, "model": model}
    changed = [name for name, value in now.items() if identity.get(name) != json.loads(json.dumps(value))]
    if changed:
        raise InputError(f"the sidecar of the certificates contradicts itself: {' and '.join(changed)} were changed")
    _check_counts(found, settings)
    _check_key(record, certify_key(settings, model))
    _check_engine(record, identity)
    if record.get("bound") != "Clopper-Pearson":
        raise InputError(f"the sidecar names the bound {record.get('bound')!r}; ours is 'Clopper-Pearson'")


def check_against_model(found: CertificateSet, classifier: Classifier) -> None:
    """Refuse classes that the model does not have, and another distance of the noise from its law than it has."""
    classes = classifier.num_classes
    for row in found.certificates:
        wrong = [klass for klass in (row.label, row.predict, *dict(row.counts)) if klass >= classes]
        if wrong:
            raise InputError(f"image {row.idx} has class {wrong[0]}, where the model has {classes} classes")
    settings, noise = found.settings, found.provenance.get("noise")
    if settings is None or not isinstance(noise, Mapping):
        raise InputError("the sidecar does not say what noise was used")
    key = certify_key(settings, classifier.fingerprint())
    derived = NoiseSource(Noise(settings.noise, settings.sigma), key, classifier.input_shape).total_variation
    stated = noise.get("total_variation")
    close = isinstance(stated, float) and derived is not None and math.isclose(stated, derived, rel_tol=1e-6)
    if not close and (derived is not None or stated is not None):
        raise InputError(f"the sidecar has noise.total_variation {stated}, where sigma and shape make it {derived}")


def certify_key(settings: Settings, fingerprint: str) -> NoiseKey:
    """Return the key under which a model's certificates with these settings are made."""
    return noise_key(settings.seed, "certify", fingerprint)


def _check_counts(found: CertificateSet, settings: Settings) -> None:
    data = found.provenance.get("data")
    stated = data.get("images") if isinstance(data, Mapping) else None
    if stated != len(found):
        raise InputError(f"the sidecar says that {stated} images were certified, the table has {len(found)} rows")
    if settings.family_wise not in (None, len(found)):
        raise InputError(f"alpha is shared by {settings.family_wise} images, the table has {len(found)} rows")


def _check_key(record: Mapping[str, Any], key: NoiseKey) -> None:
    noise = record.get("noise")
    stated = noise.get("key_id") if isinstance(noise, Mapping) else None
    if stated != key.id:
        raise InputError(f"the noise key is {stated}, where seed and model make it {key.id}")


def _check_engine(record: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    engine, versions = record.get("engine"), record.get("versions")
    if not isinstance(engine, Mapping) or not isinstance(versions, Mapping):
        raise InputError("the sidecar does not say which engine counted the votes")
    reduced = identity.get("precision", "float32")
    if (engine.get("precision") == "bfloat16") != (reduced == "bfloat16"):
        raise InputError(f"the engine computed in {engine.get('precision')}, the run was for {reduced}")
    name, version = engine.get("engine"), str(engine.get("version"))
    installed = versions.get(name) if name in _ENGINES else None
    if not isinstance(installed, str) or not version.startswith(installed):
        raise InputError(
            f"the engine is {name} {version}, which the recorded packages do not have ({name} {installed})"
        )
