"""`arquant watch`: from the files alone, whatever state they are in, and without a trace."""

import json
import os
import shutil
import sys

import pytest

from arquant.base.errors import FileFormatError, InputError
from arquant.base.journal import Journal
from arquant.base.run_folder import open_run
from arquant.commands.main import main
from arquant.commands.watch import watch, watch_lines
from arquant.reporting.text_chart import ASCII
from tests.support.report_runs import candidate, write_certificates, write_search
from tests.support.some_certificates import certificate_set

IDENTITY = {
    "model": "f" * 64,
    "config": {"model": "toy", "data": "elsewhere", "budget": ["bops<=3bit"]},
    "options": {"sigma": 0.5, "strategy": "arq"},
}


def score(value):
    return {"estimate": "acr-cv", "value": value, "standard_error": 0.01, "low": value - 0.02, "high": value + 0.02}


def trial(number, value, **changes):
    given = None if value is None else score(value)
    times = {"finetune": 3.0, "votes": 1.0}
    return candidate(number, value, **{"score": given, "usage": 0.975, "seconds": times, **changes})


@pytest.fixture
def run(tmp_path):
    """A search in its loop, with its process at work."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "provenance.json").write_text(json.dumps({"limits": {"trials": 10, "hours": 1.0, "target_acr": None}}))
    with Journal(folder / "journal.jsonl", IDENTITY) as journal:
        journal.append({"kind": "setup", "compiled": True})
        journal.append(trial(0, 0.30))
        journal.append(trial(1, 0.42))
        journal.append(trial(2, 0.20, abandoned={"votes": 50}))
        journal.append(trial(3, None, failure="diverged"))
        yield folder


def state(folder):
    """Names, contents and times of all files."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")
    }


@pytest.mark.parametrize("limits", [{"hours": "x"}, {"trials": []}, [1], "x"])
def test_odd_limits_are_none(run, limits):
    (run / "provenance.json").write_text(json.dumps({"limits": limits}))
    assert watch(run).left_seconds is None


def test_a_running_search(run):
    seen = watch(run)
    assert (seen.stage, seen.ended, len(seen.trials)) == ("search", None, 4)
    assert [seen.count(outcome) for outcome in ("scored", "abandoned", "failed", "repeated")] == [2, 1, 1, 0]
    assert seen.best["bops<=3bit"].number == 1
    assert seen.seconds == {"finetune": 12.0, "votes": 4.0}
    assert seen.left_seconds == pytest.approx(6 * 4.0)  # six trials more, four seconds each: less than the hour
    text = "\n".join(watch_lines(seen, marks=ASCII))
    for words in ("2 scored, 1 dropped by racing, 1 failed", "acr-cv 0.4200 [0.4000, 0.4400] (candidate 1)",
                  "2.0000 G bit operations, 1,000 weight bytes, 97.5% of the budget", "finetune 3 s, votes 1 s",
                  "about 24 s", "toy, elsewhere, sigma 0.5, arq", "= best so far"):  # fmt: skip
        assert words in text
    assert text.isascii()


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="this system does not list locks")
def test_a_stopped_search_is_said_to_be_stopped(run, tmp_path):
    assert watch(run).running is True
    copied = tmp_path / "copy"
    shutil.copytree(run, copied)
    seen = watch(copied)
    assert (seen.running, seen.left_seconds) == (False, None)
    assert "no process of this machine" in watch_lines(seen)[0]


def test_budgets_share_their_candidates(tmp_path):
    budgets = ["bops<=3bit", "bops<=4bit"]
    with Journal(tmp_path / "journal.jsonl", IDENTITY) as journal:
        for number in range(3):
            journal.append(trial(number, 0.3 + 0.01 * number, budget=budgets[0], within=budgets))
    text = "\n".join(watch_lines(watch(tmp_path), marks=ASCII))
    assert text.count("= best so far") == 2
    assert text.count("% of the budget") == 1, "its share of the other budget is not known"


def test_nothing_is_written(run):
    before = state(run)
    assert main(["watch", str(run), "--once"]) == 0
    assert main(["watch", str(run), "--json"]) == 0
    assert state(run) == before
    with Journal(run.parent / "other.jsonl", IDENTITY):  # and no lock is left, either
        pass


def test_a_half_written_last_line_is_left_out(run):
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b'{"kind": "candidate", "number": 4, "bud')
    assert len(watch(run).trials) == 4


def test_a_journal_that_does_not_exist_yet(tmp_path, capsys):
    assert watch(tmp_path / "later").stage == "waiting"
    open_run(tmp_path / "soon", {"command": "search", "model": "toy"})
    assert watch(tmp_path / "soon").stage == "waiting"
    (tmp_path / "soon" / "journal.jsonl").write_bytes(b'{"schema": "arquant.jou')
    assert watch(tmp_path / "soon").stage == "waiting"
    assert main(["watch", str(tmp_path / "later")]) == 0
    assert "waiting for a search to begin" in capsys.readouterr().out


def test_a_run_that_is_no_search_is_refused(tmp_path):
    open_run(tmp_path / "quantized", {"command": "quantize", "model": "toy"})
    with pytest.raises(InputError, match="a run of arquant quantize: it has no journal"):
        watch(tmp_path / "quantized")
    write_certificates(tmp_path / "certified", certificate_set())
    (tmp_path / "certified" / "certificates.json").unlink()
    with pytest.raises(InputError, match=r"has no certificates\.json beside it"):
        watch(tmp_path / "certified")
    with pytest.raises(InputError, match="is a file"):
        watch(tmp_path / "certified" / "certificates.tsv")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "journal.jsonl").write_text('{"schema": "other"}\n')
    with pytest.raises(FileFormatError, match="not a journal of arquant"):
        watch(tmp_path / "foreign")


def test_a_certification_without_a_search(tmp_path):
    found = certificate_set()
    seen = watch(write_certificates(tmp_path / "run", found, rows=100))
    assert (seen.stage, seen.certified) == ("certification", {".": (len(found), 100)})
    assert (seen.setting["model"], seen.setting["sigma"]) == ("toy", 0.5)
    lines = watch_lines(seen)
    assert "certification" in lines[0]
    assert lines[1:] == ["  certified  40 of 100 images"]
    assert watch(write_certificates(tmp_path / "done", found)).stage == "finished"
    (tmp_path / "soon").mkdir()
    (tmp_path / "soon" / "certificates.tsv").touch()
    assert watch(tmp_path / "soon").stage == "waiting"


def test_stages_follow_each_other(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    look = {"kind": "shortlist", "budget": "bops<=3bit", "seed": 1, "score": None}
    winner, model = (
        {"kind": "winner", "budget": "bops<=3bit"},
        {"kind": "model", "folder": ".", "fingerprint": "f" * 64},
    )
    with Journal(folder / "journal.jsonl", IDENTITY) as journal:
        stages = [watch(folder).stage]
        for line in (
            trial(0, 0.3), {"kind": "end", "reason": "1 trials"}, {**look, "number": 0}, {**winner, "number": 0}, model,
            trial(1, 0.4), {"kind": "end", "reason": "2 trials"}, {**winner, "number": 1}, model,
            {"kind": "choice", "shortlist": 1}, {**look, "number": 1},
        ):  # fmt: skip
            journal.append(line)
            stages.append(watch(folder).stage)
    first = ["reference", "search", "shortlist", "shortlist", "delivery", "delivery"]
    assert stages == [*first, "search", "shortlist", "delivery", "delivery", "shortlist", "shortlist"]
    write_certificates(folder, certificate_set(), rows=1000)
    write_certificates(folder / "controls" / "float", certificate_set())
    seen = watch(folder)
    images = len(certificate_set())
    assert seen.certified == {".": (images, 1000), "controls/float": (images, images)}
    assert f"the winner: {images} of 1,000 images" in "\n".join(watch_lines(seen))
    # certificates of a release that is being certified are counted where they are written
    write_certificates(folder / "models" / ("f" * 12), certificate_set(), rows=500)
    current = {"schema": "arquant.current", "version": 1, "places": {".": "f" * 64}}
    (folder / "current.json").write_text(json.dumps(current))
    assert watch(folder).certified["."] == (images, 500)


def test_a_finished_search_shows_its_summary(tmp_path, capsys):
    folder = write_search(tmp_path / "run")
    certified = {"acr": 0.5, "acr_low": 0.4, "acr_high": 0.6, "images": 40, "certified_accuracy": {}, "controls": {}}
    point = {
        "budget": "bops<=3bit", "folder": "run", "policy": {"a": "w8a8"}, "is_uniform": False,
        "cost": {"bops": 2e9, "bops@paper": 2e9, "bytes": 1000.0}, "estimates": {"score": score(0.4)},
        "certified": certified,
    }  # fmt: skip
    summary = {
        "run": "run", "strategy": "arq", "reward": "acr-cv", "candidates_examined": 4, "abandoned": 1, "failed": 1,
        "ended": "5 trials", "trials": 5, "points": [point],
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    assert main(["watch", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "finished" in said
    assert "ACR 0.5000 [0.4000, 0.6000] on 40 images that the search never saw" in said
    (folder / "summary.json").write_text(json.dumps({**summary, "trials": 4}))
    assert watch(folder).stage == "delivery"  # it went on since
    (folder / "summary.json").write_text("[]")
    assert main(["watch", str(folder)]) == 2
    assert "not the summary of a search" in capsys.readouterr().err


def test_json_has_the_figures(run, capsys):
    assert main(["watch", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stage"], found["candidates"], found["outcomes"]["abandoned"]) == ("search", 4, 1)
    assert [point["value"] for point in found["curve"]] == [0.3, 0.42, 0.2, None]
    assert found["best"]["bops<=3bit"]["score"]["low"] == pytest.approx(0.4)
    assert found["setting"]["sigma"] == 0.5


def test_a_live_view_ends_with_the_search_or_with_the_user(run, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    looks = []

    def leave(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("arquant.commands.watch.time.sleep", leave)
    assert main(["watch", str(run), "--interval", "0.5"]) == 0
    assert looks == [0.5, 0.5]
    assert "1 dropped by racing" in capsys.readouterr().out
    assert main(["watch", str(run), "--interval", "0"]) == 2
    assert "interval" in capsys.readouterr().err
