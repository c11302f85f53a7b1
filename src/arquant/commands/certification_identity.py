"""Which certification a folder holds: what must be equal for it to be resumed, and by which engine its votes go on."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arquant.certificate import Settings
from arquant.certificate_files import has_rows, read_sidecar, settings_json, sidecar_path
from arquant.classifier import Classifier
from arquant.engines.base import Precision
from arquant.errors import FileFormatError, MismatchError
from arquant.imageset import ImageSet
from arquant.provenance import processor

ONE_CORE_A_BATCH = ("openvino", "onnxruntime")
"""engines whose answers cannot depend on the number of threads, which a resumed run may therefore change"""


def identity_of(classifier: Classifier, images: ImageSet, settings: Settings, precision: Precision) -> dict[str, Any]:
    """What must be equal for a folder to be resumed."""
    return {
        "model": classifier.fingerprint(),
        "images": images.fingerprint(),
        "settings": settings_json(settings),
        **({} if precision == "float32" else {"precision": precision}),
    }


def model_record(classifier: Classifier, fingerprint: str) -> dict[str, Any]:
    """What a sidecar says about a model: its name, its fingerprint, and what that fingerprint could not cover."""
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
    """The engine of the run that began in this folder, else the one asked for; warns of what is asked for in vain."""
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
    """A name for what is so described."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def voter(identity: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    """Names whoever may count on at votes inside an image: the same run, with an engine that gives the same answers."""
    return digest({"identity": identity, "engine": answering(engine), "processor": processor()})


def answering(engine: Mapping[str, Any]) -> dict[str, Any]:
    """What of an engine's description could change an answer."""
    free = ("threads",) if engine["engine"] in ONE_CORE_A_BATCH else ()
    return {name: value for name, value in engine.items() if name not in free}


def earlier_engine(path: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The engine of the run that began in this folder; None if there is none; MismatchError if it is another run."""
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
    if began != now:
        raise MismatchError(f"{path.parent} holds another run ({_differences(began, now)}); choose another --out")
    found = {name: engine.get(name) for name in ("engine", "device", "batch", "threads")}
    words = all(isinstance(found[name], str) for name in ("engine", "device"))
    counts = all(type(number) is int and number > 0 for number in (found["batch"], found["threads"]))
    if not words or not counts:
        raise FileFormatError(f"{sidecar} is damaged: it names the engine as {found}; choose another --out")
    return found


def _differences(began: dict[str, Any], now: dict[str, Any]) -> str:
    parts = [
        f"another {'model' if name == 'model' else 'set of images'}"
        for name in ("model", "images")
        if began.get(name) != now[name]
    ]
    there, here = (each.get("precision", "float32") for each in (began, now))
    if there != here:
        parts.append(f"precision {there} there, {here} here")
    old = began["settings"]
    parts += [
        f"{name} {old.get(name)} there, {value} here"
        for name, value in now["settings"].items()
        if old.get(name) != value
    ]
    return "; ".join(parts)
