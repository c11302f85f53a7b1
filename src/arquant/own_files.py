"""One rule for the files of a folder that others may have made: they lie in it, and they are files.

arquant finds the files of a run folder by their names. A symbolic link of such a name may lead anywhere, so that reading would
show, and writing would change, what the user never named; a pipe or a device would be read without end. What a user names
on the command line may be anything.
"""

import stat
from pathlib import Path

from arquant.errors import FileFormatError


def own_file(path: Path) -> Path:
    """Return `path`, a file or a folder that arquant found or makes by its name, unless it is not really in its folder.

    Raises:
        FileFormatError: it is a symbolic link that leads out of its folder, or neither a regular file nor a folder.
    """
    check_inside(path.parent, path)
    return path


def check_inside(folder: Path, path: Path) -> None:
    """Refuse a path below `folder` that leads out of it, or to a device, a pipe or the like; it need not exist."""
    try:
        real = path.resolve()
        mode = real.stat().st_mode if real.exists() else None
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, or no name at all
        raise FileFormatError(f"{str(path)!r} is not a file: {error}") from error
    if not real.is_relative_to(folder.resolve()):
        raise FileFormatError(
            f"{path} is a symbolic link to {real}, outside of its folder; if you trust it, put a copy in its place"
        )
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileFormatError(f"{path} is not a regular file")
