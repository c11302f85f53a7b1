"""The images of a search by role: calibrate (and fine-tune), search, certify; none in two of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from arquant.base.errors import InputError
from arquant.images.imageset import ImageSet, check_disjoint, split
from arquant.loading.datasets import load_data
from arquant.models.classifier import Classifier

DEFAULT_SEARCH_IMAGES = 500
SPLIT_ROLES = ("calibrate", "search", "certify")
"""the parts of a split, in order"""
_COMPLETE = ("sample", "cifar10")
"""data sets that carry all roles"""


@dataclass(frozen=True, eq=False)
class Roles:
    """Three disjoint sets of images."""

    calibrate: ImageSet
    search: ImageSet
    certify: ImageSet

    def fingerprints(self) -> dict[str, str]:
        """Return a fingerprint per role; of many photos to calibrate on, one of their files' names and sizes."""
        found = {name: getattr(self, name).fingerprint() for name in SPLIT_ROLES[1:]}
        return {SPLIT_ROLES[0]: self.calibrate.identity(), **found}


def load_roles(
    data: str | ImageSet,
    classifier: Classifier,
    *,
    calibrate: str | ImageSet | None = None,
    certify: str | ImageSet | None = None,
    shares: Sequence[float] | None = None,
    search_images: int | None = None,
    images: str | None = None,
    seed: int = 0,
) -> Roles:
    """Read and check the images of every role.

    Args:
        data: the search images; `sample` and `cifar10` have the other roles too.
        calibrate, certify: the other roles of any other data.
        shares: percentages of `data` for calibrate, search and certify, instead of the two above.
        search_images: take so many of the search images, evenly spaced; None takes up to 500.
        images: which of the certify images.

    Raises:
        InputError: a role is missing, or has fewer images than asked for.
        MismatchError: an image is in two roles.
    """
    if shares is not None:
        if calibrate is not None or certify is not None:
            raise InputError("--split takes all roles from DATA; leave out --calibrate and --certify, or --split")
        if len(shares) != 3:
            raise InputError(
                f"--split needs the percentages of calibrate, search and certify, got {len(shares)} numbers"
            )
        parts = split(images_for(data, "search", classifier), shares, seed)
        roles = Roles(parts[0], parts[1], parts[2].select(images))
    else:
        for name, given in (("calibrate", calibrate), ("certify", certify)):
            if given is None and not has_all_roles(data):
                raise InputError(
                    f"{data_name(data)} does not say which images are for which role: give --{name} DATA, or --split 60,20,20"
                )
        searched = images_for(data, "search", classifier)
        names = searched.class_names  # the roles must agree where the model does not know its classes
        roles = Roles(
            images_for(data if calibrate is None else calibrate, "calibrate", classifier).named_as(names),
            searched,
            images_for(data if certify is None else certify, "certify", classifier, images).named_as(names),
        )
    chosen = Roles(roles.calibrate, _searched(roles.search, search_images), roles.certify)
    check_disjoint(chosen.calibrate, chosen.search, chosen.certify)
    return chosen


def images_for(data: str | ImageSet, role: str, classifier: Classifier, images: str | None = None) -> ImageSet:
    """Return the images that DATA has for a role, checked against a model's shape and classes; `images` selects.

    Classes are compared by name where model and DATA know theirs: another order is mapped to the model's, another set refused.
    """
    if not isinstance(data, ImageSet):
        return load_data(data, role, model=classifier, images=images)
    if data.shape != classifier.input_shape or data.num_classes != classifier.num_classes:
        raise InputError(
            f"{data.name} has images of shape {data.shape} in {data.num_classes} classes, the model takes "
            f"{classifier.input_shape} and has {classifier.num_classes}"
        )
    return data.named_as(classifier.class_names).select(images)


def note_photos(classifier: Classifier, images: ImageSet) -> None:
    """Let a model remember, for its file, how the photos that it is made with became its input, and their classes."""
    if images.fit is not None:
        classifier.fit = classifier.fit or images.fit
        classifier.class_names = classifier.class_names or images.class_names


def has_all_roles(data: str | ImageSet) -> bool:
    """Tell whether DATA itself says which images are for which role."""
    return isinstance(data, str) and data.partition(":")[0] in _COMPLETE


def data_name(data: str | ImageSet) -> str:
    """Return DATA as text: as it was spelled, or the name of the images."""
    return data if isinstance(data, str) else data.name


def _searched(images: ImageSet, count: int | None) -> ImageSet:
    """Return `count` images spread over the whole set; without a count, up to 500."""
    if count is not None and not 0 < count <= len(images):
        raise InputError(
            f"{count} search images were asked for (--search-images), {images.name} has {len(images)}; use fewer"
        )
    return images.select(f"most:{count or DEFAULT_SEARCH_IMAGES}")
