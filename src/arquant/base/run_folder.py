"""A run folder's own account of itself: `config.yaml`, the resolved settings that later commands take over."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.files import in_one_move
from arquant.base.identity import check_same
from arquant.base.own_files import own_file
from arquant.base.plain_yaml import read_settings

CONFIG = "config.yaml"
MODEL = "model.safetensors"
QUANTIZED = "quantized.safetensors"
"""the model before fine-tuning, which `finetune` starts from"""
FINETUNING = "finetuning.safetensors"
"""the checkpoint of `finetune`"""
JOURNAL = "journal.jsonl"
POLICY = "policy.json"
CERTIFICATES = "certificates.tsv"
SUMMARY = "summary.json"
"""of a finished search"""
POINTS = "points"
"""where the models of several budgets are, a folder each"""
_DEEPEST = 5
"""folders from a control of one of several budgets up to its run, both included"""
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("command", "model", "data", "calibrate", "certify", "images", "calibrate_images"), (str,)),
    **dict.fromkeys(("model_options", "strategy_options"), (dict,)),
    **dict.fromkeys(("split", "tables"), (list,)),
    "seed": (int,),
}
"""of the settings that other commands take over, where they are stated"""


def open_run(folder: str | Path, config: Mapping[str, Any], *, free: Sequence[str] = ()) -> Path:
    """Make a folder the home of a run with this configuration, or find it to be that already.

    A folder without a configuration is accepted and its files are left alone; one of another run is refused. Settings that
    are `free` may differ, and stay as they are there until `change_config`.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    if (path / CONFIG).exists():
        check_same(read_config(path), _plain(config), f"{path} holds another run", free=free)
        return path
    _write_config(path, config)
    return path


def change_config(folder: Path, changes: Mapping[str, Any]) -> None:
    """Write other values of some settings into the configuration of a run."""
    _write_config(folder, {**read_config(folder), **changes})


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    with in_one_move(folder / CONFIG) as scratch:
        scratch.write_text(yaml.safe_dump(_plain(dict(config)), sort_keys=False))


def check_own(folder: Path, mark: str) -> None:
    """Refuse a folder whose model, policy or certificates a run would replace, unless a file `mark` shows it to be its own."""
    found = [name for name in (MODEL, POLICY, CERTIFICATES) if (folder / name).exists()]
    if found and not (folder / mark).exists():
        raise MismatchError(f"{folder} holds the {found[0]} of something else; choose another --out")


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the configuration of a run folder."""
    path = own_file(Path(folder), CONFIG)
    if not path.exists():
        raise InputError(f"{folder} is not a run folder: it has no {CONFIG}")
    data = read_settings(path)
    for name, kinds in _KINDS.items():
        if not isinstance(data.get(name), (*kinds, type(None))) or isinstance(data.get(name), bool):
            raise FileFormatError(f"{path}: {name} cannot be {data[name]!r}")
    return data


def keep_file(source: Path, target: Path) -> None:
    """Copy a file into a run folder, in one move, unless it is there."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with in_one_move(target) as scratch:
            shutil.copyfile(source, scratch)


def find_above(folder: Path, name: str) -> Path | None:
    """Return a file of a run, looked for in a folder of it and then upwards: a control or a budget lies inside its run."""
    return next(found_above(folder, name), None)


def found_above(folder: Path, name: str) -> Iterator[Path]:
    """Return all files of this name in a folder of a run and above it, the nearest first."""
    places = [folder.resolve(), *folder.resolve().parents][:_DEEPEST]
    return (file for place in places if (file := own_file(place, name)).is_file())


def search_of(folder: Path) -> Path | None:
    """Return the run folder of a folder's search: itself, or for a budget or a control one above; None if it is of none."""
    journal = find_above(folder, JOURNAL) if read_config(folder).get("command") == "search" else None
    return None if journal is None else journal.parent


def earlier_place(folder: Path, fingerprint: str) -> Path:
    """Return where a folder keeps what was of a model that is no longer its own."""
    return own_file(folder, "earlier", fingerprint[:12])


def _plain(value: Any) -> Any:
    """As YAML gives it back: tuples are lists, paths are text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
