import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import FileFormatError
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.certificate import Certificate, Settings
from arquant.certificates.rounding import round_down
from arquant.certificates.table import HEADER, format_row, format_time, parse_table, parse_time
from tests.support.some_certificates import SETTINGS, certificate, certificate_set

COHEN = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"


def table(*certificates, compat=False):
    return "\n".join([HEADER, *(format_row(c, compat=compat) for c in certificates)]) + "\n"


def test_the_first_six_columns_are_the_fields():
    assert HEADER.startswith("idx\tlabel\tpredict\tradius\tcorrect\ttime\t")
    row = format_row(certificate(950, idx=20)).split("\t")
    assert row[:3] == ["20", "0", "0"]
    assert row[4:6] == ["1", "0:00:01.250000"]
    assert len(row) == len(HEADER.split("\t"))


def test_rows_come_back_as_they_went_but_for_the_radius_digits():
    multiclass = Settings(0.5, n=1000, certificate="multiclass", adaptive=Adaptive())
    written = [
        certificate(950, idx=0),
        certificate(400, idx=20),
        certificate(1000, idx=40),
        certificate(700, multiclass, idx=60, others=[(3, 50)]),
        certificate(500, multiclass, idx=80, n=512, stop="tolerance"),
    ]
    found, warnings = parse_table(table(*written), "x.tsv")
    assert not warnings
    for before, after in zip(written, found, strict=True):
        assert 0 <= before.radius - after.radius < 1e-8
        assert after == Certificate(**{**vars(before), "radius": after.radius})


def test_compatibility_mode_writes_three_decimals_rounded_down():
    one = certificate(1000, SETTINGS)
    assert math.floor(one.radius * 1000) / 1000 == float(format_row(one, compat=True).split("\t")[3])
    assert round_down(1.9057, 3) == "1.905"
    assert [round_down(radius, 8) for radius in (0.0, 5.25e-7)] == ["0.00000000", "0.00000052"], "no exponents"
    assert parse_table(table(one, compat=True), "x.tsv")[0][0].votes == 1000


@given(st.floats(0, 1e6))
def test_printed_radii_never_exceed_the_certified_ones(radius):
    for decimals in (3, 8):
        text = round_down(radius, decimals)
        assert Fraction(text) <= Fraction(radius)
        assert Fraction(radius) - Fraction(text) < Fraction(1, 10**decimals)
        assert float(text) <= radius


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00:15.400000", 15.4),
        ("15.4", 15.4),
        ("1:01:01", 3661.0),
        ("1 day, 2:00:00", 93600.0),
        ("30:00:00.5", 108000.5),
    ],
)
def test_both_time_formats_are_read(text, seconds):
    assert parse_time(text) == pytest.approx(seconds)


@given(st.floats(0, 1e6))
def test_times_come_back(seconds):
    assert parse_time(format_time(seconds)) == pytest.approx(seconds, abs=1e-6)


def test_files_of_the_field_are_read():
    text = COHEN + "0\t3\t3\t1.31\t1\t0:00:15.443\n20\t8\t-1\t0.0\t0\t15.4\n40\t1\t2\t0.5\t0\t0:00:14.1\n"
    found, warnings = parse_table(text, "x.tsv")
    assert [(c.idx, c.correct, c.abstained) for c in found] == [(0, True, False), (20, False, True), (40, False, False)]
    assert found[0].seconds == pytest.approx(15.443)
    assert found[0].n == 0
    assert found[0].p_lower is None
    assert not warnings


def test_columns_go_by_name_and_extra_ones_are_ignored():
    text = "idx\tlabel\tpredict\tpA\tsamplesize\tradius\tcorrect\ttime_forward\tmood\r\n"
    text += "0\t3\t3\t0.9\t5000\t0.6\t1\t2.5\tgood\r\naverage radius\t0.6\r\n\r\n"
    found, warnings = parse_table(text, "iss.tsv")
    assert (found[0].p_lower, found[0].n, found[0].seconds) == (0.9, 5000, 2.5)
    assert len(warnings) == 1
    assert "line 3" in warnings[0]


@pytest.mark.parametrize(
    "line",
    [
        "summary of the first part",
        "",
        "20\t1\t1\t0.5\t1",
        "20\t1\t1\t0.5\t1\t0:00:01\t9",
        "20\t1\t1\tnan\t1\t0:00:01",
        "20\t1\t1\t1_0\t1\t0:00:01",
        "20\t1\t1\t-0.5\t1\t0:00:01",
        "20\t1\t1\t0.5\t0\t0:00:01",
        "20\t1\t2\t0.5\t1\t0:00:01",
        "20\t1\t1\t0.5\tyes\t0:00:01",
        "20\t1\t-1\t0.5\t0\t0:00:01",
        "20\t1\t1\t0.5\t1\tlong",
        "20\t1.0\t1\t0.5\t1\t0:00:01",
        "٢٠\t1\t1\t0.5\t1\t0:00:01",
        "0\t1\t1\t0.5\t1\t0:00:01",
    ],
)
def test_a_malformed_line_between_rows_is_an_error_that_names_it(line):
    text = COHEN + "0\t1\t1\t0.5\t1\t0:00:01\n" + line + "\n40\t1\t1\t0.5\t1\t0:00:01\n"
    with pytest.raises(FileFormatError, match=r"x\.tsv, line 3"):
        parse_table(text, "x.tsv")


def test_a_truncated_last_row_is_an_error_not_junk():
    text = table(*certificate_set(3).certificates)
    with pytest.raises(FileFormatError, match="line 4"):
        parse_table(text[: text.rindex("\t") - 5], "x.tsv")
    for cut in range(1, len(text) - text.rindex("\t")):  # within the counts
        with pytest.raises(FileFormatError, match="line 4"):
            parse_table(text[:-cut].rstrip("\n")[:-1], "x.tsv")


@pytest.mark.parametrize("header", ["", "idx label predict radius correct time", "idx\tlabel\tpredict\tcorrect\ttime"])
def test_a_file_without_our_columns_is_refused(header):
    with pytest.raises(FileFormatError, match="line 1: no column"):
        parse_table(header + "\n0\t1\t1\t0.5\t1\t1.0\n", "x.tsv")
    with pytest.raises(FileFormatError, match="twice"):
        parse_table("n\t" + COHEN.replace("\n", "\tsamplesize\n"), "x.tsv")
