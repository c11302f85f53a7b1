"""The models of a search: each lives once, in `RUN/models/<first 12 of its fingerprint>/`, and never changes there.

A folder of the run (its root, one per budget, a control) shows one of them: it holds plain copies of the release's files
under the usual names, which are replaced, one move each, when another release takes its place. `RUN/current.json` says
which release each folder shows. A copy may state another number of examined candidates than the release: the same model
can be the winner of many and a control that nobody chose.

What other commands make of the model in such a folder (certificates of a fine-tuned one, exported files, reports) moves
into the release of that model before another is shown: nothing is ever lost, and nothing lies beside a model that it is
not of.
"""

import filecmp
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from arquant.base.errors import ArquantError, FileFormatError, MismatchError
from arquant.base.files import copy_file, envelope, read_json, write_json
from arquant.base.own_files import own_file
from arquant.base.run_folder import CONFIG, FINETUNING, MODEL, POLICY, QUANTIZED, open_run, read_config
from arquant.certificates.files import TSV_NAME, certified_model, read_sidecar, sidecar_path
from arquant.certification.run import PARTIAL_NAME
from arquant.engines.export_record import EXPORTS, known_exports
from arquant.loading.run_images import SEEN
from arquant.quantization.artifact import load_artifact, read_provenance, save_artifact
from arquant.quantization.quantized import QuantizedClassifier

MODELS, CURRENT = "models", "current.json"
SCHEMA, VERSION = "arquant.current", 1
EXAMINED = "candidates_examined"
FINETUNED = "finetuned.safetensors"
T = TypeVar("T")
SIDECAR_NAME = sidecar_path(TSV_NAME).name
_EXPORTED = ("model.onnx", "model.qonnx.onnx", "model.xml", "model.bin", EXPORTS)
_LEFT_BEHIND = (PARTIAL_NAME, "report.html", "report.json", "card.md", FINETUNING, QUANTIZED)
"""what commands leave beside a model; it moves with the model, and is not shown again"""


@dataclass(frozen=True)
class Releases:
    """The releases of a run.

    Attributes:
        run: the folder of the search.
        arch: the network of the models, where a `package.module:factory` builds it.
    """

    run: Path
    arch: str | None = None

    def folder(self, fingerprint: str) -> Path:
        """Return where a model lives."""
        return own_file(self.run, MODELS, fingerprint[:12])

    def has(self, fingerprint: str) -> bool:
        """Tell whether the model of a release is there."""
        return (self.folder(fingerprint) / MODEL).exists()

    def read(self, fingerprint: str) -> QuantizedClassifier:
        """Return the model of a release.

        Raises:
            MismatchError: the file is not the one that was released.
        """
        file = self.folder(fingerprint) / MODEL
        model = self._load(file)
        if model.fingerprint() != fingerprint:
            raise MismatchError(
                f"{file} is not the model that this search made: something changed it since; move {file.parent} away to "
                "have it made again, or choose another --out"
            )
        return model

    def current(self) -> dict[str, str]:
        """Return the fingerprint of the model that each folder of the run shows."""
        path = own_file(self.run, CURRENT)
        if not path.exists():
            return {}
        places = read_json(path, SCHEMA, VERSION).get("places")
        if not isinstance(places, dict) or not all(isinstance(each, str) for each in places.values()):
            raise FileFormatError(
                f"{path} does not name a model for each folder; delete it, the search writes it again"
            )
        return places

    def publish(
        self,
        place: Path,
        fingerprint: str,
        *,
        examined: int | None = None,
        config: Mapping[str, Any] | None = None,
        stays: Sequence[str] = (),
    ) -> str | None:
        """Let a folder of the run show a release, as far as it is made: certificates follow when they are complete.

        The same call after a kill, at whatever moment, ends with the same files. Certificates of the model that was shown
        before are gone before the new model is there.

        Args:
            examined: how many candidates this folder's model was chosen from; None keeps what the release states.
            config: what `config.yaml` of the folder says; None leaves it alone.
            stays: files of the model before that the folder still needs.

        Returns:
            The fingerprint of the model that was there before, if it was another.
        """
        release = self.folder(fingerprint)
        place.mkdir(parents=True, exist_ok=True)
        before = self.keep(place)
        replaced = before != fingerprint
        if replaced:
            self._clear(place, before, stays)
        if config is not None:
            _write_config(place, config)
        _copy_unless_equal(release / POLICY, place / POLICY)
        stated = read_provenance(release / MODEL)
        if replaced or (examined is not None and read_provenance(place / MODEL).get(EXAMINED) != examined):
            self._copy_model(fingerprint, place, stated, examined)
        if replaced:
            for name in _exported(release):
                copy_file(release / name, place / name)
        self._point(place, fingerprint)
        if is_certified(release):
            _copy_sidecar(release / SIDECAR_NAME, place / SIDECAR_NAME, examined)
            _copy_unless_equal(release / TSV_NAME, place / TSV_NAME)
        return before if replaced else None

    def replace(self, place: Path, save: Callable[[Path], T]) -> T:
        """Release what a command made of the model in a folder, and show it there; return what `save` returns.

        Args:
            save: writes the file of the new model. Its policy is that of the model before.
        """
        scratch = self.run / MODELS / f"{FINETUNED}.part"
        scratch.parent.mkdir(exist_ok=True)
        saved = save(scratch)
        fingerprint = self._load(scratch).fingerprint()
        release = self.folder(fingerprint)
        release.mkdir(exist_ok=True)
        for name in [POLICY, CONFIG, *([SEEN] if place != self.run else [])]:
            if (place / name).exists() and not (release / name).exists():
                copy_file(place / name, release / name)
        if self.has(fingerprint):
            scratch.unlink()
        else:
            scratch.replace(release / MODEL)
        # a second fine-tuning starts from the same model
        self.publish(place, fingerprint, stays=(QUANTIZED, FINETUNING))
        return saved

    def keep(self, place: Path) -> str | None:
        """Make sure that the model in a folder, and its certificates, are in a release; return its fingerprint.

        The model may be one that `arquant finetune` made, or of a search that began before there were releases.
        """
        if not (place / MODEL).exists():
            return None
        fingerprint = self._load(place / MODEL).fingerprint()
        release = self.folder(fingerprint)
        release.mkdir(parents=True, exist_ok=True)
        names = [POLICY, CONFIG, *([SEEN] if place != self.run else [])]
        if _are_of(place, fingerprint):
            names += [SIDECAR_NAME, TSV_NAME]
        for name in [*names, MODEL]:  # the model last: a release is there when its model is
            if (place / name).exists() and not (release / name).exists():
                copy_file(place / name, release / name)
        return fingerprint

    def _load(self, file: Path) -> QuantizedClassifier:
        return load_artifact(own_file(file.parent, file.name), arch=self.arch)

    def _clear(self, place: Path, before: str | None, stays: Sequence[str]) -> None:
        """Take from a folder what is of the model that it showed, certificates first; the model itself is replaced later."""
        for name in (TSV_NAME, SIDECAR_NAME):
            (place / name).unlink(missing_ok=True)
        if before is None:
            return
        for name in (*_exported(place), *_LEFT_BEHIND):
            if (place / name).exists() and name not in stays:
                (place / name).replace(self.folder(before) / name)

    def _copy_model(self, fingerprint: str, place: Path, stated: Mapping[str, Any], examined: int | None) -> None:
        if examined in (None, stated.get(EXAMINED)):
            copy_file(self.folder(fingerprint) / MODEL, place / MODEL)
        else:
            save_artifact(place / MODEL, self.read(fingerprint), {**stated, EXAMINED: examined})

    def _point(self, place: Path, fingerprint: str) -> None:
        places = self.current()
        name = str(place.relative_to(self.run))
        if places.get(name) != fingerprint:
            write_json(self.run / CURRENT, envelope(SCHEMA, VERSION, {"places": {**places, name: fingerprint}}))


def is_certified(folder: Path) -> bool:
    """Tell whether a folder holds certificates of all images."""
    table = folder / TSV_NAME
    if not table.exists() or not (folder / SIDECAR_NAME).exists():
        return False
    rows = int(read_sidecar(folder / SIDECAR_NAME)["rows"])
    return table.read_bytes().count(b"\n") > rows


def certificates_in(run: Path, place: str) -> Path:
    """Return the folder in which the certificates of a folder of a run are being written: its release, if it shows one."""
    try:
        fingerprint = Releases(run).current().get(place)
    except ArquantError:
        fingerprint = None
    release = None if fingerprint is None else Releases(run).folder(fingerprint)
    return release if release is not None and (release / SIDECAR_NAME).exists() else run / place


def _are_of(place: Path, fingerprint: str) -> bool:
    """Tell whether the certificates in a folder are of its model, rather than of one that was there before."""
    sidecar = place / SIDECAR_NAME
    return sidecar.exists() and certified_model(read_sidecar(sidecar)["provenance"]) == fingerprint


def _exported(folder: Path) -> list[str]:
    """Name the exported files of a folder, those with weights of their own with them."""
    recorded = [file for name in known_exports(folder) for file in (name, str(Path(name).with_suffix(".bin")))]
    return [name for name in dict.fromkeys([*recorded, *_EXPORTED]) if (folder / name).exists()]


def _copy_unless_equal(source: Path, target: Path) -> None:
    if not target.exists() or not filecmp.cmp(source, target, shallow=False):
        copy_file(source, target)


def _copy_sidecar(source: Path, target: Path, examined: int | None) -> None:
    data = json.loads(source.read_text())
    if examined is not None:
        data["provenance"][EXAMINED] = examined
    if not target.exists() or json.loads(target.read_text()) != data:
        write_json(target, data)


def _write_config(place: Path, config: Mapping[str, Any]) -> None:
    """Write the configuration of a folder, in place of one for another policy."""
    if (place / CONFIG).exists() and read_config(place).get("policy") != config.get("policy"):
        (place / CONFIG).unlink()
    # folders of earlier versions do not state their noise
    open_run(place, config, free=["noise"])
