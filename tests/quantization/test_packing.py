import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import FileFormatError, InputError
from arquant.quantization.packing import integer_range, pack, packed_size, unpack


@st.composite
def integers(draw):
    bits, signed = draw(st.integers(1, 8)), draw(st.booleans())
    low, high = integer_range(bits, signed=signed)
    allowed = st.sampled_from([-1, 1]) if (signed and bits == 1) else st.integers(low, high)
    values = draw(st.lists(allowed, max_size=70))
    return np.array(values, np.int16), bits, signed


@given(integers())
def test_round_trip_and_exact_size(case):
    values, bits, signed = case
    data = pack(values, bits, signed=signed)
    assert data.dtype == np.uint8
    assert len(data) == packed_size(len(values), bits) == int(np.ceil(len(values) * bits / 8))
    back = unpack(data, bits, len(values), signed=signed)
    np.testing.assert_array_equal(back, values)


@given(integers())
def test_layout_is_the_documented_one(case):
    values, bits, signed = case
    codes = [int(v > 0) if (signed and bits == 1) else int(v) % 2**bits for v in values]
    stream = sum(code << (i * bits) for i, code in enumerate(codes))
    expected = stream.to_bytes(packed_size(len(values), bits), "little")
    assert pack(values, bits, signed=signed).tobytes() == expected


def test_known_bytes():
    assert pack(np.array([[1, -1], [3, -3]], np.int8), 3, signed=True).tolist() == [0b11111001, 0b1010]
    assert pack(np.array([3, 0, 1, 2], np.uint8), 2, signed=False).tolist() == [0b10010011]
    assert pack(np.array([-1, 1, 1], np.int8), 1, signed=True).tolist() == [0b110]


def test_every_integer_of_every_width():
    for bits in range(1, 9):
        for signed in (False, True):
            low, high = integer_range(bits, signed=signed)
            values = np.arange(low, high + 1, 2 if (signed and bits == 1) else 1)
            np.testing.assert_array_equal(
                unpack(pack(values, bits, signed=signed), bits, len(values), signed=signed), values
            )


@pytest.mark.parametrize(
    ("values", "bits", "signed"),
    [([4], 3, True), ([-5], 3, True), ([8], 3, False), ([-1], 8, False), ([0], 1, True), ([256], 8, False)],
)
def test_values_that_do_not_fit_are_refused(values, bits, signed):
    with pytest.raises(InputError):
        pack(np.array(values, np.int16), bits, signed=signed)


def test_floats_and_bad_widths_are_refused():
    with pytest.raises(InputError, match="float64"):
        pack(np.array([1.0]), 4, signed=True)
    for bits in (0, 9):
        with pytest.raises(InputError, match="1 to 8"):
            packed_size(3, bits)


def test_wrong_sizes_and_dirty_padding_are_refused():
    data = pack(np.array([1, 2, 3], np.uint8), 3, signed=False)
    for count in (2, 6):
        with pytest.raises(FileFormatError):
            unpack(data, 3, count, signed=False)
    dirty = data.copy()
    dirty[-1] |= 0x80
    with pytest.raises(FileFormatError, match="unused"):
        unpack(dirty, 3, 3, signed=False)
