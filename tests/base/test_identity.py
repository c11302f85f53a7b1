"""Is this the same run? One answer, in words."""

import pytest

from arquant.base.errors import MismatchError
from arquant.base.identity import check_same, differences

THERE = {"model": "a", "options": {"sigma": 0.5, "n": 100}}


def test_equal_and_unstated_settings_are_the_same_run():
    check_same(THERE, {**THERE, "newer": None}, "runs/a holds another run")
    check_same(THERE, {**THERE, "options": {"sigma": 0.5, "n": 7}}, "it", free=["options.n"])


def test_the_first_differences_are_named():
    with pytest.raises(MismatchError, match=r"^runs/a holds another run \(options.sigma 0.5 there, 1 here\); move it$"):
        check_same(THERE, {**THERE, "options": {"sigma": 1, "n": 100}}, "runs/a holds another run", advice="move it")
    many = {str(number): number for number in range(9)}
    assert differences({}, many).startswith("0 not stated there, 0 here; ")
    assert differences({}, many).endswith("; and 3 more")


def test_hashes_are_not_shown():
    there, here = {"model": "0" * 64, "images": "1" * 64}, {"model": "2" * 64, "images": "3" * 64}
    assert differences(there, here) == "another model; another set of images"
    assert "not stated here" in differences(there, {})
