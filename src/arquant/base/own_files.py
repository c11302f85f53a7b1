"""One rule for the files of a folder that others may have made: they lie in it, and they are files.

arquant finds the files of a run folder by their names. A symbolic link of such a name may lead anywhere, so that reading would
show, and writing would change, what the user never named; a pipe or a device would be read without end. What a user names
on the command line may be anything.
"""

import stat
from pathlib import Path

from arquant.base.errors import FileFormatError


def own_file(folder: Path, *names: str) -> Path:
    """Return the path of a file or a folder that arquant looks for in `folder` by its name; it need not exist.

    Raises:
        FileFormatError: it leads out of the folder, or is neither a regular file nor a folder.
    """
    path = folder.joinpath(*names)
    try:
        real = path.resolve()
        inside = real.is_relative_to(folder.resolve())
        mode = real.stat().st_mode if inside and real.exists() else None
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, or no name at all
        raise FileFormatError(f"{str(path)!r} is not a file: {error}") from error
    if not inside:
        raise FileFormatError(f"{path} leads out of {folder}, to {real}; if you trust it, put a copy in its place")
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileFormatError(f"{path} is not a regular file")
    return path
