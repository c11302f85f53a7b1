"""Every key is fixed: outcomes never vary. Rates of false alarm say how likely a good generator was to be refused."""

import hashlib
import math
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

import arquant.noise.source
from arquant.base.errors import InputError
from arquant.noise.source import CHUNK, KINDS, MAX_GRID_SIGMA, PURPOSES, Noise, NoiseSource, noise_key
from arquant.noise.table import UNDECIDED, grid_table

KEY = noise_key(0, "check")
SHAPE = (2, 3, 5)
CIFAR = (3, 32, 32)
DIGEST = "785b391fcecdd99065288c80bcb58e4db478e36dba1314a4170294e4f316bee2"


def source(kind="grid", sigma=0.5, shape=SHAPE, key=KEY, **options) -> NoiseSource:
    return NoiseSource(Noise(kind, sigma), key, shape, **options)


def philox4x64(counter, key):
    """Philox4x64-10 as published (Salmon et al., 2011), on Python integers: one block of four words."""
    mask = 2**64 - 1
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (right >> 64) ^ b ^ k, right & mask, (left >> 64) ^ d ^ m, left & mask
        k, m = (k + 0x9E3779B97F4A7C15) & mask, (m + 0xBB67AE8584CAA73B) & mask
    return [a, b, c, d]


def words(image, chunk, stream, count):
    """The words of a stream as the module documents it: the counter starts at 1 and word 0 counts the blocks."""
    blocks = (philox4x64((block, chunk, image, stream), KEY.words) for block in range(1, count // 4 + 2))
    return [word for block in blocks for word in block][:count]


def uniforms(sigma, image, chunk, count):
    """The 64-bit uniforms of the grid noise, one by one as documented."""
    main, undecided, decided = (words(image, chunk, stream, count) for stream in range(3))
    used, result = 0, []
    for position in range(count):
        leading = main[position // 4] >> 16 * (position % 4) & 0xFFFF
        rest = decided[position]
        if grid_table(sigma).guide[leading] == UNDECIDED:
            rest = undecided[used]
            used += 1
        result.append(leading << 48 | rest >> 16)
    return np.array(result, dtype=np.uint64)


def normals(uniform):
    smaller = (np.minimum(uniform, ~uniform).astype(np.float64) + 0.5) * 2.0**-64
    return np.where(uniform < 2**63, ndtri(smaller), -ndtri(smaller))


# The bits


def test_philox_reference_is_the_published_one() -> None:
    zero = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert philox4x64((0, 0, 0, 0), (0, 0)) == zero


@given(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), st.tuples(*[st.integers(0, 2**64 - 1)] * 3))
def test_numpy_counts_in_word_0_and_before_the_block(key, address) -> None:
    generator = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=np.array([0, *address], dtype=np.uint64))
    assert generator.random_raw(8).tolist() == philox4x64((1, *address), key) + philox4x64((2, *address), key)


def test_known_answers() -> None:
    """If this fails, a library changed its stream, or we did: published noise can no longer be replayed."""
    levels = source(shape=CIFAR).integers(20, 3)
    assert levels.dtype == np.int16
    assert levels.shape == (CHUNK, *CIFAR)
    assert levels.ravel()[:10].tolist() == [-181, -31, -118, 35, 178, 99, 159, 139, -77, 52]
    assert hashlib.sha256(levels.astype("<i2").tobytes()).hexdigest() == DIGEST


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("grid", [-0.709646463394165, -0.1202457994222641, -0.4628152847290039, 0.1355477273464203]),
        ("gaussian", [0.13553251326084137, 0.5465774536132812, -0.1400131732225418, -0.4692802429199219]),
        ("uniform", [0.18503409624099731, 0.6284523010253906, -0.19099558889865875, -0.5646862983703613]),
        ("laplace", [0.0849817544221878, 0.45729973912239075, -0.0880904346704483, -0.37323853373527527]),
    ],
)
def test_known_answers_of_the_real_noises(kind, expected) -> None:
    assert source(kind, shape=CIFAR).unit(20, 3).ravel()[:4].tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_levels_follow_from_the_bits_as_documented(sigma) -> None:
    expected = grid_table(sigma).levels(uniforms(sigma, 9, 2, CHUNK * 30))
    assert source(sigma=sigma).integers(9, 2).ravel().tolist() == expected.tolist()


def test_levels_are_the_rounded_normals_of_the_same_bits() -> None:
    levels = source().integers(4, 1).ravel()
    assert np.array_equal(levels, np.rint(127.5 * normals(uniforms(0.5, 4, 1, CHUNK * 30))))


def test_gaussian_is_the_normal_quantile_of_each_word() -> None:
    uniform = np.array(words(4, 1, 0, CHUNK * 30), dtype=np.uint64)
    assert source("gaussian").unit(4, 1).ravel() == pytest.approx(0.5 * normals(uniform), rel=1e-6)


def test_quantiles_stay_finite_and_symmetric_at_the_ends_of_the_interval() -> None:
    ends = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    reach = {"gaussian": 9.16, "uniform": math.sqrt(3), "laplace": 64 * math.log(2) / math.sqrt(2)}
    for kind, end in reach.items():
        values = arquant.noise.source._quantile(kind, ends)
        assert values.tolist() == (-values[::-1]).tolist()
        assert (np.diff(values) >= 0).all()
        assert values[-1] == pytest.approx(end, rel=1e-3)


@pytest.mark.parametrize("sigma", [0.02, 0.5, 3.0])
def test_real_grid_noise_rounds_to_the_integers(sigma) -> None:
    noise = source(sigma=sigma, shape=CIFAR)
    unit = noise.unit(1, 0)
    assert unit.dtype == np.float32
    assert np.array_equal(np.rint(255 * unit.astype(np.float64)), noise.integers(1, 0))
    assert np.abs(255 * unit.astype(np.float64) - noise.integers(1, 0)).max() > 0.499


def test_a_quantile_that_errs_leaves_every_value_in_the_cell_that_was_drawn(monkeypatch) -> None:
    """The normal quantile of SciPy errs by 1e-16, which no test meets; here it errs by up to a third of a level."""
    exact = arquant.noise.source._quantile
    levels = source().integers(1, 0).astype(np.float64)
    for factor in (0.999, 1.001):
        monkeypatch.setattr(arquant.noise.source, "_quantile", lambda kind, words, f=factor: f * exact(kind, words))
        noise = source()
        real = noise._draw_real(1, 0).reshape(levels.shape)
        assert np.array_equal(np.rint(real), levels)
        assert np.array_equal(np.rint(255 * noise.unit(1, 0).astype(np.float64)), levels)
        # to the nearest value of the cell, not to the other end of it
        assert np.abs(real - 127.5 * normals(uniforms(0.5, 1, 0, CHUNK * 30)).reshape(levels.shape)).max() < 0.6


def test_values_on_the_edge_of_a_cell_stay_in_it() -> None:
    real = np.array([0.49999999999, -0.49999999999, 1166.4999999999, 1166.5000000001, -299.5000000001])
    unit = arquant.noise.source._rounding_alike(real)
    assert np.rint(255 * unit.astype(np.float64)).tolist() == np.rint(real).tolist()


# The address


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.integers(1, 3 * CHUNK - 1), unique=True, max_size=8), st.randoms())
def test_any_split_and_order_gives_the_same_samples(kind, cuts, random) -> None:
    image = np.arange(30, dtype=np.uint8).reshape(SHAPE)
    dtype = np.int16 if kind == "grid" else np.float32
    whole = np.empty((3 * CHUNK, *SHAPE), dtype=dtype)
    for chunk in range(3):
        source(kind).add(image, 5, chunk * CHUNK, CHUNK, whole[chunk * CHUNK :][:CHUNK])
    split = np.zeros_like(whole)
    noise = source(kind)
    edges = sorted({0, CHUNK, 2 * CHUNK, 3 * CHUNK, *cuts})
    parts = list(pairwise(edges))
    random.shuffle(parts)
    for first, last in parts:
        noise.unit(random.randrange(3), 0)  # another image in between
        noise.add(image, 5, first, last - first, split[first:last])
    assert np.array_equal(split, whole)


def test_another_process_draws_the_same() -> None:
    code = (
        "import hashlib; from arquant.noise.source import *;"
        "noise = NoiseSource(Noise('grid', 0.5), noise_key(0, 'check'), (3, 32, 32)); noise.integers(1, 1);"
        "print(hashlib.sha256(noise.integers(20, 3).astype('<i2').tobytes()).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == DIGEST


def test_threads_may_share_a_source() -> None:
    noise = source()
    expected = [source().integers(index % 7, 0).tolist() for index in range(70)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda index: noise.integers(index % 7, 0).tolist(), range(70))) == expected


def test_pickled_sources_draw_the_same_and_carry_no_noise() -> None:
    noise = source(shape=CIFAR)
    drawn = noise.integers(0, 0)
    data = pickle.dumps(noise)
    assert len(data) < 2000
    assert np.array_equal(pickle.loads(data).integers(0, 0), drawn)


def test_images_chunks_keys_and_neither_share_noise() -> None:
    fingerprints = {purpose: "abc" if purpose in ("select", "certify") else None for purpose in PURPOSES}
    keys = [noise_key(seed, purpose, text) for seed in (0, 1) for purpose, text in fingerprints.items()]
    drawn = {
        source(key=key).integers(image, chunk).tobytes() for key in keys for image in (0, 1, 2) for chunk in (0, 1)
    }
    assert len(drawn) == len(keys) * 6


def test_large_addresses_are_distinct_and_refused_beyond_64_bits() -> None:
    assert not np.array_equal(source().integers(2**64 - 1, 0), source().integers(0, 2**64 - 1))
    for image, chunk in ((-1, 0), (0, -1), (2**64, 0)):
        with pytest.raises(InputError, match="at least 0"):
            source().integers(image, chunk)


def test_block_size_does_not_matter(monkeypatch) -> None:
    levels, unit = source().integers(1, 0).tolist(), source().unit(1, 0).tolist()
    monkeypatch.setattr(arquant.noise.source, "_BLOCK", 64)
    monkeypatch.setattr(arquant.noise.source, "_REAL_BLOCK", 128)
    assert source().integers(1, 0).tolist() == levels
    assert source().unit(1, 0).tolist() == unit


def test_drawn_noise_cannot_be_altered() -> None:
    with pytest.raises(ValueError, match="read-only"):
        source().integers(0, 0)[0] = 0


# One bank for all images


@pytest.mark.parametrize("purpose", ["search", "shortlist"])
def test_a_shared_bank_gives_every_image_the_noise_of_image_0(purpose, monkeypatch) -> None:
    key = noise_key(3, purpose)
    monkeypatch.setattr(arquant.noise.source, "BANK_BYTES", 3 * CHUNK * 30 * 2)
    shared = source(key=key, shared=True)
    for _ in range(2):
        for chunk in range(5):
            assert np.array_equal(shared.integers(chunk + 1, chunk), source(key=key).integers(0, chunk))
    assert shared.integers(1, 0) is shared.integers(2, 0)
    assert sum(array.nbytes for array in shared._kept.values()) <= arquant.noise.source.BANK_BYTES


def test_a_bank_too_small_for_all_keeps_its_beginning(monkeypatch) -> None:
    """Read in order again and again, a bank that kept its end would never find anything in it."""
    monkeypatch.setattr(arquant.noise.source, "BANK_BYTES", 3 * CHUNK * 30 * 2)
    shared = source(key=noise_key(3, "search"), shared=True)
    first, second, *_ = (shared.integers(0, chunk) for chunk in range(5))
    assert shared.integers(0, 0) is first
    assert shared.integers(0, 1) is second


@pytest.mark.parametrize("purpose", sorted(set(PURPOSES) - {"search", "shortlist"}))
def test_claims_never_share_a_bank(purpose) -> None:
    key = noise_key(0, purpose, "abc" if purpose in ("select", "certify") else None)
    with pytest.raises(InputError, match=purpose):
        source(key=key, shared=True)


# Adding to images


def test_grid_noise_on_bytes_is_image_plus_integers() -> None:
    image = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
    out = np.zeros((7, *SHAPE), dtype=np.int16)
    source().add(image, 3, CHUNK + 5, 7, out)
    assert np.array_equal(out, source().integers(3, 1)[5:12].astype(int) + image)


def test_grid_noise_on_floats_rounds_the_sum() -> None:
    image = np.random.default_rng(0).random(SHAPE).astype(np.float32)
    out = np.zeros((CHUNK, *SHAPE), dtype=np.int16)
    source().add(image, 3, 0, CHUNK, out)
    real = 127.5 * normals(uniforms(0.5, 3, 0, CHUNK * 30)).reshape(CHUNK, *SHAPE)
    assert np.array_equal(out, np.rint(255 * image.astype(np.float64) + real))
    assert not np.array_equal(out, np.rint(255 * image) + source().integers(3, 0))


def test_grid_noise_on_exact_grid_floats_equals_that_on_bytes() -> None:
    levels = np.zeros(SHAPE, dtype=np.uint8)
    levels[0], levels[1, 0] = 255, 51
    a, b = (np.zeros((CHUNK, *SHAPE), dtype=np.int16) for _ in range(2))
    source().add(levels, 0, 0, CHUNK, a)
    source().add(levels / 255, 0, 0, CHUNK, b)
    assert np.array_equal(a, b)


@pytest.mark.parametrize("kind", ["gaussian", "uniform", "laplace"])
def test_other_noise_is_added_in_units_of_the_pixel_range(kind) -> None:
    levels = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
    for image in (levels, (levels / 255).astype(np.float32), levels / 255):
        out = np.zeros((4, *SHAPE), dtype=np.float32)
        source(kind).add(image, 3, 60, 4, out)
        assert out == pytest.approx(source(kind).unit(3, 0)[60:] + levels / 255, abs=1e-6)


def test_out_may_be_a_slice_of_a_batch_and_only_it_is_written() -> None:
    batch = np.full((10, *SHAPE), 9999, dtype=np.int16)
    source().add(np.zeros(SHAPE, dtype=np.uint8), 0, 0, 4, batch[3:7])
    assert (batch[:3] == 9999).all()
    assert (batch[7:] == 9999).all()
    assert np.array_equal(batch[3:7], source().integers(0, 0)[:4])


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 65), (60, 5), (10, -1), (-3, 2)])
def test_samples_of_two_chunks_are_refused(first, count) -> None:
    with pytest.raises(InputError, match=r"chunk"):
        source().add(np.zeros(SHAPE, dtype=np.uint8), 0, first, count, np.zeros((abs(count), *SHAPE), dtype=np.int16))


@pytest.mark.parametrize(
    ("image", "out", "message"),
    [
        (np.zeros((2, 3, 4), np.uint8), np.zeros((2, *SHAPE), np.int16), r"\(2, 3, 4\)"),
        (np.zeros(SHAPE, np.int64), np.zeros((2, *SHAPE), np.int16), "int64"),
        (np.full(SHAPE, np.nan, np.float32), np.zeros((2, *SHAPE), np.int16), "NaN"),
        (np.full(SHAPE, -np.inf), np.zeros((2, *SHAPE), np.int16), "infinite"),
        (np.full(SHAPE, 150.0), np.zeros((2, *SHAPE), np.int16), "150"),
        (np.full(SHAPE, -150.0), np.zeros((2, *SHAPE), np.int16), "150"),
        (np.full(SHAPE, 128.0), np.zeros((2, *SHAPE), np.int16), "128"),
        (np.zeros(SHAPE, np.uint8), np.zeros((3, *SHAPE), np.int16), r"\(3, 2, 3, 5\)"),
        (np.zeros(SHAPE, np.uint8), np.zeros((2, *SHAPE), np.float32), "float32"),
    ],
)
def test_bad_images_and_outputs(image, out, message) -> None:
    with pytest.raises(InputError, match=message):
        source().add(image, 0, 0, 2, out)


def test_only_grid_noise_has_integers() -> None:
    with pytest.raises(InputError, match="laplace"):
        source("laplace").integers(0, 0)


# The specification


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sigma", [0, -0.5, math.nan, math.inf, None, "0.5"])
def test_bad_sigma(kind, sigma) -> None:
    with pytest.raises(InputError, match="sigma"):
        Noise(kind, sigma)


def test_the_largest_sigma_fits_sixteen_bits_and_more_is_refused() -> None:
    reach = math.ceil(255 * MAX_GRID_SIGMA * -ndtri(2.0**-65))
    assert reach + 255 <= 32767 < reach * (MAX_GRID_SIGMA + 0.1) / MAX_GRID_SIGMA + 255
    with pytest.raises(InputError, match=r"13\.9"):
        Noise("grid", 14.0)
    assert Noise("grid", MAX_GRID_SIGMA).sigma == MAX_GRID_SIGMA
    assert Noise("gaussian", 14.0).sigma == 14.0


def test_noise_spec() -> None:
    assert [Noise(kind, 1).norm for kind in KINDS] == ["l2", "l2", "l1", "l1"]
    assert Noise("grid", np.float32(0.5)) == Noise("grid", 0.5)
    assert type(Noise("grid", 1).sigma) is float
    with pytest.raises(InputError, match="cauchy"):
        Noise("cauchy", 0.5)


@pytest.mark.parametrize("shape", [(), (3, 0, 32), (-1, 2, 2)])
def test_bad_shape(shape) -> None:
    with pytest.raises(InputError, match="shape"):
        source(shape=shape)


def test_total_variation_is_stated_per_image() -> None:
    assert source(shape=CIFAR).total_variation == pytest.approx(1.9e-13, rel=0.05)
    assert source(shape=(3, 224, 224), sigma=1.0).total_variation == pytest.approx(1.9e-11, rel=0.05)
    assert source("gaussian").total_variation is None


# The l1 noises; z-scores within 5, false-alarm rate 6e-7 each


def test_uniform_has_half_width_sqrt_3_sigma() -> None:
    values = source("uniform", 0.5, CIFAR).unit(0, 0).astype(np.float64).ravel()
    half = math.sqrt(3) / 2
    assert np.abs(values).max() <= half * (1 + 1e-7)
    assert np.abs(values).max() > half * (1 - 30 / values.size)  # e^-30 that all are smaller
    z = (np.mean(values**2) - 0.25) / (0.25 * math.sqrt(0.8 / values.size))
    assert abs(z) < 5


def test_laplace_has_scale_sigma_over_sqrt_2() -> None:
    values = source("laplace", 0.5, CIFAR).unit(0, 0).astype(np.float64).ravel()
    scale = 0.5 / math.sqrt(2)
    assert abs(np.abs(values).mean() / scale - 1) * math.sqrt(values.size) < 5
    z = (np.mean(values**2) - 0.25) / (0.25 * math.sqrt(5 / values.size))
    assert abs(z) < 5
