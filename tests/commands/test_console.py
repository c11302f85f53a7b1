"""Progress, notes and warnings: for people, for programs, or not at all."""

import json
import logging
import sys
import warnings

import pytest

from arquant.base.progress import Status
from arquant.commands.console import Console
from arquant.commands.main import COMMANDS, main


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_progress_is_one_object_per_line(capsys):
    with Console(progress="json").progress() as report:
        report(Status("train", 0, 100, "images"))
        report(Status("train", 50, 100, "images"))  # within the same second: left out
        report(Status("train", 60, 100, "images", {"loss": "1.5"}, {"loss": 1.5}, 6))
        report(Status("train", 100, 100, "images"))
        report(Status("certify", 5, 10, "votes"))
    said = lines(capsys)
    assert [(line["stage"], line["done"]) for line in said] == [
        ("train", 0), ("train", 60), ("train", 100), ("certify", 5),
    ]  # fmt: skip
    assert (said[1]["values"], said[1]["step"], said[1]["details"]) == ({"loss": 1.5}, 6, {"loss": "1.5"})
    assert said[1]["left"] >= 0
    assert said[0]["left"] is None
    assert said[2]["left"] == 0


def test_plain_progress_has_a_line_at_the_end_of_every_stage(capsys):
    with Console(progress="plain").progress() as report:
        for status in (
            Status("train", 0, 10, "images"),
            Status("train", 10, 10, "images"),
            Status("replay", 3, 3, "votes"),
        ):
            report(status)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("train: 10/10 images")
    assert second == "replay: 3/3 votes"


def test_json_mode_says_notes_warnings_and_errors_as_objects_too(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("arquant"), "disabled", True)  # as importing ART does
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)
    console = Console(progress="json")
    with console.shown_warnings():
        console.note("a note")
        warnings.warn("careful\nnow", UserWarning, stacklevel=1)
        warnings.warn("careful\nnow", UserWarning, stacklevel=1)
        logging.getLogger("arquant").warning("%s is slow", "torch")
    console.error("no such file")
    assert lines(capsys) == [
        {"note": "a note"}, {"warning": "careful now"}, {"warning": "torch is slow"}, {"error": "no such file"},
    ]  # fmt: skip


def test_quiet_says_errors_only(capsys):
    console = Console(quiet=True)
    with console.shown_warnings(), console.progress() as report:
        console.note("a note")
        warnings.warn("careful", UserWarning, stacklevel=1)
        logging.getLogger("arquant").warning("slow")
        report(Status("train", 1, 1, "images"))
    assert capsys.readouterr() == ("", "")
    console.error("bad")
    assert capsys.readouterr().err == "error: bad\n"
    assert not logging.getLogger("arquant").handlers


def test_the_style_follows_the_terminal_unless_stated(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert [Console(progress=style).style for style in ("auto", "lines", "json")] == ["bars", "lines", "json"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert [Console(progress=style).style for style in ("auto", "bars")] == ["lines", "bars"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_quiet_and_json_progress(name, capsys):
    assert main([name, "--help", "all"]) == 0
    said = capsys.readouterr().out
    assert "--quiet" in said
    assert "--progress" in said


def test_errors_of_a_command_are_objects_with_json_progress(tmp_path, capsys):
    assert main(["metrics", str(tmp_path / "none.tsv"), "--progress", "json"]) == 2
    (said,) = lines(capsys)
    assert "none.tsv" in said["error"]


def test_what_the_library_logs_is_shown_even_if_another_library_silenced_it(capsys):
    log = logging.getLogger("arquant.images.imageset")
    log.disabled = True  # as `logging.config` does it to all loggers that are there
    with Console().shown_warnings():
        log.warning("one class only")
    assert "one class only" in capsys.readouterr().err
