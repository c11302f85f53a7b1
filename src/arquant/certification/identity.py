"""Which certification a folder holds: what must be equal for it to be resumed, and by which engine its votes go on."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arquant.base.errors import FileFormatError, MismatchError
from arquant.base.identity import check_same
from arquant.base.processor import Precision
from arquant.base.provenance import commit, installed, processor, processor_features
from arquant.certificates.certificate import Settings
from arquant.certificates.files import has_rows, read_sidecar, settings_json, sidecar_path
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier

ONE_CORE_A_BATCH = ("openvino", "onnxruntime")
"""engines whose answers cannot depend on the number of threads, which a resumed run may therefore change"""
ANSWERING_PACKAGES = ("arquant", "torch", "numpy", "scipy", "openvino", "onnxruntime")
"""packages whose versions may change a vote or its noise"""
_ENGINE_FIELDS = ("engine", "device", "batch", "threads")
_MOST = 2**16
"""images of a batch, and threads, that a sidecar may ask for"""


def identity_of(classifier: Classifier, images: ImageSet, settings: Settings, precision: Precision) -> dict[str, Any]:
    """Return what must be equal for a folder to be resumed."""
    return {
        "model": classifier.fingerprint(),
        "images": images.fingerprint(),
        "settings": settings_json(settings),
        **({} if precision == "float32" else {"precision": precision}),
    }


def model_record(classifier: Classifier, fingerprint: str) -> dict[str, Any]:
    """Return what a sidecar says about a model: its name, its fingerprint, and what that fingerprint could not cover."""
    spelling = classifier.spelling()
    return {
        "name": classifier.name,
        "fingerprint": fingerprint,
        "fingerprint_version": spelling.version,
        **({"unspelled": list(spelling.unspelled)} if spelling.unspelled else {}),
    }


def resumed_engine(
    path: Path, identity: dict[str, Any], asked: dict[str, Any], warn: Callable[[str], None]
) -> dict[str, Any]:
    """Return the engine of the run that began in this folder, else the one asked for; warns of what is asked for in vain."""
    earlier = earlier_engine(path, identity)
    if earlier is None:
        return dict(asked)
    if earlier["engine"] in ONE_CORE_A_BATCH:
        earlier["threads"] = asked["threads"]
    vain = [
        f"--{name} {value} (it is {earlier[name]})"
        for name, value in asked.items()
        if value not in (None, "auto", earlier[name])
    ]
    if vain:
        warn(
            f"{path.parent} goes on with the engine that it began with, since votes of two engines do not mix; "
            f"no effect: {', '.join(vain)}; choose another --out to use it"
        )
    return earlier


def digest(identity: Mapping[str, Any]) -> str:
    """Return a name for what is so described."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def voter(identity: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    """Name whoever may count on at votes inside an image: the same run, with an engine that gives the same answers."""
    return digest({"identity": identity, "engine": answering(engine), "processor": processor()})


def answering(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of an engine's description could change an answer."""
    free = ("threads",) if engine["engine"] in ONE_CORE_A_BATCH else ()
    return {name: value for name, value in engine.items() if name not in free}


def alike(record: Mapping[str, Any], engine: Mapping[str, Any]) -> Callable[[int], bool]:
    """Tell for each row of a table, by its sidecar's record, whether this engine must repeat its votes exactly: the same
    description of the engine, packages, commit and processor. A record without the processor's features does not say enough.
    """
    parts = record.get("parts")
    parts = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    ends = [end if isinstance(end := part.get("rows"), int) else 0 for part in parts]
    same = [_made_here(part, engine) for part in (*parts, record)]

    def of_row(row: int) -> bool:
        part = next((i for i, end in enumerate(ends) if row < end), len(parts))
        return same[part]

    return of_row


def machine_facts() -> dict[str, Any]:
    """Return what results depend on of this machine and its packages."""
    versions = installed()
    return {
        "versions": {name: versions[name] for name in ANSWERING_PACKAGES if name in versions},
        "commit": commit(),
        "processor": processor(),
        "features": processor_features(),
    }


def _made_here(record: Mapping[str, Any], engine: Mapping[str, Any]) -> bool:
    recorded, machine, versions = (record.get(name) for name in ("engine", "machine", "versions"))
    if not (isinstance(recorded, Mapping) and isinstance(machine, Mapping) and isinstance(versions, Mapping)):
        return False
    there = {
        "versions": {name: versions[name] for name in ANSWERING_PACKAGES if versions.get(name) is not None},
        "commit": record.get("commit"),
        "processor": machine.get("processor"),
        "features": machine.get("features"),
    }
    return (
        recorded.get("engine") == engine["engine"]
        and json.loads(json.dumps(answering(engine))) == answering(recorded)
        and there == machine_facts()
    )


def engine_of(record: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Return the engine, device, batch and threads that a sidecar's record names; FileFormatError if they cannot be."""
    engine = record.get("engine")
    stated = engine if isinstance(engine, Mapping) else {}
    found: dict[str, Any] = {name: stated.get(name) for name in _ENGINE_FIELDS}
    words = all(isinstance(found[name], str) for name in ("engine", "device"))
    counts = all(type(found[name]) is int and 0 < found[name] <= _MOST for name in ("batch", "threads"))
    if not words or not counts:
        raise FileFormatError(f"{where} is damaged: it names the engine as {found}; choose another --out")
    return found


def earlier_engine(path: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """Return the engine of the run that began in this folder; None if there is none; MismatchError if it is another run."""
    sidecar = sidecar_path(path)
    if not sidecar.exists():
        if has_rows(path):
            raise MismatchError(f"{path} exists without {sidecar.name}; choose another --out")
        return None
    recorded = read_sidecar(sidecar)["provenance"]
    began, engine = recorded.get("identity"), recorded.get("engine")
    if not isinstance(began, dict) or not isinstance(began.get("settings"), dict) or not isinstance(engine, dict):
        raise MismatchError(f"{sidecar} does not say what run it belongs to; choose another --out")
    now = json.loads(json.dumps(identity))
    usual = {"precision": "float32"}  # not written
    check_same(usual | began, usual | now, f"{path.parent} holds another run")
    return engine_of(recorded, sidecar)
