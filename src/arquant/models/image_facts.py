"""What files say of a model's images beside their shape: the names of the classes, and how photos become its input."""

from collections.abc import Mapping
from typing import Any

from arquant.base.errors import FileFormatError, InputError
from arquant.models.classifier import Classifier
from arquant.models.photo_fit import check_fit


def about_images(classifier: Classifier) -> dict[str, Any]:
    """Return what is known of `class_names` and `fit` as plain data; empty if nothing is."""
    names = {"class_names": list(classifier.class_names)} if classifier.class_names else {}
    return {**names, **({} if classifier.fit is None else {"fit": classifier.fit})}


def tell_about_images(classifier: Classifier, facts: Mapping[str, Any], where: str) -> None:
    """Tell a classifier what `about_images` returned; facts of other kinds are left alone.

    Raises:
        FileFormatError: they are damaged, or for another number of classes.
    """
    try:
        names, fit = tuple(str(name) for name in facts.get("class_names", ())), facts.get("fit")
        classifier.fit = None if fit is None else check_fit(fit)
        if len(names) not in (0, classifier.num_classes):
            raise ValueError(f"{len(names)} class names for {classifier.num_classes} classes")
    except (TypeError, ValueError, AttributeError, InputError) as error:
        raise FileFormatError(f"{where}: what it says of its images is damaged ({error})") from error
    classifier.class_names = names
