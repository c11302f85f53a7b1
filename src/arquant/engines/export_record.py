"""Which files were exported into a folder, and their hashes: `exports.json`, by which `arquant check` knows them again."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from arquant.base.errors import FileFormatError
from arquant.base.files import write_json
from arquant.base.own_files import own_file
from arquant.engines.exporting import Exported
from arquant.engines.files import file_digest

EXPORTS = "exports.json"


@dataclass(frozen=True)
class ExportEntry:
    """One exported file.

    Attributes:
        sha256: of the file, and of the one beside it that holds its weights.
        fingerprint: of the model that it was exported from.
    """

    format: str
    sha256: str
    fingerprint: str


def record_export(exported: Exported) -> None:
    """Note the file in the record of its folder; an earlier entry of the same name is replaced."""
    folder = exported.path.parent
    entries = known_exports(folder)
    entry = ExportEntry(exported.format, file_digest(exported.path), exported.facts.fingerprint)
    entries[exported.path.name] = entry
    write_json(folder / EXPORTS, {name: asdict(entries[name]) for name in sorted(entries)})


def known_exports(folder: Path) -> dict[str, ExportEntry]:
    """Return what `read_exports` gives, for those who only want to know the files: a damaged record names none."""
    try:
        return read_exports(folder)
    except FileFormatError:
        return {}


def read_exports(folder: Path) -> dict[str, ExportEntry]:
    """Return the record of a folder by the names of the files, empty if there is none."""
    path = own_file(folder, EXPORTS)
    try:
        return {name: _entry(name, fields) for name, fields in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged ({error}); export again") from error


def _entry(name: str, fields: dict[str, str]) -> ExportEntry:
    entry = ExportEntry(**fields)
    if Path(name).name != name or not all(isinstance(value, str) for value in asdict(entry).values()):
        raise ValueError(f"its entry {name!r} is not one of a file in this folder")
    return entry
