"""Write files in one move, and mark them with a schema and a version that readers check."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from arquant.base.errors import FileFormatError, InputError


@contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """Give a scratch file that becomes `path` when the block ends.

    A reader sees the old file or the new one, never a part, even after a crash. If the block fails, `path` is as it was
    and the scratch file is gone.
    """
    scratch = path.with_name(path.name + ".part")
    try:
        scratch.unlink(missing_ok=True)
        scratch.touch()
        mode = (path if path.exists() else scratch).stat().st_mode
        yield scratch
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        scratch.chmod(mode)  # some libraries that write a file keep it to its owner
        scratch.replace(path)
    except BaseException as error:
        scratch.unlink(missing_ok=True)
        if isinstance(error, SafetensorError) and (number := re.search(r"os error (\d+)", str(error))):
            raise OSError(int(number[1]), f"cannot write {path}: {error}") from error
        raise


def write_json(path: Path, data: Any) -> None:
    """Write `data` to `path` in one move."""
    with in_one_move(path) as scratch:
        scratch.write_text(json.dumps(data, indent=1, sort_keys=True, default=str) + "\n")


def copy_file(source: Path, target: Path) -> None:
    """Copy a file in one move."""
    with in_one_move(target) as scratch:
        shutil.copyfile(source, scratch)


def envelope(schema: str, version: int | str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with its schema and version in front."""
    return {"schema": schema, "version": version, **data}


def opened(data: Any, schema: str, version: int | str, where: str | Path) -> dict[str, Any]:
    """Return what `envelope` was given.

    Raises:
        FileFormatError: `data` is not an object, or is of another schema or version.
    """
    if not isinstance(data, Mapping) or data.get("schema") != schema:
        raise FileFormatError(f'{where}: it needs "schema": "{schema}", "version": {version}')
    if data.get("version") != version:
        raise FileFormatError(f"{where}: version {data.get('version')!r} of {schema}; this arquant reads {version}")
    return {name: value for name, value in data.items() if name not in ("schema", "version")}


def read_json(path: str | Path, schema: str, version: int | str) -> dict[str, Any]:
    """Read a JSON file with an envelope.

    Raises:
        InputError: there is no such file.
        FileFormatError: it is damaged, or of another schema or version.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: no valid JSON ({error})") from error
    return opened(data, schema, version, path)
