"""Image sets: checks, selections, fingerprints, splits and disjointness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import InputError, MismatchError
from arquant.images.imageset import ImageSet, check_disjoint, split
from arquant.images.sample import load_sample
from arquant.loading.datasets import from_arrays


def pixels(count: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)


def set_of(count: int, *, seed: int = 0, name: str = "x") -> ImageSet:
    return from_arrays(pixels(count, seed=seed), np.arange(count) % 4, name)


# Selections


@pytest.mark.parametrize(
    ("selection", "positions"),
    [
        (None, range(10)),
        ("every:3", [0, 3, 6, 9]),
        ("every:10", [0]),
        ("first:4", range(4)),
        ("first:10", range(10)),
        ("most:4", [0, 3, 6, 9]),
        ("most:1", [0]),
        ("most:11", range(10)),
        ("2-5", [2, 3, 4, 5]),
        ("9-9", [9]),
    ],
)
def test_selections(selection: str | None, positions: list[int]) -> None:
    full = set_of(10).take(range(10))
    chosen = full.select(selection)
    assert chosen.indices.tolist() == list(positions)
    assert np.array_equal(chosen.images, full.images[list(positions)])


def test_selection_counts_positions_and_keeps_dataset_indices() -> None:
    assert load_sample("certify").select("1-3").indices.tolist() == [20, 40, 60]


@pytest.mark.parametrize("selection", ["first:11", "first:0", "every:0", "most:0", "every:11", "5-10", "5-4", "10-12"])
def test_selections_out_of_range(selection: str) -> None:
    with pytest.raises(InputError, match=f"'{selection}' does not fit x, which has the positions 0-9"):
        set_of(10).select(selection)


@given(st.text(max_size=12))
def test_any_selection_text_gives_a_set_or_our_error(text: str) -> None:
    try:
        chosen = set_of(5).select(text)
    except InputError:
        return
    assert 0 < len(chosen) <= 5


# Sets, splits, disjointness


def test_image_set_refuses_what_does_not_fit_together() -> None:
    images, labels = pixels(2), np.array([0, 1])
    for arguments, said in [
        ((images.astype(float), labels, labels, "x", 2), "uint8 or float32"),
        ((images, labels.astype(np.int32), labels, "x", 2), "labels must be int64"),
        ((images, labels, np.array([0, 1, 2]), "x", 2), "indices must be int64 of shape \\(2,\\)"),
        ((images, labels, np.array([3, 3]), "x", 2), "distinct"),
        ((images, labels, np.array([-1, 3]), "x", 2), "not negative"),
        ((images, labels, labels, "x", 2, ("a",)), "1 class names for 2 classes"),
        ((images[:0], labels[:0], labels[:0], "x", 2), "there are no images"),
    ]:
        with pytest.raises(InputError, match=said):
            ImageSet(*arguments)


def test_fingerprint_depends_on_pixels_labels_and_indices_only() -> None:
    a = set_of(5)
    assert a.fingerprint() == set_of(5, name="other").fingerprint()
    assert a.fingerprint() == ImageSet(np.asfortranarray(a.images), a.labels, a.indices, "", 9).fingerprint()
    changed = a.images.copy()
    changed[4, 2, 7, 7] ^= 1
    others = [
        ImageSet(changed, a.labels, a.indices, "x", 4),
        ImageSet(a.images, a.labels[::-1].copy(), a.indices, "x", 4),
        ImageSet(a.images, a.labels, a.indices + 1, "x", 4),
        ImageSet(a.images.reshape(5, 3, 4, 16), a.labels, a.indices, "x", 4),
    ]
    assert len({s.fingerprint() for s in [a, *others]}) == 5


@given(st.integers(5, 60), st.integers(0, 5))
def test_split_is_a_partition_that_does_not_depend_on_order(count: int, seed: int) -> None:
    whole = set_of(count)
    parts = split(whole, (60, 20, 20), seed)
    check_disjoint(*parts)
    assert sorted(int(i) for part in parts for i in part.indices) == list(range(count))
    assert [len(part) for part in parts] == pytest.approx([0.6 * count, 0.2 * count, 0.2 * count], abs=1)
    shuffled = split(whole.take(np.random.default_rng(seed).permutation(count)), (60, 20, 20), seed)
    for part, other in zip(parts, shuffled, strict=True):
        assert sorted(part.indices) == sorted(other.indices)


def test_split_depends_on_the_seed_and_names_its_parts() -> None:
    one, two = split(set_of(50), (50, 50), 1), split(set_of(50), (50, 50), 2)
    assert one[0].indices.tolist() != two[0].indices.tolist()
    assert one[1].name == "x (split 50,50 seed 1, part 2)"


def test_split_keeps_identical_images_together() -> None:
    twins = from_arrays(np.concatenate([pixels(20), pixels(20)]), np.zeros(40, int))
    for seed in range(5):
        check_disjoint(*split(twins, (60, 20, 20), seed))
    with pytest.raises(InputError, match="leaves a part empty"):
        split(from_arrays(np.zeros((9, 1, 2, 2), np.uint8), np.zeros(9, int)), (60, 20, 20), 0)


@pytest.mark.parametrize("percent", [(60, 20), (100,), (120, -20), (50, 50, 0), (), (np.nan, 20, 20), (20, np.nan)])
def test_split_refuses_bad_percentages(percent: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="sum to 100"):
        split(set_of(10), percent, 0)


def test_shared_images_are_refused_and_named() -> None:
    a, b = set_of(20, name="a"), set_of(20, seed=1, name="b")
    check_disjoint(a, b)
    images = b.images.copy()
    images[7] = a.images[13]
    with pytest.raises(MismatchError, match="image 13 of a and image 7 of c are the same"):
        check_disjoint(a, ImageSet(images, b.labels, b.indices, "c", 4))


def test_an_image_and_its_float_copy_are_the_same() -> None:
    a = set_of(5, name="a")
    floats = from_arrays(2 * (a.images / 255) - 1, a.labels, "f", bounds=(-1.0, 1.0))
    with pytest.raises(MismatchError, match="image 0 of a and image 0 of f"):
        check_disjoint(a, floats)
    check_disjoint(a, from_arrays(np.clip(a.images / 255 + 1e-3, 0, 1), a.labels, "g"))
