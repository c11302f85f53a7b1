"""DATA specs, arrays and npz files."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import ArquantError, FileFormatError, InputError, MismatchError
from arquant.loading.datasets import ROLES, from_arrays, load_data
from tests.support.damage import FUZZ, mutate


def pixels(count: int, *, seed: int = 0, shape: tuple[int, ...] = (3, 8, 8)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def save_npz(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return f"npz:{path}"


# Specs


def test_roles_of_the_contract() -> None:
    assert ROLES == ("calibrate", "search", "certify", "development")


@pytest.mark.parametrize(
    "spec",
    ["", "samples", "npz:", "folder:", "cifar10:", "sample:x", "data.npz", "a/b:c", ":f", "a.b:", "a b:c", "1a:b"],
)
def test_unknown_spec_proposes_the_valid_ones(spec: str) -> None:
    with pytest.raises(InputError, match="valid are sample, cifar10, cifar10:DIR, folder:DIR"):
        load_data(spec, "certify")


def test_unknown_spec_guesses(tmp_path: Path) -> None:
    for spec, guess in [("x.npz", "npz:x.npz"), (str(tmp_path), f"folder:{tmp_path}"), ("CIFAR-10", "cifar10")]:
        with pytest.raises(InputError, match=f"did you mean {guess}"):
            load_data(spec, "certify")


def test_unknown_role_and_bad_bounds_are_refused() -> None:
    with pytest.raises(InputError, match=r"an ImageSet or a text .* got a tuple"):
        load_data((np.zeros((1, 3, 4, 4)), [0]), "certify")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown role 'test'"):
        load_data("sample", "test")
    for bounds in [(1.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)]:
        with pytest.raises(InputError, match="bounds"):
            load_data("sample", "certify", bounds=bounds)


def test_cifar10_spec_names_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        load_data(f"cifar10:{tmp_path}", "certify")


def test_wrong_class_count_or_shape_is_a_mismatch() -> None:
    with pytest.raises(MismatchError, match="10 classes, the model 100"):
        load_data("sample", "certify", num_classes=100)
    with pytest.raises(MismatchError, match=r"\(3, 32, 32\), the model takes \(3, 224, 224\)"):
        load_data("sample", "certify", size=(3, 224, 224))


def test_factory_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_data_a.py").write_text(
        "import numpy as np\n"
        "def make(): return np.zeros((4, 3, 5, 5), np.uint8), [0, 1, 2, 1]\n"
        "def one(): return np.zeros(3)\n"
        "def broken(): raise KeyError('no disk')\n"
    )
    (tmp_path / "my_data_b.py").write_text("1/0\n")
    monkeypatch.chdir(tmp_path)
    loaded = load_data("my_data_a:make", "search", images="first:3")
    assert (len(loaded), loaded.num_classes, loaded.labels.tolist()) == (3, 3, [0, 1, 2])
    for spec, said in [
        ("my_data_a:one", r"must return \(images, labels\), got ndarray"),
        ("my_data_a:broken", "failed with KeyError: 'no disk'"),
        ("my_data_a:absent", "has no attribute 'absent'"),
        ("my_data_b:make", "cannot import the data factory 'my_data_b:make': division by zero"),
        ("no_such_module_of_mine:make", "No module named 'no_such_module_of_mine'"),
    ]:
        with pytest.raises(InputError, match=said):
            load_data(spec, "search")


# Arrays and npz


def test_npz_uint8_is_kept_as_it_is(tmp_path: Path) -> None:
    images, labels = pixels(6), np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)
    loaded = load_data(save_npz(tmp_path / "a.npz", images=images, labels=labels), "certify", num_classes=5)
    assert np.array_equal(loaded.images, images)
    assert loaded.labels.dtype == np.int64
    assert (loaded.num_classes, loaded.indices.tolist()) == (5, list(range(6)))


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "float64"])
def test_float_images_are_mapped_to_unit_space(tmp_path: Path, dtype: str) -> None:
    images = np.linspace(-1, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4).astype(dtype)
    loaded = load_data(save_npz(tmp_path / "a.npz", images=images, labels=[0, 1]), "certify", bounds=(-1.0, 1.0))
    assert loaded.images.dtype == np.float32
    assert loaded.images == pytest.approx((images.astype(float) + 1) / 2, abs=1e-6)
    assert (loaded.images.min(), loaded.images.max()) == (0.0, 1.0)


def test_rounding_just_outside_the_bounds_is_clipped() -> None:
    loaded = from_arrays(np.full((1, 1, 2, 2), np.nextafter(np.float32(1), np.float32(2))), [0])
    assert loaded.images.max() == 1.0


def bad_pixel(value: float) -> np.ndarray:
    images = np.full((3, 3, 4, 4), 0.5)
    images[2, 1, 0, 3] = value
    return images


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (bad_pixel(np.nan), [0, 1, 2], "image 2 holds NaN"),
        (bad_pixel(np.inf), [0, 1, 2], r"image 2 has the pixel value inf, outside the bounds 0\.\.1"),
        (bad_pixel(255), [0, 1, 2], r"pixel value 255, outside the bounds 0\.\.1; state the right ones"),
        (bad_pixel(-1e308), [0, 1, 2], "pixel value -1e"),
        (pixels(3).astype(np.int64), [0, 1, 2], "uint8 or float, got int64"),
        (pixels(3)[0], [0, 1, 2], r"N x C x H x W and not empty, got shape \(3, 8, 8\)"),
        (pixels(0), np.zeros(0, int), "not empty"),
        (np.zeros((3, 32, 32, 3), np.uint8), [0, 1, 2], "look like N x H x W x C"),
        (pixels(3), [0, 1], r"one entry per image: images \(3, 3, 8, 8\), labels \(2,\)"),
        (pixels(3), np.eye(3, dtype=int), "one entry per image"),
        (pixels(3), [0.0, 1.0, 2.0], "labels must be integers, got float64"),
        (pixels(3), ["a", "b", "c"], "labels must be integers"),
        (pixels(3), [0, -1, 2], r"label -1 of image 1 is outside 0\.\.4"),
        (pixels(3), [0, 1, 5], r"label 5 of image 2 is outside 0\.\.4 \(1 of 3"),
        (pixels(3), np.array([0, 1, 2**63], np.uint64), "label 9223372036854775808 is not a class number"),
        ([[1, 2], [3]], [0, 1], "must be arrays"),
    ],
)
def test_bad_arrays_are_named(images: object, labels: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_arrays(images, labels, num_classes=5)  # type: ignore[arg-type]


def test_arrays_become_contiguous_and_writable_without_needless_copies() -> None:
    images = pixels(3)
    assert from_arrays(images, [0, 1, 2]).images is images
    frozen = np.asfortranarray(images)
    frozen.flags.writeable = False
    made = from_arrays(frozen, [0, 1, 2]).images
    assert made.flags.c_contiguous
    assert made.flags.writeable


def test_bad_npz_files_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "bare.npy", pixels(1))
    (tmp_path / "text.npz").write_text("hello")
    save_npz(tmp_path / "half.npz", images=pixels(1))
    save_npz(tmp_path / "pickled.npz", images=np.array([{}], dtype=object), labels=[0])
    for name, kind, said in [
        ("absent.npz", InputError, "there is no file"),
        ("bare.npy", FileFormatError, "one bare array"),
        ("text.npz", FileFormatError, "cannot read"),
        ("half.npz", FileFormatError, "no array 'labels'; only `arquant predict` needs none"),
        ("pickled.npz", FileFormatError, "no pickled objects"),
    ]:
        with pytest.raises(kind, match=said):
            load_data(f"npz:{tmp_path / name}", "certify")
    with pytest.raises(FileFormatError, match="Is a directory"):
        load_data(f"npz:{tmp_path}", "certify")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(FileFormatError, match="not a regular file"):
        load_data(f"npz:{tmp_path / 'pipe.npz'}", "certify")


def npz_bytes(*, compressed: bool, dtype: str) -> bytes:
    buffer = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(buffer, images=(pixels(2, shape=(1, 4, 4)) / 255).astype(dtype), labels=np.array([0, 1]))
    return buffer.getvalue()


NPZ = [npz_bytes(compressed=c, dtype=d) for c in (False, True) for d in ("uint8", "float32")]


@FUZZ
@given(data=st.data())
def test_fuzzed_npz_raises_only_our_errors(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "fuzzed.npz"
    path.write_bytes(mutate(data.draw(st.sampled_from(NPZ)), data))
    try:
        loaded = load_data(f"npz:{path}", "certify")
    except ArquantError:
        return
    assert len(loaded) == len(loaded.labels) > 0


@FUZZ
@given(data=st.data())
def test_fuzzed_npy_inside_a_sound_zip_raises_only_our_errors(tmp_path: Path, data: st.DataObject) -> None:
    """The zip's checksum hides the arrays from byte flips; here the damaged array is zipped anew."""
    path = tmp_path / "fuzzed.npz"
    parts = {}
    with zipfile.ZipFile(io.BytesIO(data.draw(st.sampled_from(NPZ)))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = data.draw(st.sampled_from(sorted(parts)))
    parts[name] = mutate(parts[name], data)
    with zipfile.ZipFile(path, "w") as archive:
        for key, raw in parts.items():
            archive.writestr(key, raw)
    try:
        loaded = load_data(f"npz:{path}", "certify")
    except ArquantError:
        return
    assert loaded.labels.max() < loaded.num_classes
