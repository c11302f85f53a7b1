import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.reporting.text_chart import ASCII, UNICODE, Point, learning_curve


def test_a_known_curve():
    points = [Point(0.1), Point(0.3), Point(0.2, counts=False), Point(None, counts=False), Point(0.4)]
    assert learning_curve(points, width=16, height=4, marks=ASCII) == [
        "   0.4000 |    o",
        "          | o==",
        "   0.2000 |  x",
        "   0.1000 |o",
        "          +-----",
        "           0   4",
    ]


def test_unicode_marks_and_nothing_to_draw():
    assert learning_curve([]) == []
    assert learning_curve([Point(None)]) == []
    chart = "\n".join(learning_curve([Point(0.5), Point(0.2)], marks=UNICODE))
    assert chart.count("•") == 2
    assert "━" in chart


def test_one_value_and_equal_values_are_drawn():
    for points in ([Point(0.0)], [Point(-1.0)] * 3):
        assert sum(line.count("o") for line in learning_curve(points, marks=ASCII)) == len(points)


@given(
    st.lists(st.tuples(st.none() | st.floats(-10, 10), st.booleans()), min_size=1, max_size=300),
    st.integers(20, 100),
    st.integers(3, 20),
)
def test_charts_keep_their_size_and_end_at_the_best(raw, width, height):
    points = [Point(value, counts) for value, counts in raw]
    chart = learning_curve(points, width=width, height=height, marks=ASCII)
    values = [point.value for point in points if point.value is not None]
    assert bool(chart) == bool(values)
    if not chart:
        return
    assert len(chart) == height + 2
    assert all(len(line) <= width for line in chart)
    assert f"{max(values):.4f}" in chart[0] or max(values) == min(values)
    counted = [point.value for point in points if point.counts and point.value is not None]
    if counted and max(counted) == max(values) > min(values):
        assert chart[0].rstrip()[-1] in "o=x"


@pytest.mark.parametrize("count", [1, 2, 9, 10, 99, 100, 1000])
def test_the_last_number_is_written_below(count):
    last = learning_curve([Point(float(i)) for i in range(count)], width=40, marks=ASCII)[-1]
    assert last.split() == (["0", str(count - 1)] if count > 1 else ["0"])
