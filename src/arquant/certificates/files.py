"""Certificate files: a TSV that grows row by row, and a JSON sidecar with all it takes to recompute or distrust it."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from arquant.base.errors import FileFormatError, InputError
from arquant.base.files import envelope, read_json, write_json
from arquant.base.growing_file import GrowingFile
from arquant.base.own_files import own_file
from arquant.base.run_folder import CERTIFICATES
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.certificate import Certificate, CertificateSet, Settings
from arquant.certificates.table import HEADER, format_row, parse_table

SCHEMA = "arquant.certificates"
VERSION = 1
TSV_NAME = CERTIFICATES

_MOST_BYTES = 2**28
"""of a table: those of a million images"""
_DERIVED = ("alpha_per_image", "norm")
_KINDS: dict[str, tuple[type, ...]] = {
    "sigma": (float, int), "noise": (str,), "n0": (int,), "n": (int,), "alpha": (float, int), "certificate": (str,),
    "mode": (str,), "family_wise": (int, type(None)), "adaptive": (dict, type(None)), "seed": (int,),
    "tolerance": (float, int, type(None)), "futility_beta": (float, int),
}  # fmt: skip


def sidecar_path(path: Path | str) -> Path:
    """Return the sidecar's path: that of the TSV, with .json."""
    return Path(path).with_suffix(".json")


def read_certificates(path: Path | str) -> CertificateSet:
    """Read a certificate file of ours or of the field, with its sidecar if there is one.

    Args:
        path: the TSV, or a run folder that holds `certificates.tsv`.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: a malformed row (its line is named), no rows, fewer rows than the sidecar states, or a file
            beside it with the sidecar's name that is none.
    """
    path = Path(path)
    path = own_file(path, TSV_NAME) if path.is_dir() else path
    certificates, warnings = parse_table(_text(path), str(path))
    if not certificates:
        raise FileFormatError(f"{path}: no certificates in it")
    sidecar = sidecar_path(path)
    if not sidecar.exists() or sidecar == path:
        return CertificateSet(
            certificates, warnings=(*warnings, f"{path}: settings unknown, there is no {sidecar.name}")
        )
    data = read_sidecar(sidecar)
    if len(certificates) != data["rows"]:
        raise FileFormatError(
            f"{path}: {len(certificates)} rows where {sidecar.name} states {data['rows']}; an unfinished run is "
            "finished by the command that began it"
        )
    return CertificateSet(
        certificates, data["settings"], data["provenance"], data["images_sha256"], warnings=tuple(warnings)
    )


def write_sidecar(
    path: Path | str,
    settings: Settings | None,
    *,
    rows: int,
    images_sha256: str | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write the sidecar in one move: a reader sees the old file or the new one, never a part.

    Args:
        path: the JSON file (or the TSV it belongs to).
        settings: of all certificates; None where they are not made of votes, and `provenance` names the `certifier`.
        rows: how many certificates the finished TSV has.
        images_sha256: hash of the images.
        provenance: model and graph hash, dtype, engine, batch, threads, versions, key id, candidates seen before, ...
    """
    data = {
        "rows": rows,
        "settings": None if settings is None else settings_json(settings),
        "images_sha256": images_sha256,
        "provenance": dict(provenance or {}),
    }
    try:
        write_json(sidecar_path(path), envelope(SCHEMA, VERSION, data))
    except OSError as error:
        raise InputError(f"cannot write {sidecar_path(path)}: {error.strerror}") from error


def read_sidecar(path: Path | str) -> dict[str, Any]:
    """Return the sidecar's `rows`, `settings` (a Settings or None), `images_sha256` and `provenance`, checked."""
    try:
        data = read_json(own_file(Path(path).parent, Path(path).name), SCHEMA, VERSION)
    except FileFormatError as error:
        raise FileFormatError(f"{error}; if it is no sidecar of arquant's, move it away") from None
    rows, digest, provenance = data.get("rows"), data.get("images_sha256"), data.get("provenance")
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise FileFormatError(f"{path}: rows must be a number >= 1, got {rows!r}")
    if not _is(digest, (str, type(None))) or not isinstance(provenance, dict):
        raise FileFormatError(f"{path}: images_sha256 must be a text or null and provenance an object")
    try:
        votes = data.get("settings") is not None or "certifier" not in provenance
        settings = settings_from_json(data.get("settings")) if votes else None
    except InputError as error:
        raise FileFormatError(f"{path}: settings: {error}") from None
    return {"rows": rows, "settings": settings, "images_sha256": digest, "provenance": provenance}


def certified_model(provenance: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of the certified model by the record in a sidecar; None if it has none."""
    model = provenance.get("model")
    found = model.get("fingerprint") if isinstance(model, Mapping) else None
    return found if isinstance(found, str) else None


def labels_digest(labels: Iterable[tuple[int, int]]) -> str:
    """Return a SHA-256 over pairs of index and label; their order does not matter."""
    return hashlib.sha256(json.dumps(sorted(labels)).encode()).hexdigest()


def settings_json(settings: Settings) -> dict[str, Any]:
    """Return settings as plain data. `alpha_per_image` and `norm` follow from the rest and are stated for readers."""
    return {**dataclasses.asdict(settings), "alpha_per_image": settings.effective_alpha, "norm": settings.norm}


def settings_from_json(data: Any) -> Settings:
    """Return the settings that `settings_json` wrote; raise InputError naming the field that is wrong."""
    known = {field.name for field in dataclasses.fields(Settings)}
    if not isinstance(data, dict) or set(data) - set(_DERIVED) != known:
        raise InputError(f"expected exactly the fields {', '.join(sorted(known))}")
    try:
        values = {name: _checked(name, data[name]) for name in known}
        if values["adaptive"] is not None:
            values["adaptive"] = _rule_from_json(values["adaptive"])
        settings = Settings(**values)
    except ArithmeticError as error:
        raise InputError(f"a number is out of range ({error})") from None
    follows = settings_json(settings)
    if wrong := [name for name in _DERIVED if name in data and data[name] != follows[name]]:
        raise InputError(f"{wrong[0]} is {data[wrong[0]]!r} where the other settings make it {follows[wrong[0]]!r}")
    return settings


def _rule_from_json(data: dict[str, Any]) -> Adaptive:
    if set(data) != {"tolerance", "futility_beta"}:
        raise InputError(f"adaptive must have tolerance and futility_beta, got {', '.join(data)}")
    return Adaptive(**{name: _checked(name, value) for name, value in data.items()})


def has_rows(path: Path) -> bool:
    """Tell whether there is a file that holds more than a table's header or the beginning of one."""
    try:
        with own_file(path.parent, path.name).open("rb") as file:
            return not (HEADER + "\n").encode().startswith(file.read(len(HEADER) + 2))
    except FileNotFoundError:
        return False


class CertificateWriter(GrowingFile):
    """Writes a TSV row by row, each at once; opened on an unfinished file it goes on after the last complete row.

    `done` holds the certificates that were already there. A half-written last line is cut off. While a writer is open,
    another process that opens the file gets a MismatchError.
    """

    def __init__(self, path: Path | str, *, compat: bool = False) -> None:
        super().__init__(Path(path))
        self.compat = compat
        try:
            raw = self._content()
            complete = raw[: raw.rfind(b"\n") + 1]
            self.done = self._earlier(raw, complete)
            self._file.truncate(len(complete))
            if not complete:
                self._line(HEADER)
        except BaseException:
            self.close()
            raise
        self._written = {certificate.idx for certificate in self.done}

    def write(self, certificate: Certificate) -> None:
        """Append a row; it is in the file when this returns."""
        if certificate.idx in self._written:
            raise InputError(f"{self.path}: image {certificate.idx} already has a row")
        self._line(format_row(certificate, compat=self.compat))
        self._written.add(certificate.idx)

    def _earlier(self, raw: bytes, complete: bytes) -> tuple[Certificate, ...]:
        header = (HEADER + "\n").encode()
        if not complete and header.startswith(raw):
            return ()
        if not complete.startswith(header):
            raise FileFormatError(f"{self.path}: exists and is no certificate file of ours; choose another folder")
        certificates, ignored = parse_table(_decode(complete, self.path), str(self.path))
        if ignored:
            raise FileFormatError(f"{self.path}: cannot go on after foreign lines; {ignored[0]}")
        return tuple(certificates)

    def _line(self, text: str) -> None:
        try:
            self._append((text + "\n").encode())
        except OSError as error:
            raise InputError(
                f"cannot write {self.path}: {error.strerror}; what it holds is safe, and the same command goes on from there"
            ) from error


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:  # which may be a device, if a link of that name leads there
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > _MOST_BYTES:
        raise FileFormatError(f"{path}: longer than {_MOST_BYTES:,} bytes, which no table of certificates is")
    return _decode(raw, path)


def _decode(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _checked(name: str, value: Any) -> Any:
    if not _is(value, _KINDS[name]):
        raise InputError(f"{name} cannot be {value!r}")
    return float(value) if float in _KINDS[name] and value is not None else value
