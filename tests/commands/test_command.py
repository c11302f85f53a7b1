"""A command is a Python function with the signature of its options, and a line on the command line."""

import contextlib
import inspect
import io
import subprocess
import sys
from dataclasses import KW_ONLY, dataclass
from typing import Any, get_type_hints

import pytest

import arquant
from arquant.base.errors import InputError
from arquant.base.options import options_of
from arquant.base.progress import Status
from arquant.commands.command import Command, Watched, command
from arquant.commands.help_screen import brief, help_of
from arquant.commands.main import COMMANDS, FIRST, Output, find_command, main, read_options

HEAVY = ("torch", "numpy", "scipy", "openvino", "onnx", "jinja2", "yaml", "jsonargparse", "rich")


@dataclass(frozen=True)
class Greeting(Watched):
    """Greeting"""

    whom: str
    """who is greeted"""
    _: KW_ONLY
    times: int = 1
    """how often"""

    def __post_init__(self) -> None:
        if self.times < 1:
            raise InputError(f"times must be at least 1, got {self.times}")


@command(Greeting, "greet someone", common=("times",), examples=("arquant greet world",))
def greet(options: Greeting) -> str:
    """Return a greeting."""
    options.report(Status("greet", 1, 1, "greetings"))
    options.note("about to greet")
    return " ".join(["hello", options.whom] * options.times)


def test_a_command_is_a_function_of_its_options() -> None:
    heard: list[Any] = []
    assert greet("world", times=2, report=heard.append, note=heard.append) == "hello world hello world"
    assert heard == [Status("greet", 1, 1, "greetings"), "about to greet"]
    assert next(iter(inspect.signature(greet).parameters)) == "whom"
    assert inspect.signature(greet).parameters["times"].default == 1
    assert "times: how often (default: 1)" in (inspect.getdoc(greet) or "")
    assert (Command.__doc__ or "").startswith("A command of the command line")
    with pytest.raises(TypeError, match=r"greet\(\): there is no option 'tmies'; did you mean times"):
        greet("world", tmies=2)
    with pytest.raises(TypeError, match="everything else by name"):
        greet("world", 2)
    with pytest.raises(InputError, match="times must be at least 1, got 0"):
        greet("world", times=0)


@command(Greeting, "refuse someone")
def refuse(options: Greeting) -> str:
    """Refuse to greet."""
    raise InputError(f"use fewer --times than {options.times}, or --louder; arquant greet {options.whom} --times 1")


def test_python_is_told_of_arguments_not_of_flags() -> None:
    with pytest.raises(InputError, match="use fewer times than 3, or --louder; arquant greet you --times 1"):
        refuse("you", times=3)


def test_what_the_options_refuse_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in ((["world", "--times", "0"], "got 0"), ([], "WHOM must be given: who is greeted")):
        with pytest.raises(SystemExit) as end:
            read_options(greet, words)
        assert end.value.code == 2
        assert said in capsys.readouterr().err


def test_help_of_every_command_imports_nothing_heavy() -> None:
    script = """if True:
        import sys
        from arquant.commands.main import main
        main(sys.argv[1].split())
        print(*(name for name in sys.argv[2:] if name in sys.modules), file=sys.stderr)
    """
    for words in ("search --help", "search --help all", *(f"{name} -h" for name in COMMANDS)):
        done = subprocess.run([sys.executable, "-c", script, words, *HEAVY], capture_output=True, text=True)
        assert (done.returncode, done.stderr.strip()) == (0, ""), words
        assert done.stdout.startswith("usage: arquant"), words


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_one_screen_and_all_of_it_has_every_option(name: str) -> None:
    found = find_command(name)
    lines = help_of(found, options_of(Output), everything=False).splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    short, everything = "\n".join(lines), help_of(found, options_of(Output), everything=True)
    if found.examples:
        assert lines[3].strip() == found.examples[0].splitlines()[0].strip(), "an example comes first"
    for option in (*options_of(found.options), *options_of(Output)):
        assert option.help, f"{option.name} is not explained"
        assert (option.name.upper() if option.positional else option.flag) in everything
        if option.required:
            assert option.name in short.lower()
    assert {*found.common} <= {option.name for option in options_of(found.options)}


def test_the_short_help_is_grouped_and_shows_defaults() -> None:
    lines = help_of(find_command("certify"), options_of(Output), everything=False).splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")][1:]
    assert titles == ["which images:", "noise and votes:", "the network:", "where, and in which form:"]
    assert any(line.startswith("  --n N ") and line.endswith("(default 10000)") for line in lines)


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("run folder", 10, "run folder"),
        ("run folder; the same command resumes", 24, "run folder"),
        ("images of the role (evenly spaced); all if not given", 30, "images of the role"),
        ("auto, torch, openvino, onnxruntime, or one of yours", 30, "auto, torch, openvino ..."),
    ],
)
def test_an_explanation_is_cut_after_a_thought_or_a_word(text: str, width: int, expected: str) -> None:
    assert brief(text, width) == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_python_arguments_are_the_flags(name: str) -> None:
    found = getattr(arquant, name)
    assert isinstance(found, Command)
    flags = {option.name for option in options_of(found.options)}
    assert flags <= set(inspect.signature(found).parameters)
    assert set(get_type_hints(found.options)) >= flags


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serch"], "there is no command serch; did you mean search?"),
        (["search", "m", "--sigma", "0.5", "--out", "x"], "--budget must be given"),
        (["search", "m", "--sigma", "0.5", "--out", "x", "--bugdet", "b"], "did you mean --budget?"),
        (
            ["search", "m", "--sigma", "0.5", "--out", "x", "--budget", "b", "--search-n", "0"],
            "search_n must be at least 1",
        ),
        (["cost"], "MODEL must be given"),
        (["completion", "tcsh"], "'tcsh' is not one of bash, zsh, fish"),
    ],
)
def test_usage_errors_end_with_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code: Any = None
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1)
    assert message in said.err


def test_a_slip_in_python_is_named() -> None:
    for call, slip, meant in (
        (arquant.certify, "sgima", "sigma"), (arquant.predict, "iamges", "images"), (arquant.check, "min_arc", "min_acr"),
        (arquant.export, "formt", "format"), (arquant.report, "figure", "figures"), (arquant.train, "epoch", "epochs"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=rf"{call.name}\(\): there is no option '{slip}'; did you mean {meant}\?"):
            call("x", **{slip: 1})


def test_the_overview_names_every_command() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["--help"]) == 0
        assert main([]) == 2
        assert main(["--version"]) == 0
    named = [line.split()[0] for line in said.getvalue().splitlines() if line.startswith("  ")]
    assert sorted(named) == sorted([*COMMANDS, *COMMANDS])
    assert named[: len(FIRST)] == ["demo", "search", "certify", "report", "check"]
    assert said.getvalue().endswith(f"{arquant.__version__}\n")


def options_for(*words: str) -> Any:
    return read_options(find_command(words[0]), words[1:])[1]


@pytest.mark.parametrize(
    ("content", "words", "expected"),
    [
        ("sigma: 0.25\nn: 300", ["m", "d", "--sigma", "0.5", "--config", "f.yaml"], {"sigma": 0.5, "n": 300}),
        ("sigma: 0.25\nn: 300", ["m", "d", "--config=f.yaml", "--n=1e3"], {"sigma": 0.25, "n": 1000}),
        ("model: x\ndata: y\nsigma: 1", ["--config", "f.yaml"], {"model": "x", "data": "y"}),
        ("model: x\ndata: y\nsigma: 1", ["--config", "f.yaml", "m"], {"model": "m", "data": "y"}),
        ("label-directed: true\nsigma: 1", ["m", "--config", "f.yaml"], {"label_directed": True, "multiclass": False}),
        (
            "input: [3, 4, 4]\nmean: 0.5,0.4\nsigma: 1",
            ["m", "--config", "f.yaml"],
            {"input": (3, 4, 4), "mean": (0.5, 0.4)},
        ),
        ("budget: [b<=1, c<=1]\nsigma: 1", ["m", "--config", "f.yaml"], {"budget": ("b<=1", "c<=1")}),
        ("budget: [b<=1, c<=1]\nsigma: 1", ["m", "--budget", "a<=1", "--config", "f.yaml"], {"budget": ("a<=1",)}),
    ],
)
def test_flags_override_a_configuration_file(
    content: str, words: list[str], expected: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(f"out: here\n{content}\n")
    budget = [] if "budget" in expected else ["--budget", "bops<=3bit"]
    found = options_for("search", *words, *budget)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("quantize m --bits 4 --sigma 0.5 --out x", "interrupted; it keeps nothing to go on from, to start over: "),
        ("train m --sigma 0.5 --out x", "interrupted; what was done is kept in x, to go on: "),
        ("certify m --sigma 0.5", "interrupted; what was done is kept, to go on: "),
    ],
)
def test_ctrl_c_says_what_is_kept_and_what_to_type(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(find_command(words.split()[0]), "run", interrupted)
    assert main(words.split()) == 130
    assert capsys.readouterr().err == f"{said}arquant {words}\n"
