"""Which images a search may see for what, and that none serves two purposes."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.loading.roles import images_for, load_roles
from tests.support.small_search import CLASSES, SHAPE, image_set, small_module

NAMES = ("ant", "bee", "fox", "owl")


@pytest.fixture(scope="module")
def classifier():
    from arquant.models.classifier import Classifier

    return Classifier(small_module(), num_classes=CLASSES, input_shape=SHAPE)


def saved(path, count, seed):
    images = image_set(count, seed)
    np.savez(path, images=images.images, labels=images.labels)
    return f"npz:{path}"


def test_each_role_has_its_own_data(classifier, tmp_path):
    names = [saved(tmp_path / f"{seed}.npz", 20 + seed, seed) for seed in range(3)]
    roles = load_roles(names[0], classifier, calibrate=names[1], certify=names[2], images="first:5")
    assert (len(roles.search), len(roles.calibrate), len(roles.certify)) == (20, 21, 5)
    assert len(set(roles.fingerprints().values())) == 3


def test_a_split_cuts_one_set_into_three_disjoint_ones(classifier):
    data = image_set(100, 5)
    roles = load_roles(data, classifier, shares=(60, 20, 20), seed=3)
    assert (len(roles.calibrate), len(roles.search), len(roles.certify)) == (60, 20, 20)
    again = load_roles(data, classifier, shares=(60, 20, 20), seed=3)
    other = load_roles(data, classifier, shares=(60, 20, 20), seed=4)
    assert roles.fingerprints() == again.fingerprints()
    assert roles.fingerprints() != other.fingerprints()


def test_search_images_are_spread_over_the_set(classifier):
    sets = {"calibrate": image_set(30, 1), "certify": image_set(30, 2)}
    roles = load_roles(image_set(40, 3), classifier, **sets, search_images=5)
    assert roles.search.indices.tolist() == [0, 10, 20, 29, 39]
    assert len(load_roles(image_set(40, 3), classifier, **sets).search) == 40
    many = load_roles(image_set(700, 3), classifier, **sets)
    assert len(many.search) == 500
    assert len(np.unique(many.search.indices)) == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give --calibrate DATA, or --split"),
        ({"calibrate": image_set(9, 1)}, "give --certify DATA"),
        ({"shares": (60, 40)}, "percentages of calibrate, search and certify"),
        ({"shares": (60, 20, 20), "certify": image_set(9, 1)}, "leave out"),
        ({"calibrate": image_set(9, 1), "certify": image_set(9, 2), "search_images": 41}, "41 search images"),
        ({"calibrate": image_set(9, 1), "certify": image_set(9, 2), "search_images": 0}, "0 search images"),
    ],
)
def test_missing_roles_and_images_are_named(classifier, options, message):
    with pytest.raises(InputError, match=message):
        load_roles(image_set(40, 3), classifier, **options)


def test_an_image_in_two_roles_is_refused(classifier):
    with pytest.raises(MismatchError, match="are the same"):
        load_roles(image_set(40, 3), classifier, calibrate=image_set(9, 1), certify=image_set(40, 3))


def test_images_of_another_shape_are_refused(classifier):
    from arquant.loading.datasets import from_arrays

    wide = from_arrays(np.zeros((6, 3, 8, 9), np.uint8), np.arange(6) % CLASSES, "wide")
    with pytest.raises(InputError, match="wide has images of shape"):
        load_roles(wide, classifier, shares=(40, 30, 30))


def named(count, seed, names):
    images = image_set(count, seed)
    number = np.array([names.index(name) for name in NAMES])
    return replace(images, labels=number[images.labels], class_names=names)


def test_classes_are_compared_by_name(classifier):
    """The roles must agree, and with the model where it knows its classes."""
    plain = named(20, 1, NAMES)
    other = named(30, 2, ("fox", "ant", "owl", "bee"))
    roles = load_roles(named(20, 3, NAMES), classifier, calibrate=plain, certify=other)
    assert roles.certify.class_names == NAMES
    assert np.array_equal(roles.certify.labels, image_set(30, 2).labels)
    strange = replace(plain, class_names=("ant", "bee", "cow", "owl"))
    with pytest.raises(MismatchError, match="'cow' instead of 'fox'"):
        load_roles(named(20, 3, NAMES), classifier, calibrate=strange, certify=other)
    known = deepcopy(classifier)
    known.class_names = NAMES
    assert np.array_equal(images_for(other, "certify", known, "first:7").labels, image_set(30, 2).labels[:7])
    with pytest.raises(MismatchError, match="'cow' instead of 'fox'"):
        images_for(strange, "certify", known)
