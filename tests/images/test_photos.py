"""Photos on demand: they index like an array, know what was read, and are never all in memory."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from arquant.base.errors import FileFormatError, MismatchError
from arquant.images import photos as photos_module
from arquant.images.imageset import ImageSet, check_disjoint
from arquant.images.photos import Photos
from arquant.images.seen_images import image_hashes, known_hashes
from arquant.loading.datasets import load_data
from tests.support.photo_folders import photo_folder, save_photo

SIZE = (3, 8, 8)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return photo_folder(tmp_path / "set", ("ant", "bee", "cat"), 5, size=(12, 10))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every set of more than four photos a large one."""
    monkeypatch.setattr(photos_module, "FEW", 4)


def on_demand(spec: str, role: str = "calibrate") -> tuple[ImageSet, Photos]:
    images = load_data(spec, role, size=SIZE)
    assert isinstance(images.images, Photos)
    return images, images.images


def test_photos_are_the_array_that_reading_them_all_gives(spec: str) -> None:
    whole, photos = load_data(spec, "certify", size=SIZE), on_demand(spec)[1]
    assert isinstance(whole.images, np.ndarray)
    assert photos.shape == whole.images.shape
    assert (photos.dtype, photos.ndim, photos.size) == (whole.images.dtype, 4, whole.images.size)
    for where in (3, np.int64(-1), slice(2, 9), slice(None), np.array([4, 0, 4])):
        assert np.array_equal(photos[where], whole.images[where])
    assert np.array_equal(np.stack(list(photos)), whole.images)
    assert np.array_equal(photos.take(np.array([7, 1]))[:], whole.images[[7, 1]])


def test_sets_of_photos_have_the_fingerprint_and_hashes_of_the_array(spec: str) -> None:
    whole, (images, _) = load_data(spec, "certify", size=SIZE), on_demand(spec)
    assert images.fingerprint() == images.identity() == whole.fingerprint()
    assert np.array_equal(image_hashes(images), image_hashes(whole))
    part = images.take([5, 2])
    assert (part.labels.tolist(), part.indices.tolist()) == ([1, 0], [5, 2])
    assert part.fingerprint() == whole.take([5, 2]).fingerprint()


@pytest.mark.usefixtures("large")
def test_the_identity_of_many_photos_is_made_without_decoding(spec: str, tmp_path: Path) -> None:
    images, photos = on_demand(spec, "certify")
    identity = images.identity()
    assert not len(photos.read_so_far())
    assert identity == on_demand(spec)[0].identity()
    assert identity != load_data(spec, "certify", size=SIZE, fit="squash").identity()
    (tmp_path / "set/ant/000.png").rename(tmp_path / "set/ant/0000.png")
    renamed = on_demand(spec)[0].identity()
    assert renamed != identity
    save_photo(tmp_path / "set/ant/0000.png", 20, 20)
    assert on_demand(spec)[0].identity() != renamed


def test_what_was_read_is_known(spec: str) -> None:
    images, photos = on_demand(spec)
    assert not len(known_hashes(images))
    photos[np.array([2, 3])]
    photos.crops(np.array([7]), 0.5, [1])
    assert np.array_equal(known_hashes(images), image_hashes(load_data(spec, "certify", size=SIZE))[[2, 3, 7]])
    assert len(image_hashes(images)) == len(known_hashes(images)) == 15


@pytest.mark.usefixtures("large")
def test_a_few_of_many_photos_are_decoded_once(spec: str) -> None:
    images, _ = on_demand(spec, "certify")
    assert isinstance(images.take(range(4)).images, np.ndarray)
    assert isinstance(images.take(range(5)).images, Photos)


@pytest.mark.usefixtures("large")
def test_an_image_in_two_roles_is_refused_when_it_is_read(spec: str, tmp_path: Path) -> None:
    other = photo_folder(tmp_path / "other", ("ant", "bee", "cat"), 1, size=(12, 10), first_seed=100)
    (tmp_path / "other/bee/000.png").write_bytes((tmp_path / "set/cat/001.png").read_bytes())
    images, photos = on_demand(spec)
    certify = load_data(other, "certify", size=SIZE)
    check_disjoint(images, certify)
    assert not len(photos.read_so_far()), "nothing is decoded for it"
    photos[:10]
    with pytest.raises(MismatchError, match=r"cat/001\.png and image 1 of folder:.*other are the same"):
        photos[11]
    with pytest.raises(MismatchError, match="are the same"):
        photos.crops(np.array([11]), 0.5, [1])


def test_an_image_in_two_roles_of_few_photos_is_refused_at_once(spec: str) -> None:
    with pytest.raises(MismatchError, match=r"image 2 of .* and image 2 of"):
        check_disjoint(on_demand(spec)[0], load_data(spec, "certify", size=SIZE).take([2]))


@pytest.mark.usefixtures("large")
def test_a_damaged_photo_is_refused_when_it_is_read(spec: str, tmp_path: Path) -> None:
    (tmp_path / "set/bee/002.png").write_bytes(b"no picture")
    _, photos = on_demand(spec)
    photos[:7]
    for read in (lambda: photos[7], lambda: photos[:], lambda: photos.crops(np.array([7]), 0.5, [1])):
        with pytest.raises(FileFormatError, match=r"cannot read the picture .*bee/002\.png"):
            read()


def test_crops_are_a_function_of_the_seed_of_each_photo(spec: str) -> None:
    _, photos = on_demand(spec)
    both = photos.crops(np.array([3, 8]), 0.1, [5, 6])
    assert both.shape == (2, *SIZE)
    assert np.array_equal(both[1], photos.crops(np.array([8]), 0.1, [6])[0])
    assert not np.array_equal(both[1], photos.crops(np.array([8]), 0.1, [7])[0])


def links(folder: Path, count: int, size: tuple[int, int]) -> str:
    """Make a folder of links to one photo."""
    save_photo(folder / "photo.jpg", *size)
    for name in ("a", "b"):
        (folder / "set" / name).mkdir(parents=True)
        for number in range(count // 2):
            os.link(folder / "photo.jpg", folder / "set" / name / f"{number}.jpg")
    return f"folder:{folder / 'set'}"


def test_photos_take_little_memory_each(tmp_path: Path) -> None:
    spec = links(tmp_path, 3_000, (40, 30))
    tracemalloc.start()
    try:
        images, photos = on_demand_at(spec, (3, 224, 224))
        images.identity()
        photos[np.arange(0, 3_000, 100)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    batch = 30 * 3 * 224 * 224
    assert peak < 3 * batch + 3_000 * 2_000, "2 kB for each photo, where decoded ones have 150"


def on_demand_at(spec: str, size: tuple[int, int, int]) -> tuple[ImageSet, Photos]:
    images = load_data(spec, "certify", size=size)
    assert isinstance(images.images, Photos)
    return images, images.images


@pytest.mark.slow
def test_a_folder_of_100_000_photos_takes_less_than_two_gigabytes(tmp_path: Path) -> None:
    spec = links(tmp_path, 100_000, (320, 240))
    program = (
        "import resource\n"
        "from arquant.loading.datasets import load_data\n"
        "from arquant.training.batches import data_digest, noisy_batch, source_of\n"
        "from arquant.training.recipe import Recipe\n"
        f"images, labels = source_of(load_data({spec!r}, 'calibrate', size=(3, 224, 224)))\n"
        "data_digest(images, labels)\n"
        "for step in range(20):\n"
        "    noisy_batch(images, labels, Recipe(sigma=0.5, epochs=1, batch=64, crops='resized'), step)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 2 * 10**9
