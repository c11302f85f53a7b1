"""Random-resized crops: inside the photo, of the sizes that are promised, addressed by their seed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import InputError
from arquant.images.crops import least_share, random_box

SIDES = st.integers(1, 500)


@given(SIDES, SIDES, SIDES, SIDES, st.floats(0.01, 1), st.integers(0, 2**63 - 1))
def test_a_part_lies_inside_the_photo(w: int, h: int, width: int, height: int, share: float, seed: int) -> None:
    (left, top, right, bottom), _ = random_box((w, h), (width, height), share, seed)
    assert 0 <= left < right <= w
    assert 0 <= top < bottom <= h


def test_areas_shapes_and_mirrors_are_spread_as_promised() -> None:
    found = [random_box((400, 300), (224, 224), 0.2, seed) for seed in range(4_000)]
    areas = sorted((r - left) * (b - top) / 120_000 for (left, top, r, b), _ in found)
    ratios = sorted((r - left) / (b - top) for (left, top, r, b), _ in found)
    assert 0.19 < areas[0] < 0.25
    assert areas[-1] > 0.9
    assert 0.73 < ratios[0] < 0.78
    assert 1.28 < ratios[-1] < 1.36
    assert 1_850 < sum(mirrored for _, mirrored in found) < 2_150
    assert random_box((400, 300), (224, 224), 0.2, 7) == found[7]


def test_the_shape_is_relative_to_that_of_the_input() -> None:
    boxes = [random_box((400, 400), (200, 100), 0.1, seed)[0] for seed in range(200)]
    assert all(1.4 < (r - left) / (b - top) < 2.8 for left, top, r, b in boxes)


def test_spellings() -> None:
    assert [least_share(text) for text in ("padded", "resized", "resized:0.35", "resized:1")] == [None, 0.08, 0.35, 1.0]
    for wrong in ("", "resized:", "resized:0", "resized:1.5", "resized:nan", "padded:1", "random"):
        with pytest.raises(InputError, match="valid are padded"):
            least_share(wrong)
