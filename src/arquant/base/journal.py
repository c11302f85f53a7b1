"""Keep the journal of a run: one JSON object per line, only ever appended, each on disk before the next step begins.

The first line says what the run is about; a journal of another run is refused. Whatever kills the process leaves
complete lines and at most one torn line, which is cut off when the journal is opened again.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from arquant.base.errors import FileFormatError, InputError
from arquant.base.files import envelope, opened
from arquant.base.growing_file import GrowingFile
from arquant.base.identity import check_same
from arquant.base.own_files import own_file
from arquant.base.records import TypedRecord

SCHEMA, VERSION = "arquant.journal", 1
Record = dict[str, Any]
L = TypeVar("L", bound=TypedRecord)
ReadLine = Callable[[Record, str], L]
"""makes a typed line of the data of one; the text says which line it is"""


class Journal(GrowingFile):
    """An open journal. `identity` is what it began with, `records` are all lines after that, in order.

    Args:
        path: the file; created if it does not exist.
        identity: plain data that must be equal for a run to be continued: model, data, settings.
        free: settings that may differ; a dot joins the names of nested ones.

    Raises:
        MismatchError: the journal belongs to another run, or another process has it open.
        FileFormatError: a line other than the last is damaged, or the file is none of ours.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, free: Sequence[str] = ()) -> None:
        header = envelope(SCHEMA, VERSION, {"identity": json.loads(json.dumps(identity))})
        super().__init__(path)
        try:
            raw = self._content()
            lines, self._size = _complete_lines(raw, path)
            if not lines and not _line(header).startswith(raw):
                raise FileFormatError(f"{path}: not a journal of arquant; choose another --out")
            if lines:
                _check_header(lines[0], header, path, free)
            self._file.truncate(self._size)
            if not lines:
                self._write(header)
                _sync_folder(path.parent)
        except BaseException:
            self.close()
            raise
        self.identity: Record = (lines or [header])[0]["identity"]
        self.records: list[Record] = lines[1:]

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a line; it is on disk when this returns. If that fails, the journal is as it was before."""
        plain: Record = json.loads(json.dumps(record, allow_nan=False))
        self._write(plain)
        self.records.append(plain)

    def _write(self, data: Mapping[str, Any]) -> None:
        line = _line(data)
        try:
            self._append(line)
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), self._size)
            raise
        self._size += len(line)


class TypedJournal(Journal, Generic[L]):
    """A journal whose lines are typed records: `lines`, in order.

    Args:
        read: gives the typed line.

    Raises:
        FileFormatError: a line holds what no run writes there; the message names the line and the field.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], read: ReadLine[L], *, free: Sequence[str] = ()) -> None:
        super().__init__(path, identity, free=free)
        try:
            self.lines: list[L] = _typed(path, self.records, read)
        except BaseException:
            self.close()
            raise

    def add(self, line: L) -> None:
        """Append a line; it is on disk when this returns."""
        self.append(line.plain())
        self.lines.append(line)


def read_typed_journal(path: Path | str, read: ReadLine[L]) -> tuple[Record, list[L]]:
    """Read identity and typed lines of a journal that another process may be writing."""
    identity, records = read_journal(path)
    return identity, _typed(path, records, read)


def _typed(path: Path | str, records: Sequence[Record], read: ReadLine[L]) -> list[L]:
    # the first line of the file is the header
    return [read(record, f"{path}, line {number}") for number, record in enumerate(records, start=2)]


def _line(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, allow_nan=False) + "\n").encode()


def read_journal(path: Path | str) -> tuple[Record, list[Record]]:
    """Read identity and lines of a journal that another process may be writing."""
    try:
        raw = own_file(Path(path).parent, Path(path).name).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    lines, _ = _complete_lines(raw, Path(path))
    if not lines:
        raise FileFormatError(f"{path}: an empty journal")
    _check_header(lines[0], None, Path(path))
    identity: Record = lines[0]["identity"]
    return identity, lines[1:]


def _complete_lines(raw: bytes, path: Path) -> tuple[list[Record], int]:
    """Return the complete lines and how many bytes they take. A last line that is torn or no JSON is left out."""
    *complete, _ = raw.split(b"\n")
    lines: list[Record] = []
    size = 0
    for number, text in enumerate(complete, start=1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            if number == len(complete) > 1:
                break
            raise FileFormatError(f"{path}, line {number}: damaged ({error}); choose another --out") from None
        lines.append(line)
        size += len(text) + 1
    return lines, size


def _check_header(found: Record, wanted: Record | None, path: Path, free: Sequence[str] = ()) -> None:
    identity = opened(
        found, SCHEMA, VERSION, f"{path}: not a journal of arquant of this version, choose another --out"
    ).get("identity")
    if not isinstance(identity, dict):
        raise FileFormatError(f"{path}: the first line does not say what the journal is about; choose another --out")
    if wanted is not None:
        check_same(identity, wanted["identity"], f"{path.parent} holds another search", free=free)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
