"""What a model has seen: the record of images, in files, and whether other images are in it."""

import json
from pathlib import Path

import numpy as np
import pytest

from arquant.base.errors import FileFormatError, MismatchError
from arquant.base.seen import Seen, Use
from arquant.images.imageset import ImageSet, RoleOf, split
from arquant.images.seen_images import found_in, seen_images, undecided
from arquant.loading.datasets import load_data
from arquant.loading.models import load_model
from arquant.loading.run_images import check_unseen
from arquant.models.weights import shipped_models
from arquant.quantization.artifact import load_artifact
from tests.support.small_search import image_set, small_classifier

CIFAR10_TRAINING = Seen({"train": Use(frozenset([("cifar10", "calibrate")]))})


def found(seen, images):
    return {use: positions.tolist() for use, positions in found_in(seen, images)}


def test_images_of_no_known_role_are_known_again_by_their_pixels():
    used = image_set(8, 1, "used")
    seen = seen_images(calibrate=used.take([0, 1, 2]), finetune=used.take([2, 3]))
    assert all(not use.roles for use in seen.uses.values())
    assert found(seen, used) == {"calibrate": [0, 1, 2], "finetune": [2, 3]}
    assert found(seen, image_set(8, 2, "fresh")) == {}
    again = Seen.from_dict(json.loads(json.dumps(seen.to_dict())), "file")
    assert again == seen
    assert again.recorded


def test_two_records_are_one_of_all_their_images():
    used = image_set(6, 1, "used")
    both = seen_images(train=used.take([0])) | seen_images(train=used.take([3]), search=used.take([5]))
    assert found(both, used) == {"train": [0, 3], "search": [5]}
    named = CIFAR10_TRAINING | seen_images(train=used.take([1]))
    assert named.uses["train"].roles == {("cifar10", "calibrate")}
    assert found(named, used.take([1])) == {"train": [0]}


def test_a_role_of_a_known_data_set_takes_no_room():
    calibrate, search = load_data("sample", "calibrate"), load_data("sample", "search")
    seen = seen_images(calibrate=calibrate.select("most:512"), search=search)
    assert {name: (use.roles, len(use.digests)) for name, use in seen.uses.items()} == {
        "calibrate": ({("sample", "calibrate")}, 0),
        "search": ({("sample", "search")}, 0),
    }
    part = seen_images(search=search.select("first:9"))
    assert len(part.uses["search"].digests) == 9, "the others may still be certified"


def test_images_without_a_name_are_found_in_a_role():
    search = load_data("sample", "search")
    nameless = ImageSet(search.images[:3], search.labels[:3], np.arange(3), "npz:copy", 10)
    for data in ("sample", "cifar10"):
        assert found(Seen({"search": Use(frozenset([(data, "search")]))}), nameless) == {"search": [0, 1, 2]}
    assert found(Seen({"train": Use(frozenset([("sample", "calibrate")]))}), nameless) == {}


def test_images_of_a_role_need_no_data_set_to_be_told_from_another_role(monkeypatch, tmp_path):
    monkeypatch.setenv("ARQUANT_CACHE", str(tmp_path))
    certify = load_data("sample", "certify").select("first:4")
    assert found(CIFAR10_TRAINING, certify) == {}
    assert undecided(CIFAR10_TRAINING, certify) == []
    calibrate = load_data("sample", "calibrate").select("first:4")
    assert found(CIFAR10_TRAINING, calibrate) == {"train": [0, 1, 2, 3]}
    nameless = ImageSet(certify.images, certify.labels, certify.indices, "npz:copy", 10)
    assert found(CIFAR10_TRAINING, nameless) == {}
    assert undecided(CIFAR10_TRAINING, nameless) == ["cifar10 (calibrate)"], "the images are not on this machine"
    assert undecided(Seen({"search": Use(frozenset([("cifar10", "search")]))}), nameless) == []


def test_the_parts_of_a_split_have_no_role_in_common():
    whole = load_data("sample", "search")
    assert whole.role == RoleOf("sample", "search", 500)
    first, _, third = split(whole, (60, 20, 20), 0)
    assert found(seen_images(calibrate=first), third) == {}


@pytest.mark.parametrize(
    "damaged",
    [[], 3, {"train": {}}, {"train": {"roles": [], "digests": "AAA"}}, {"train": {"roles": [["one"]], "digests": ""}},
     {"train": {"roles": [], "digests": "AAAA"}}, {"train": None}],
)  # fmt: skip
def test_a_damaged_record_is_refused(damaged):
    with pytest.raises(FileFormatError, match=r"file: .*seen is damaged"):
        Seen.from_dict(damaged, "file")


@pytest.mark.parametrize("model", shipped_models())
def test_shipped_weights_say_that_they_were_trained_on_cifar_10(model):
    assert load_model(model).seen == CIFAR10_TRAINING


def test_a_published_artifact_without_a_record_is_read_and_warned_of():
    path = Path(__file__).parents[2] / "results" / "resnet20-3bit-sigma1.0" / "model.safetensors"
    small, warnings = load_artifact(path), []
    assert small.fingerprint() == "ffea5ae726f4ee10cacd53e3e986a6e86f2a614152bc4d0f93e5d046d11e6f34"
    check_unseen(path, load_data("sample", "certify").select("first:2"), small, warnings.append)
    assert len(warnings) == 1
    assert "does not say which images it was trained or calibrated on" in warnings[0]


def test_a_classifier_is_not_certified_on_what_it_has_seen():
    classifier, used, warnings = small_classifier(), image_set(4, 1, "used"), []
    check_unseen(classifier, used, warn=warnings.append)
    classifier.seen = seen_images(calibrate=used)
    with pytest.raises(MismatchError, match=r"image 0 of used was used by .* \(calibrate\), with 3 others"):
        check_unseen(classifier, used)
    assert warnings == [], "a network of the user's own says nothing of its images"
