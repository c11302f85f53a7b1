"""The images of a run folder: which it used, and which it left for certification. None of the former is ever certified."""

from collections.abc import Callable
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.files import in_one_move
from arquant.base.own_files import own_file
from arquant.base.run_folder import CONFIG, found_above, read_config
from arquant.base.seen import Seen, Use
from arquant.images.imageset import ImageSet
from arquant.images.seen_images import found_in, known_hashes, undecided
from arquant.loading.datasets import is_data_factory, split
from arquant.loading.models import model_path
from arquant.loading.roles import SPLIT_ROLES, has_all_roles, images_for
from arquant.models.classifier import Classifier
from arquant.noise.source import KINDS

SEEN = "seen.npz"
"""the first 8 bytes of the hash of each image that a run used, in one array per use"""


def run_of(model: str | Path | Classifier) -> Path | None:
    """Return the run folder that MODEL is, or that its file lies in; None if there is none.

    Beside a file there may be another program's `config.yaml`.
    """
    folder = _folder_of(model)
    if folder is None or not (folder / CONFIG).is_file():
        return None
    return folder if Path(str(model)).is_dir() or (folder / SEEN).exists() or _is_ours(folder) else None


def _folder_of(model: str | Path | Classifier) -> Path | None:
    path = model_path(model) if isinstance(model, (str, Path)) else None
    return path if path is None or path.is_dir() else path.parent


def _is_ours(folder: Path) -> bool:
    try:
        return "command" in read_config(folder)
    except FileFormatError:
        return False


def run_images(
    run: Path | None,
    role: str,
    classifier: Classifier,
    *,
    data: str | ImageSet | None = None,
    images: str | None = None,
) -> ImageSet:
    """Return the images of a role for the model of a run.

    Args:
        run: the run folder; None for a model without one.
        role: calibrate or certify.
        data: None takes what the run has for the role, else `sample`. The run's own DATA, if the run split it, means the
            part of it that is for the role.
        images: which of them; where neither this nor `data` is stated, the run's own selection.

    Raises:
        InputError: the images are made by code that only the run names: the user has to name it.
    """
    config = {} if run is None else read_config(run)
    own = config.get(role) or config.get("data") or "sample"
    if data is None and is_data_factory(str(own)):
        raise InputError(
            f"{run} takes its images from the code {own!r}, which reading them would run; if you trust it, state it: "
            f"DATA {own}"
        )
    if data is None and images is None and role == "certify":
        images = config.get("images")
    wanted = own if data is None else data
    shares = config.get("split")
    if shares is None or wanted != config.get("data"):
        return images_for(wanted, role, classifier, images)
    parts = split(images_for(wanted, "search", classifier), shares, config.get("seed", 0))  # as `load_roles` does
    return parts[SPLIT_ROLES.index(role)].select(images)


def keeps_images(run: Path) -> bool:
    """Tell whether the run has images of its own to certify: from another DATA, a part, or a role of its DATA."""
    config = read_config(run)
    return bool(config.get("certify") or config.get("split")) or has_all_roles(config.get("data") or "sample")


def run_sigma(run: Path | None, sigma: float | None, classifier: Classifier | None = None) -> float:
    """Return `sigma` if it is stated, else the one in the model's file, else the run's.

    Raises:
        InputError: none of them is known.
    """
    own = known_sigma(run, classifier) if sigma is None else sigma
    if own is None:
        raise InputError("say how large the noise is: --sigma 0.5 (only what arquant wrote knows its own)")
    return own


def known_sigma(run: Path | None, classifier: Classifier | None = None) -> float | None:
    """Return the noise that a model is for, by its file or else its run; None if neither says."""
    if classifier is not None and classifier.sigma is not None:
        return classifier.sigma
    own = _stated(run, "sigma")
    if own is not None and not isinstance(own, (int, float)):
        raise FileFormatError(f"{run}/{CONFIG} has the sigma {own!r}, which is no number; state it: --sigma 0.5")
    return own


def run_noise(run: Path | None, noise: str | None) -> str:
    """Return `noise` if it is stated, else the run's, else `grid`."""
    own = _stated(run, "noise") if noise is None else noise
    if noise is None and own is not None and own not in KINDS:
        raise FileFormatError(f"{run}/{CONFIG} has the noise {own!r}, which is none of {', '.join(KINDS)}; state it")
    return own or "grid"


def _stated(run: Path | None, name: str) -> Any:
    """Return a setting of a run's configuration; None without a run, a configuration or such a setting."""
    return read_config(run).get(name) if run is not None and (run / CONFIG).is_file() else None


def seen_by(model: str | Path, classifier: Classifier) -> Seen:
    """Return the images that MODEL is known to have seen: from its file, else from the folders that it lies in."""
    if classifier.seen is not None and classifier.seen.recorded:
        return classifier.seen
    return _beside(model)


def record_seen(run: Path, *, origin: str | Path | None = None, **used: ImageSet) -> None:
    """Remember the images that a run used, by what it used them for; what it remembers already stays.

    What the training of `origin`, the MODEL that the run starts from, is known to have used is remembered too. Photos on demand
    are remembered when they were read: whoever uses some calls this again before their model is written.
    """
    before = _read_seen(run / SEEN) | (Seen() if origin is None else _beside(origin))
    now = before | Seen({use: Use(digests=known_hashes(images)) for use, images in used.items()})
    with in_one_move(run / SEEN) as scratch, scratch.open("wb") as file:
        np.savez(file, **{name: use.digests for name, use in now.uses.items()})  # type: ignore[arg-type]


def check_unseen(
    model: str | Path | Classifier,
    images: ImageSet,
    classifier: Classifier | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> None:
    """Refuse an image that the run or the training of MODEL used, or the run that a folder of a budget or a control is in.

    Args:
        classifier: what MODEL names, which may carry a record of its own; by default MODEL, if it is one.
        warn: told if a file of ours carries no record and none lies beside it, or one of images that are not here.

    Raises:
        MismatchError: there is such an image; the message says which, for what it was used, and what to do.
    """
    classifier = model if isinstance(model, Classifier) else classifier
    own = Seen() if classifier is None or classifier.seen is None else classifier.seen
    beside = _beside(model)
    for record, name in ((beside, str(_home_of(model))), (own, "" if classifier is None else classifier.name)):
        for use, known in found_in(record, images):
            raise MismatchError(
                f"image {images.indices[known[0]]} of {images.name} was used by {name} ({use}), with "
                f"{len(known) - 1} others of {len(images)}: certificates are for images that a run never saw; name other "
                "images (DATA or --images), or leave both out after a search, which kept some for this"
            )
    if beside.uses:
        return
    named = model.name if isinstance(model, Classifier) else model
    if not own.recorded:
        warn(
            f"{named} does not say which images it was trained or calibrated on, and no {SEEN} lies beside it: make sure that "
            f"none of {images.name} is among them; certificates are for images that a model never saw"
        )
    elif left := undecided(own, images):
        warn(
            f"{named} was made with the images of {', '.join(left)}, which are not on this machine: make sure that none of "
            f"{images.name} is among them"
        )


def _beside(model: str | Path | Classifier) -> Seen:
    """Return the images that MODEL's folder, and those it lies in, say they have used."""
    folder = _home_of(model)
    files = [] if folder is None else found_above(folder, SEEN)
    return reduce(or_, map(_read_seen, files), Seen())


def _home_of(model: str | Path | Classifier) -> Path | None:
    """Return the folder of MODEL; for a Classifier, the one its weights were read from."""
    return _folder_of(model.name if isinstance(model, Classifier) else model)


def _read_seen(path: Path) -> Seen:
    if not path.exists():
        return Seen()
    try:
        with own_file(path.parent, path.name).open("rb") as file, np.load(file, allow_pickle=False) as content:
            seen = {str(use): np.asarray(content[use]) for use in content.files}
    except Exception as error:  # zip, zlib and npy readers raise many kinds of exceptions on damaged files
        raise FileFormatError(f"{path} is damaged ({error}); it says which images the run used") from error
    if any(hashes.dtype != np.uint64 or hashes.ndim != 1 for hashes in seen.values()):
        raise FileFormatError(f"{path} does not hold hashes of images")
    return Seen({use: Use(digests=hashes) for use, hashes in seen.items()})
