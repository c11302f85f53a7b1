"""The shipped sample of CIFAR-10."""

import io
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arquant.base.errors import FileFormatError, InputError
from arquant.images import cifar10, sample
from arquant.images.cifar10 import load_cifar10
from arquant.images.imageset import check_disjoint
from arquant.images.sample import load_sample, tile, untile
from tests.support.damage import FUZZ, mutate


@pytest.mark.parametrize(("role", "count"), [("calibrate", 2000), ("search", 500), ("certify", 500)])
def test_sample_has_the_stated_roles(role: str, count: int) -> None:
    loaded = load_sample(role)
    assert len(loaded) == count
    assert loaded.shape == (3, 32, 32)
    assert loaded.images.dtype == np.uint8
    assert loaded.class_names[3] == "cat"
    assert loaded.images.flags.writeable


def test_sample_certify_images_are_the_usual_500() -> None:
    loaded = load_sample("certify")
    assert np.array_equal(loaded.indices, np.arange(0, 10_000, 20))
    # As in the certificate files published with Cohen et al. 2019.
    assert loaded.labels[:10].tolist() == [3, 7, 4, 7, 8, 4, 8, 6, 2, 0]


def test_sample_calibrate_is_balanced_and_search_is_10_mod_20() -> None:
    calibrate = load_sample("calibrate")
    assert np.bincount(calibrate.labels).tolist() == [200] * 10
    assert np.array_equal(calibrate.indices, np.unique(calibrate.indices))
    assert np.array_equal(load_sample("search").indices, np.arange(10, 10_000, 20))


def test_sample_pixels_are_those_that_were_checked_against_the_original() -> None:
    recorded = json.loads((sample.FOLDER / "sample.json").read_text())["roles"]
    for role in sample.ROLES:
        assert load_sample(role).fingerprint() == recorded[role]["fingerprint"]
    assert recorded["certify"]["fingerprint"] == "f4b737ab72b3f4fc684de571864d2533d78474acd1ef6aa42507fd101716d0f7"


def test_sample_roles_share_no_image() -> None:
    check_disjoint(*(load_sample(role) for role in sample.ROLES))


def test_sample_is_small_and_loads_fast() -> None:
    assert sum(path.stat().st_size for path in sample.FOLDER.iterdir()) < 6_000_000
    taken = []
    for _ in range(3):  # of which others on the machine may slow one down
        began = time.process_time()
        for role in sample.ROLES:
            load_sample(role)
        taken.append(time.process_time() - began)
    assert min(taken) < 1.0


def test_sample_has_its_provenance_and_citation_beside_it() -> None:
    text = (sample.FOLDER / "PROVENANCE.md").read_text()
    assert "Learning Multiple Layers of Features from Tiny Images" in text
    assert all(batch.sha1 in text for batch in cifar10.TRAINING + cifar10.TEST)


def test_sample_has_no_development_images() -> None:
    with pytest.raises(InputError, match="no role 'development'; it has calibrate, search, certify"):
        load_sample("development")


@given(st.integers(1, 3), st.integers(0, 100))
def test_untile_inverts_tile(rows: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (25 * rows, 3, 32, 32), dtype=np.uint8)
    assert np.array_equal(untile(tile(images)), images)


def small_sample() -> tuple[str, dict[str, bytes]]:
    """The files of a sample of 25 images, and its fingerprint."""
    small = load_sample("search").select("first:25")
    entry = {"labels": small.labels.tolist(), "indices": small.indices.tolist(), "fingerprint": small.fingerprint()}
    index = {"schema": sample.SCHEMA, "version": sample.VERSION, "roles": {"search": entry}}
    picture = io.BytesIO()
    Image.fromarray(tile(small.images)).save(picture, "WEBP", lossless=True, method=0, exact=True)
    return small.fingerprint(), {"search.webp": picture.getvalue(), "sample.json": json.dumps(index).encode()}


SMALL = small_sample()


@FUZZ
@given(data=st.data())
def test_fuzzed_sample_is_refused_or_intact(tmp_path: Path, data: st.DataObject) -> None:
    fingerprint, files = SMALL
    damaged = data.draw(st.sampled_from(sorted(files)))
    for name, raw in files.items():
        (tmp_path / name).write_bytes(mutate(raw, data) if name == damaged else raw)
    try:
        loaded = load_sample("search", tmp_path)
    except FileFormatError:
        return
    assert loaded.fingerprint() == fingerprint


@pytest.mark.parametrize("text", ["[]", '{"schema": "x"}', '{"schema":"arquant.sample","version":1,"roles":[]}'])
def test_foreign_sample_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "sample.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"damaged.*sample\.json"):
        load_sample("search", tmp_path)


def test_missing_sample_picture_is_refused(tmp_path: Path) -> None:
    shutil.copy(sample.FOLDER / "sample.json", tmp_path)
    with pytest.raises(FileFormatError, match=r"certify\.webp"):
        load_sample("certify", tmp_path)


@pytest.mark.cifar
def test_sample_equals_the_full_set() -> None:
    if not (cifar10.cifar10_directory() / "test_batch.bin").exists():
        pytest.skip("the full CIFAR-10 is not in the cache: arquant data cifar10")
    for role in sample.ROLES:
        full, part = load_cifar10(role), load_sample(role)
        position = {int(index): place for place, index in enumerate(full.indices)}
        assert full.take([position[int(index)] for index in part.indices]).fingerprint() == part.fingerprint()


@pytest.mark.cifar
def test_roles_of_the_full_set_share_no_image() -> None:
    if not (cifar10.cifar10_directory() / "test_batch.bin").exists():
        pytest.skip("the full CIFAR-10 is not in the cache: arquant data cifar10")
    check_disjoint(*(load_cifar10(role) for role in cifar10.ROLES))
