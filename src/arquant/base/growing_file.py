"""A file that one run appends to: journals and certificate tables."""

from pathlib import Path
from types import TracebackType
from typing import Self

from arquant.base.errors import InputError
from arquant.base.file_lock import lock, unlock
from arquant.base.own_files import own_file


class GrowingFile:
    """An open file that no other run can have until `close`. Bytes go to the system at once, without a buffer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = own_file(path.parent, path.name).open("a+b", buffering=0)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error
        try:
            lock(self._file, path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, and let other runs have it."""
        unlock(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _content(self) -> bytes:
        self._file.seek(0)
        return self._file.read()

    def _append(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:  # one call may write a part only
            rest = rest[self._file.write(rest) :]
