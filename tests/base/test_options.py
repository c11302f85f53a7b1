"""Options that are declared once: what may be typed, written into a YAML file or passed from Python, and what is refused."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import ArquantError, InputError
from arquant.base.options import Pairs, Repeated, Size, built, options_of, read_config, words_for
from arquant.base.parser import Parser


@dataclass(frozen=True, kw_only=True)
class Group:
    """A heading"""

    count: int = 3
    """how many"""
    share: float | None = None
    """a number"""
    kind: Literal["one", "two"] = "one"
    """a choice"""


@dataclass(frozen=True)
class Everything(Group):
    """Own"""

    name: str
    """what it is"""
    more: str = "sample"
    """and more"""
    _: KW_ONLY
    budget: str | Repeated = ()
    """several; a comma belongs to the value"""
    option: Pairs = field(default_factory=dict)
    """NAME=VALUE"""
    size: Size = 100
    """bytes"""
    bounds: tuple[float, float] = (0.0, 1.0)
    """two numbers"""
    some: tuple[Literal["a", "b"], ...] = ("a",)
    """a list of choices"""
    fast: bool = False
    """a flag"""
    racing: bool = True
    """a flag that switches off"""
    half: bool = False
    """implies another count"""

    @staticmethod
    def preset_values(stated: Mapping[str, Any]) -> dict[str, Any]:
        return {"count": 2} if stated.get("half") else {}


def parsed(*words: str) -> Everything:
    parser = Parser("arquant everything")
    parser.declare(options_of(Everything))
    return built(Everything, parser.stated(words))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        parsed(*words)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x"], {"name": "x", "more": "sample"}),
        (["x", "y"], {"name": "x", "more": "y"}),
        (["--count", "5", "x", "--fast", "y"], {"name": "x", "more": "y", "count": 5, "fast": True}),
        (["x", "--count", "5", "y"], {"name": "x", "more": "y", "count": 5}),
        (["x", "--count", "1e6"], {"count": 1_000_000}),
        (["x", "--count", "12345678901234567891"], {"count": 12345678901234567891}),  # not through a float
        (["x", "--count=7", "--count", "8"], {"count": 8}),
        (["x", "--bounds", "-1,1"], {"bounds": (-1.0, 1.0)}),
        (["x", "--bounds", "-.5, 1e3"], {"bounds": (-0.5, 1000.0)}),
        (["x", "--size", "100k"], {"size": 100_000}),
        (["x", "--budget", "a<=1,b<=2", "--budget", "c"], {"budget": ("a<=1,b<=2", "c")}),
        (["x", "--option", "a=1", "--option", "b = c=d"], {"option": {"a": "1", "b": "c=d"}}),
        (["x", "--some", "a,b"], {"some": ("a", "b")}),
        (["x", "--some", "none"], {"some": ()}),
        (["x", "--no-racing"], {"racing": False}),
        (["x", "--half"], {"count": 2}),
        (["x", "--half", "--count", "3"], {"count": 3}),
    ],
)
def test_words_become_values(words: list[str], expected: dict[str, Any]) -> None:
    found = vars(parsed(*words))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--cuont", "5"], "unknown option --cuont; did you mean --count?"),
        (["x", "--count", "5.5"], "'5.5' is not a whole number"),
        (["x", "--count", "inf"], "'inf' is not a whole number"),
        (["x", "--share", "much"], "'much' is not a number"),
        (["x", "--kind", "tow"], "did you mean two?"),
        (["x", "--bounds", "1"], "has 1 values, expected 2"),
        (["x", "--some", "a,c"], "'c' is not one of a, b"),
        (["x", "--option", "a"], "'a' must be written NAME=VALUE"),
        (["x", "y", "z"], "unknown argument z"),
        (["x", "--count"], "--count"),
        (["x", "--budget=--"], "--budget cannot be --"),
        (["x", "--cou", "5"], "unknown option --cou"),  # whole names only
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *words)


def test_python_gets_the_same_checks() -> None:
    assert built(Everything, {"name": "x", "budget": "a", "option": {"a": 1}}).budget == ("a",)
    assert built(Everything, {"name": "x", "count": None}).count == 3, "None states nothing"
    with pytest.raises(InputError, match="kind must be one of one, two, got 'tow'; did you mean two"):
        built(Everything, {"name": "x", "kind": "tow"})
    with pytest.raises(TypeError, match="no option 'cuont'; did you mean count"):
        built(Everything, {"name": "x", "cuont": 5})
    with pytest.raises(TypeError, match="name must be stated"):
        built(Everything, {})


def test_own_options_come_first_and_inherited_ones_have_their_group_s_heading() -> None:
    options = options_of(Everything)
    assert [option.name for option in options[:3]] == ["name", "more", "budget"]
    assert {option.group for option in options[-3:]} == {"A heading"}
    assert {option.name: option.help for option in options}["size"] == "bytes"


def test_a_yaml_file_says_the_same(tmp_path: Any) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "count: 1e3\nbounds: [-1, 1]\nbudget: [a, b]\noption: {a: 1}\nsome: a,b\nracing: false\nshare: null\n"
    )
    found = read_config(file, options_of(Everything))
    assert found == {
        "count": 1000, "bounds": (-1.0, 1.0), "budget": ("a", "b"), "option": {"a": 1}, "some": ("a", "b"), "racing": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuont: 1", "no option 'cuont'; did you mean count"),
        ("fast: 1", "fast: must be true or false, got 1"),
        ("count: {a: 1}", "cannot be"),
        ("kind: three", "'three' is not one of"),
        ("- 1", "does not hold options"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_yaml_file_that_says_something_else_is_refused(text: str, message: str, tmp_path: Any) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(ArquantError, match=message):
        read_config(tmp_path / "f.yaml", options_of(Everything))


words = st.text("abc-=,<.1 %é", min_size=1).filter(lambda text: not text.startswith("-") and text == text.strip())
anything = st.builds(
    Everything,
    name=words,
    more=words,
    count=st.integers(),
    share=st.none() | st.floats(allow_nan=False),
    kind=st.sampled_from(["one", "two"]),
    budget=st.lists(st.text("ab-,<=1 é").filter(lambda text: text != "--"), max_size=3).map(tuple),
    option=st.dictionaries(st.text("ab", min_size=1), st.text("a=1")),
    size=st.integers(0, 10**9),
    bounds=st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
    some=st.lists(st.sampled_from(["a", "b"]), max_size=3).map(tuple),
    fast=st.booleans(),
    racing=st.booleans(),
    half=st.booleans(),
)


@given(anything)
def test_what_is_typed_for_some_options_gives_these_options(options: Everything) -> None:
    assert parsed(*words_for(options)) == options


def test_defaults_and_what_others_imply_need_not_be_typed() -> None:
    options = parsed("x")
    assert words_for(options) == ["x", "sample"]
    assert words_for(replace(options, half=True, count=2)) == ["x", "sample", "--half"]
    assert words_for(replace(options, half=True)) == ["x", "sample", "--half", "--count", "3"]
    assert words_for(replace(options, half=True), without=["half", "name", "more"]) == []
