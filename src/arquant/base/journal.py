"""The journal of a search: one JSON object per line, only ever appended, each on disk before the next step begins.

The first line says what the search is about; a journal of another search is refused. Whatever kills the process leaves
complete lines and at most one torn one, which is cut off when the journal is opened again.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.file_lock import lock, unlock
from arquant.base.own_files import own_file
from arquant.base.run_folder import differences

SCHEMA, VERSION = "arquant.journal", 1
Record = dict[str, Any]


class Journal:
    """An open journal. `identity` is what it began with, `records` are all lines after that, in order.

    Args:
        path: the file; created if it does not exist.
        identity: plain data that must be equal for a search to be continued: model, data, settings.
        free: settings of it that need not be equal; those inside of others have a dot between the names.

    Raises:
        MismatchError: the journal belongs to another search, or another process has it open.
        FileFormatError: a line other than the last is damaged, or the file is none of ours.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, free: Sequence[str] = ()) -> None:
        self.path = path
        header = {"schema": SCHEMA, "version": VERSION, "identity": json.loads(json.dumps(identity))}
        try:
            self._file = own_file(path.parent, path.name).open("a+b", buffering=0)
        except OSError as error:
            raise InputError(f"cannot open {path}: {error.strerror}") from error
        try:
            lock(self._file, path)
            self._file.seek(0)
            raw = self._file.read()
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
            unlock(self._file)
            raise
        self.identity: Record = (lines or [header])[0]["identity"]
        self.records: list[Record] = lines[1:]

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line; it is on disk when this returns. If that fails, the journal is as it was before."""
        plain: Record = json.loads(json.dumps(record, allow_nan=False))
        self._write(plain)
        self.records.append(plain)

    def close(self) -> None:
        """Close the file, and let other runs have it."""
        unlock(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: Mapping[str, Any]) -> None:
        line = memoryview(_line(data))
        size = len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), self._size)
            raise
        self._size += size


def _line(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, allow_nan=False) + "\n").encode()


def read_journal(path: Path | str) -> tuple[Record, list[Record]]:
    """The identity and the records of a journal that another process may be writing."""
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
    """The complete lines, and how many bytes they take. A last line that is torn or no JSON is left out."""
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
    if found.get("schema") != SCHEMA or not isinstance(found.get("identity"), dict):
        raise FileFormatError(f"{path}: not a journal of arquant; choose another --out")
    if found.get("version") != VERSION:
        raise FileFormatError(f"{path}: version {found.get('version')!r} of the journal, this arquant reads {VERSION}")
    if wanted is not None and (shown := differences(found["identity"], wanted["identity"], free)):
        raise MismatchError(f"{path.parent} holds another search ({shown}); choose another --out")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
