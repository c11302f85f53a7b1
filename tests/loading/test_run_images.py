"""Which images a run used and which it left: none of the former is certified."""

import numpy as np
import pytest
import yaml

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.images.imageset import split
from arquant.loading.models import load_model
from arquant.loading.roles import load_roles
from arquant.loading.run_images import SEEN, check_unseen, record_seen, run_images, run_noise, run_of, run_sigma
from tests.support.small_search import image_set, small_classifier


@pytest.fixture
def run(tmp_path):
    """A run folder over 50 images in a file."""
    whole = image_set(50, 5, "whole")
    np.savez(tmp_path / "images.npz", images=whole.images, labels=whole.labels)
    folder = tmp_path / "run"
    folder.mkdir()
    configure(folder, data=f"npz:{tmp_path / 'images.npz'}")
    return folder


def configure(folder, **config):
    (folder / "config.yaml").write_text(yaml.safe_dump({"command": "quantize", **config}))


def test_a_run_is_found_by_its_folder_and_by_its_files(run, tmp_path, monkeypatch):
    assert run_of(run) == run_of(run / "model.safetensors") == run_of(run / "model.onnx") == run
    assert run_of(str(run)) == run
    assert run_of(tmp_path) is None
    assert run_of(small_classifier()) is None
    monkeypatch.chdir(tmp_path)
    run.rename(tmp_path / "resnet20")
    assert run_of("resnet20") is None, "a name of ours is no folder"


@pytest.mark.parametrize("content", ["- of\n- another program\n", "lr: 0.1\n", "{"])
def test_the_settings_of_another_program_make_no_run(tmp_path, content):
    (tmp_path / "config.yaml").write_text(content)
    assert run_of(tmp_path / "model.onnx") is None
    (tmp_path / SEEN).write_bytes(b"")
    assert run_of(tmp_path / "model.onnx") == tmp_path, "the images that a run used are never forgotten"


def test_sigma_is_what_is_stated_or_the_run_s(run):
    configure(run, sigma=0.5)
    assert (run_sigma(run, 0.25), run_sigma(run, None), run_sigma(None, 1.0)) == (0.25, 0.5, 1.0)
    with pytest.raises(InputError, match="--sigma"):
        run_sigma(None, None)
    configure(run, sigma="loud")
    with pytest.raises(FileFormatError, match="'loud'"):
        run_sigma(run, None)


def test_noise_is_what_is_stated_or_the_run_s_or_grid(run):
    assert (run_noise(run, None), run_noise(None, None)) == ("grid", "grid")
    configure(run, noise="laplace")
    assert (run_noise(run, "gaussian"), run_noise(run, None), run_noise(None, "uniform")) == (
        "gaussian", "laplace", "uniform",
    )  # fmt: skip
    configure(run, noise="loud")
    with pytest.raises(FileFormatError, match="'loud'"):
        run_noise(run, None)


@pytest.mark.parametrize(("role", "part"), [("calibrate", 0), ("certify", 2)])
def test_a_split_run_has_the_part_of_the_role(run, tmp_path, role, part):
    data = f"npz:{tmp_path / 'images.npz'}"
    whole = run_images(run, role, small_classifier())
    assert len(whole) == 50
    configure(run, data=data, split=[60.0, 20.0, 20.0], seed=3)
    wanted = split(whole, (60, 20, 20), 3)[part]
    for given in (None, data):
        assert run_images(run, role, small_classifier(), data=given).fingerprint() == wanted.fingerprint()
    assert (
        run_images(run, role, small_classifier(), images="first:4").fingerprint()
        == wanted.select("first:4").fingerprint()
    )


def test_data_with_roles_that_a_run_split_is_split_as_the_search_split_it(run):
    classifier = load_model("resnet20", weights_required=False)
    configure(run, data="sample", split=[60.0, 20.0, 20.0], seed=3)
    wanted = load_roles("sample", classifier, shares=[60.0, 20.0, 20.0], seed=3)
    assert run_images(run, "certify", classifier).fingerprint() == wanted.certify.fingerprint()
    assert run_images(run, "calibrate", classifier).fingerprint() == wanted.calibrate.fingerprint()


def test_stated_images_come_before_the_run_s_and_the_run_s_before_the_sample(run, tmp_path):
    other = image_set(6, 9, "other")
    assert run_images(run, "certify", small_classifier(), data=other).fingerprint() == other.fingerprint()
    configure(run, data=f"npz:{tmp_path / 'images.npz'}", images="first:7")
    assert len(run_images(run, "certify", small_classifier())) == 7
    assert len(run_images(run, "calibrate", small_classifier())) == 50
    with pytest.raises(MismatchError, match="sample"):
        run_images(None, "certify", small_classifier())


def test_code_that_only_the_run_names_is_not_run(run):
    configure(run, data="evil_data:make")
    with pytest.raises(InputError, match=r"evil_data:make.*trust"):
        run_images(run, "certify", small_classifier())


def test_images_that_were_used_are_refused_in_the_run_and_below_it(run):
    used, fresh = image_set(8, 1, "used"), image_set(8, 2, "fresh")
    record_seen(run, calibrate=used.take([0, 1, 2]))
    record_seen(run, search=used.take([3, 4]))
    below = run / "points" / "bops-3bit" / "controls" / "uniform"
    below.mkdir(parents=True)
    for folder in (run, below):
        check_unseen(folder, fresh)
        check_unseen(folder, used.take([5, 6, 7]))
        with pytest.raises(MismatchError, match=r"image 4 of used .*\(search\).*name other images"):
            check_unseen(folder, used.take([5, 4]))
        with pytest.raises(MismatchError, match=r"\(calibrate\), with 2 others of 3"):
            check_unseen(folder, used.take([0, 1, 2]))
    check_unseen(small_classifier(), used)
    check_unseen(run.parent, used)
    record_seen(below, finetune=fresh)
    for images in (fresh, used.take([4])):
        with pytest.raises(MismatchError, match="was used"):
            check_unseen(below, images)


def test_images_of_an_earlier_use_are_not_forgotten(run):
    first, second = image_set(4, 1, "first"), image_set(4, 2, "second")
    record_seen(run, finetune=first)
    record_seen(run, finetune=second)
    for images in (first, second):
        with pytest.raises(MismatchError, match=r"\(finetune\), with 3 others"):
            check_unseen(run, images)


def test_a_float_copy_of_a_used_image_is_refused(run):
    used = image_set(3, 1, "used")
    record_seen(run, calibrate=used)
    levels = (used.images / np.float32(255)).astype(np.float32)
    copy = type(used)(levels, used.labels, used.indices, "copy", used.num_classes)
    with pytest.raises(MismatchError, match="copy"):
        check_unseen(run, copy)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive"])
def test_a_damaged_record_is_refused(run, content):
    (run / SEEN).write_bytes(content)
    with pytest.raises(FileFormatError, match="damaged"):
        check_unseen(run, image_set(3, 1, "used"))
