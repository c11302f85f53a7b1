"""Votes of images in progress, in a file beside the certificates: a killed run goes on inside an image."""

import json
from collections.abc import Mapping
from pathlib import Path

from arquant.base.errors import FileFormatError
from arquant.base.files import write_json
from arquant.base.own_files import own_file
from arquant.certificates.certificate import Settings
from arquant.certification.certify_work import Started


def write_partial(path: Path, run: str, states: Mapping[int, Started]) -> None:
    """Replace the file in one move. `run` names run and engine: no others may continue with these votes."""
    write_json(path, {"run": run, "images": {str(index): state.to_json() for index, state in states.items()}})


def read_partial(path: Path, run: str, settings: Settings, num_classes: int) -> dict[int, Started]:
    """Return the votes by dataset index, none if there is no file.

    Raises:
        FileFormatError: the file is damaged, belongs to another run, or holds votes that these settings cannot yield.
    """
    try:
        data = json.loads(own_file(path.parent, path.name).read_text())
        states = {int(index): Started.from_json(state) for index, state in data["images"].items()}
        sound = data["run"] == run and all(state.fits(settings, num_classes) for state in states.values())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged ({error})") from error
    if not sound:
        raise FileFormatError(f"{path} does not belong to this run, or its votes are of another engine or processor")
    return states
