"""DATA specs: `sample`, `cifar10`, `folder:DIR`, `npz:FILE`, `package.module:factory`, each read as an `ImageSet`."""

import importlib
import os
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arquant.base.errors import ArquantError, FileFormatError, InputError, MismatchError
from arquant.base.importing import current_folder_importable
from arquant.base.memory import available_bytes
from arquant.images.cifar10 import cifar10_directory as cifar10_directory
from arquant.images.cifar10 import load_cifar10
from arquant.images.cifar10_fetch import fetch_cifar10 as fetch_cifar10
from arquant.images.folder import class_names, load_folder
from arquant.images.imageset import Images, ImageSet
from arquant.images.imageset import check_disjoint as check_disjoint
from arquant.images.imageset import split as split
from arquant.images.sample import load_sample
from arquant.models.photo_fit import COVER

if TYPE_CHECKING:
    from arquant.models.classifier import Classifier

ROLES = ("calibrate", "search", "certify", "development")
SPELLINGS = "sample, cifar10, cifar10:DIR, folder:DIR (one folder per class), npz:FILE, package.module:factory"

# Float images may leave the bounds by this share of their range: rounding of a foreign normalisation. They are clipped.
SLACK = 1e-6


def load_data(
    spec: str,
    role: str,
    *,
    model: "Classifier | None" = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    num_classes: int | None = None,
    size: tuple[int, int, int] | None = None,
    images: str | None = None,
    fit: str | None = None,
) -> ImageSet:
    """Read the images that `spec` has for `role`, checked: finite, inside the bounds, one valid label each.

    Args:
        spec: see `SPELLINGS`. `sample` and `cifar10` hold different images for every role; any other spec gives all its
            images to whatever role is asked for.
        role: calibrate, search, certify or development.
        model: tells bounds, number and names of the classes, size and fit. Classes of the same names in another order get
            the model's numbers.
        bounds: (low, high) of float images, which are mapped to unit space [0, 1]; 8-bit images are kept as they are.
        num_classes: of the model; None takes what the data say.
        size: (C, H, W) of the model; a folder's photos are brought to it, other data must have it. None takes what the
            data have.
        images: a selection of positions as in `ImageSet.select`; a folder reads only those files.
        fit: how a folder's photos are brought to `size`: `cover` (the default; resized until the shorter side fits, cropped
            at the centre), `squash`, `exact` or the shorter side before the crop, such as `256`.
    """
    if model is not None:
        bounds, num_classes, size = model.bounds, model.num_classes, model.input_shape
        fit = model.fit if fit is None else fit
    if not isinstance(spec, str):
        raise InputError(f"data are an ImageSet or a text ({SPELLINGS}), got a {type(spec).__name__}")
    if role not in ROLES:
        raise InputError(f"unknown role {role!r}; valid are {', '.join(ROLES)}")
    if not bounds[0] < bounds[1] or not np.isfinite(bounds).all():
        raise InputError(f"bounds must be finite (low, high) with low < high, got {bounds}")
    kind, _, rest = spec.partition(":")
    if spec == "sample":
        loaded = load_sample(role).select(images)
    elif kind == "cifar10" and (rest or spec == kind):
        loaded = load_cifar10(role, Path(os.path.expanduser(rest)) if rest else None).select(images)
    elif kind == "folder" and rest:
        loaded = load_folder(
            Path(os.path.expanduser(rest)),
            size=size,
            images=images,
            fit=COVER if fit is None else fit,
            on_demand=role == "calibrate",
        )
    elif kind == "npz" and rest:
        loaded = from_arrays(
            *_labelled(Path(os.path.expanduser(rest))), spec, bounds=bounds, num_classes=num_classes
        ).select(images)
    elif is_data_factory(spec):
        loaded = from_arrays(*_call_factory(kind, rest), spec, bounds=bounds, num_classes=num_classes).select(images)
    else:
        raise InputError(f"cannot read the data spec {spec!r}; valid are {SPELLINGS}{_guess(spec)}")
    named = loaded if model is None else loaded.named_as(model.class_names)
    _check_model(named, num_classes, size)
    return named


def count_classes(spec: str, role: str, bounds: tuple[float, float] = (0.0, 1.0)) -> int:
    """Return how many classes `spec` has: the folders of `folder:DIR`, of which no photo is read, or what the labels tell."""
    kind, _, rest = str(spec).partition(":")
    if kind == "folder" and rest:
        return len(class_names(Path(os.path.expanduser(rest))))
    return load_data(spec, role, bounds=bounds).num_classes


def from_arrays(
    images: ArrayLike,
    labels: ArrayLike,
    name: str = "images",
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    num_classes: int | None = None,
) -> ImageSet:
    """Return a checked set of images (N, C, H, W), uint8 or float in `bounds`, and integer labels (N,), indices 0..N-1.

    Arrays that are already as needed are not copied.
    """
    try:
        pixels, classes = np.asarray(images), np.asarray(labels)
    except Exception as error:  # foreign array types raise what they like
        raise InputError(f"{name}: images and labels must be arrays: {error}") from error
    if classes.dtype.kind not in "iu":
        raise InputError(f"{name}: labels must be integers, got {classes.dtype}; convert them with .astype('int64')")
    if classes.shape != pixels.shape[:1]:
        raise InputError(f"{name}: labels must have one entry per image: images {pixels.shape}, labels {classes.shape}")
    _check_layout(pixels, name)
    if classes.size and int(classes.max()) >= 2**31:
        raise InputError(f"{name}: label {classes.max()} is not a class number")
    if num_classes is None:
        num_classes = max(int(classes.max()) + 1, 2) if classes.size else 2
    unit = pixels if pixels.dtype == np.uint8 else _to_unit(pixels, bounds, name)
    unit = np.require(unit, requirements=["C", "W"])  # torch.from_numpy warns of read-only arrays
    return ImageSet(unit, classes.astype(np.int64), np.arange(len(pixels), dtype=np.int64), name, num_classes)


def _check_layout(pixels: NDArray[Any], name: str) -> None:
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise InputError(f"{name}: images must be uint8 or float, got {pixels.dtype}")
    if pixels.ndim != 4 or pixels.size == 0:
        raise InputError(f"{name}: images must be N x C x H x W and not empty, got shape {pixels.shape}")
    if pixels.shape[3] in (1, 3) and min(pixels.shape[1:3]) > 4:
        raise InputError(
            f"{name}: images of shape {pixels.shape} look like N x H x W x C; store them as N x C x H x W "
            "(images.transpose(0, 3, 1, 2))"
        )


def _to_unit(pixels: NDArray[Any], bounds: tuple[float, float], name: str) -> Images:
    """Turn float images in `bounds` into float32 in [0, 1], a few at a time so that no second float copy exists."""
    low, high = bounds
    unit = np.empty(pixels.shape, dtype=np.float32)
    step = max(1, 2**20 // int(np.prod(pixels.shape[1:])))
    for first in range(0, len(pixels), step):
        with np.errstate(all="ignore"):  # what overflows is reported below, as outside the bounds
            block = (pixels[first : first + step].astype(np.float64) - low) / (high - low)
        if np.isnan(block).any():
            bad = first + int(np.flatnonzero(np.isnan(block).any(axis=(1, 2, 3)))[0])
            raise InputError(f"{name}: image {bad} holds NaN pixels")
        outside = (block < -SLACK) | (block > 1 + SLACK)
        if outside.any():
            place = np.argwhere(outside)[0]
            value = float(pixels[(first + int(place[0]), *place[1:])])
            raise InputError(
                f"{name}: image {first + int(place[0])} has the pixel value {value:g}, outside the bounds "
                f"{low:g}..{high:g}; state the right ones (--bounds 0,255) or store uint8"
            )
        unit[first : first + step] = np.clip(block, 0.0, 1.0)
    return unit


def _check_model(loaded: ImageSet, num_classes: int | None, size: tuple[int, int, int] | None) -> None:
    if num_classes is not None and loaded.num_classes != num_classes:
        raise MismatchError(
            f"{loaded.name} has {loaded.num_classes} classes, the model {num_classes}: labels would be misread "
            "(folder:DIR needs one folder per class of the model, an empty one if there are no images of it)"
        )
    if size is not None and loaded.shape != tuple(size):
        raise MismatchError(f"{loaded.name} has images of shape {loaded.shape}, the model takes {tuple(size)}")


def _labelled(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = read_npz(path)
    if labels is None:
        raise FileFormatError(f"{path} has no array 'labels'; only `arquant predict` needs none")
    return images, labels


def read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the arrays `images` and, if there is one, `labels` of an npz archive."""
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would be waited for without end
        raise FileFormatError(f"cannot read {path} as npz: it is not a regular file")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise FileFormatError(f"{path} holds one bare array, not an npz archive")
            with content:
                archive: Any = content.zip
                size = sum(part.file_size for part in archive.infolist())
                if size > (available_bytes() or size):
                    raise FileFormatError(f"{path} holds arrays of {size:,} bytes, more than there is memory for")
                if "images" not in content:
                    raise FileFormatError(f"{path} has no array 'images'; it has {sorted(content)[:10]}")
                return content["images"], content.get("labels")
    except ArquantError:
        raise
    except FileNotFoundError:
        raise InputError(f"there is no file {path} (npz:FILE)") from None
    except Exception as error:  # zip, zlib and npy readers raise many kinds of exceptions on damaged files
        raise FileFormatError(
            f"cannot read {path} as npz with the arrays 'images' and 'labels' (no pickled objects): {error}"
        ) from error


_FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_data_factory(spec: str) -> bool:
    """Tell whether reading `spec` runs the user's code."""
    return spec.partition(":")[0] not in ("sample", "cifar10", "folder", "npz") and _FACTORY.fullmatch(spec) is not None


def _call_factory(module: str, name: str) -> tuple[Any, Any]:
    spec = f"{module}:{name}"
    with current_folder_importable():
        try:
            found: Any = importlib.import_module(module)
            factory = reduce(getattr, name.split("."), found)
        except Exception as error:  # the module is the user's: importing it may raise anything
            raise InputError(f"cannot import the data factory {spec!r}: {error}; data specs are {SPELLINGS}") from error
        try:
            made = factory()
        except ArquantError:
            raise
        except Exception as error:
            raise InputError(f"the data factory {spec!r} failed with {type(error).__name__}: {error}") from error
    if not isinstance(made, Sequence) or len(made) != 2:
        raise InputError(f"the data factory {spec!r} must return (images, labels), got {type(made).__name__}")
    return made[0], made[1]


def _guess(spec: str) -> str:
    if os.path.isdir(os.path.expanduser(spec)):
        return f"; did you mean folder:{spec}?"
    if spec.endswith(".npz"):
        return f"; did you mean npz:{spec}?"
    if spec.lower().replace("-", "").replace("_", "").startswith("cifar"):
        return "; did you mean cifar10?"
    return ""
