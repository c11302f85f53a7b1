"""Interrupted runs: the same command resumes, and ends with the table of a run that was never interrupted."""

import contextlib
import json
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import FileFormatError, InputError
from arquant.certificates.certificate import Settings
from arquant.certification.certify_work import Started
from arquant.certification.identity import voter
from arquant.certification.partial_votes import read_partial, write_partial
from arquant.certification.smoothing import Smoothed
from arquant.commands.main import find_command
from arquant.engines.choice import ENGINES, make_engine
from arquant.loading.datasets import load_data
from arquant.loading.models import load_model
from tests.support.command_line import InProcess, Project
from tests.support.damage import FUZZ, mutate

UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1"}
PATIENCE = 300.0
PARTIAL = "certificates.partial.json"


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy network sleeps in Python, which a compiled one does not."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


def command(out: str, *options: str) -> list[str]:
    words = "certify toy:slow npz:data.npz --sigma 0.5 --n 150 --n0 50 --engine torch --batch 16 --threads 1 --out"
    return [*words.split(), out, *options]


def table(folder: Path) -> list[list[str]]:
    """The rows of a run's table, the header first, without the time column."""
    rows = [line.split("\t") for line in (folder / "certificates.tsv").read_text().splitlines()]
    return [row[:5] + row[6:] for row in rows]


def interrupt(
    project: Project, words: list[str], when: Callable[[], bool], sent: signal.Signals, **env: str
) -> tuple[int, str]:
    """Start the command, send the signal as soon as `when` holds; the exit code and what it said.

    `env` must make the network so slow that `when` holds for a minute: a busy machine may be late to see it.
    """
    process = project.start(*words, env={**UNCOMPILED, **env})
    try:
        began = time.monotonic()
        while not when():
            assert process.poll() is None, f"ended before it could be interrupted: {process.communicate()}"
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.01)
        process.send_signal(sent)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, err


def rows(folder: Path) -> int:
    path = folder / "certificates.tsv"
    return path.read_text().count("\n") - 1 if path.exists() else 0


@pytest.fixture
def given_on(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[int, Started]]:
    """Return what each certification from here on is given of an earlier one."""
    found: list[Mapping[int, Started]] = []
    own = Smoothed.certify

    def certify(self: Smoothed, *arguments: Any, **options: Any) -> Any:
        found.append(options["started"])
        return own(self, *arguments, **options)

    monkeypatch.setattr(Smoothed, "certify", certify)
    return found


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
@pytest.mark.parametrize("options", [[], ["--adaptive", "--multiclass"]], ids=["fixed", "adaptive"])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    project: Project, cli: InProcess, sent: signal.Signals, options: list[str]
) -> None:
    name = f"{sent.name}{len(options)}"
    words = command(name, *options)
    folder = project.folder / name
    code, err = interrupt(project, words, lambda: rows(folder) >= 2, sent, TOY_TABLE=f"{name}/certificates.tsv")
    assert 2 <= rows(folder) < 6
    if sent == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130
        assert "Traceback" not in err
        assert err.splitlines()[-1] == (
            f"interrupted; what was done is kept in {name}, to go on: {shlex.join(['arquant', *words])}"
        )
    written = table(folder)
    with (folder / "certificates.tsv").open("a") as file:
        file.write("5\t2\t2\t0.31")  # as if killed within a row
    assert cli(*words).code == 0
    assert table(folder)[: len(written)] == written
    assert cli(*command("whole", *options, "--out", f"whole{len(options)}")).code == 0
    assert table(folder) == table(project.folder / f"whole{len(options)}")


def test_a_run_killed_inside_an_image_goes_on_inside_it(
    project: Project, cli: InProcess, given_on: list[Mapping[int, Started]]
) -> None:
    words = command("inside", "--n", "10000", "--images", "first:2")
    folder = project.folder / "inside"

    def counted() -> int:
        with contextlib.suppress(OSError, ValueError):
            states = json.loads((folder / PARTIAL).read_text())["images"]
            return max((s["counted"] for s in states.values() if not s["selecting"]), default=0)
        return 0

    interrupt(project, words, lambda: counted() >= 200, signal.SIGKILL, TOY_DELAY="0.1", TOY_PARTIAL="0.05")
    assert rows(folder) == 0
    before = counted()
    assert cli(*words).code == 0
    assert given_on[0][0].counted == before >= 200
    assert not (folder / PARTIAL).exists()
    assert cli(*command("whole-inside", "--n", "10000", "--images", "first:2")).code == 0
    assert table(folder) == table(project.folder / "whole-inside")


def first_votes() -> tuple[dict[int, int], dict[int, int]]:
    """The votes that select the class of the first image, and the first 64 that count."""
    model = load_model("toy:slow")
    smoothed = Smoothed(model, 0.5, engine=make_engine(model, kind="torch", batch=16, threads=1, input_kind="levels"))
    counts = [
        smoothed.count(load_data("npz:data.npz", "certify").take([0]), n, purpose)[0]
        for purpose, n in (("select", 50), ("certify", 64))
    ]
    smoothed.close()
    select, certify = ({int(k): int(votes[k]) for k in votes.nonzero()[0]} for votes in counts)
    return select, certify


@pytest.fixture
def unfinished(project: Project, cli: InProcess) -> Path:
    """A folder of a run that was killed inside its first image, with its partial votes."""
    folder, source = project.folder / "unfinished", project.folder / "partial-source"
    if not source.exists():
        words = command("partial-source", "--images", "first:2")
        assert cli(*words).code == 0
        header = (source / "certificates.tsv").read_text().splitlines()[0]
        (source / "certificates.tsv").write_text(header + "\n")
        record = json.loads((source / "certificates.json").read_text())["provenance"]
        write_partial(
            source / PARTIAL,
            voter(record["identity"], record["engine"]),
            {0: Started(False, 64, *first_votes())},
        )
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    return folder


def test_partial_votes_are_used(cli: InProcess, unfinished: Path, given_on: list[Mapping[int, Started]]) -> None:
    answer = cli(*command("unfinished", "--images", "first:2"))
    assert answer.code == 0
    assert "start over" not in answer.err
    assert given_on[0][0].counted == 64


@pytest.mark.parametrize("counts", ["select_counts", "counts"])
def test_forged_partial_votes_are_refused(cli: InProcess, unfinished: Path, counts: str) -> None:
    data = json.loads((unfinished / PARTIAL).read_text())
    data["images"]["0"][counts] = [[0, sum(votes for _, votes in data["images"]["0"][counts]) - 3], [1, 3]]
    (unfinished / PARTIAL).write_text(json.dumps(data))
    answer = cli(*command("unfinished", "--images", "first:2"))
    assert answer.code == 2
    assert "certificates.partial.json is not what this model and engine answer: image 0" in answer.err
    assert rows(unfinished) == 0
    (unfinished / PARTIAL).unlink()
    assert cli(*command("unfinished", "--images", "first:2")).code == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(run="another"),
        lambda data: data["images"]["0"].update(counted=65),
        lambda data: data["images"]["0"].update(counts=[[0, 64], [7, 0]]),
        lambda data: data["images"].update(x={}),
        lambda data: data.pop("images"),
    ],
    ids=["run", "sum", "class", "index", "missing"],
)
def test_partial_votes_that_do_not_belong_are_not_used(
    cli: InProcess, unfinished: Path, change: Callable[[Any], Any]
) -> None:
    data = json.loads((unfinished / PARTIAL).read_text())
    change(data)
    (unfinished / PARTIAL).write_text(json.dumps(data))
    answer = cli(*command("unfinished", "--images", "first:2"))
    assert answer.code == 0
    assert "start over" in answer.err
    assert cli(*command("clean", "--images", "first:2")).code == 0
    assert table(unfinished) == table(unfinished.parent / "clean")


def test_votes_of_two_engines_do_not_mix_inside_an_image(
    cli: InProcess, unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.__version__", "another")
    answer = cli(*command("unfinished", "--images", "first:2"))
    assert answer.code == 0
    assert "start over" in answer.err
    assert cli(*command("afresh", "--images", "first:2")).code == 0
    assert table(unfinished) == table(unfinished.parent / "afresh")


def test_the_engine_of_the_first_part_is_kept(cli: InProcess, unfinished: Path) -> None:
    words = command("unfinished", "--images", "first:2")
    without = [word for word in words if word not in ("--engine", "torch", "--batch", "16", "--threads", "1")]
    assert cli(*without).code == 0
    engine = json.loads((unfinished / "certificates.json").read_text())["provenance"]["engine"]
    assert (engine["engine"], engine["batch"], engine["threads"]) == ("torch", 16, 1)


def test_an_engine_that_cannot_be_changed_any_more_is_said_so(cli: InProcess, unfinished: Path) -> None:
    words = command("unfinished", "--images", "first:2")
    words[words.index("--batch") + 1] = "32"
    answer = cli(*words)
    assert answer.code == 0
    assert "no effect: --batch 32 (it is 16); choose another --out" in answer.err
    (recorded,) = json.loads((unfinished / "certificates.json").read_text())["provenance"]["warnings"]
    assert f"warning: {recorded}" in answer.err
    assert "warning" not in cli(*command("unfinished", "--images", "first:2")).err


def test_threads_may_change_where_each_batch_has_one_core(cli: InProcess, project: Project) -> None:
    words = [word for word in command("threads", "--images", "first:2") if word not in ("--engine", "torch")]
    words[words.index("--threads") : words.index("--threads") + 2] = ["--engine", "openvino"]
    assert cli(*words, "--threads", "1").code == 0
    folder = Path("threads")
    rows = (folder / "certificates.tsv").read_text().splitlines(keepends=True)
    (folder / "certificates.tsv").write_text("".join(rows[:2]))
    answer = cli(*words, "--threads", "2")
    assert (answer.code, "warning" in answer.err) == (0, False), answer.err
    record = json.loads((folder / "certificates.json").read_text())["provenance"]
    assert (record["parts"][0]["engine"]["threads"], record["engine"]["threads"]) == (1, 2)
    assert table(folder)[2] == [field for k, field in enumerate(rows[2].rstrip("\n").split("\t")) if k != 5]


def test_the_sidecar_tells_the_parts_of_a_run_apart(cli: InProcess, unfinished: Path) -> None:
    sidecar = unfinished / "certificates.json"
    data = json.loads(sidecar.read_text())
    data["provenance"]["commit"] = "an older one"
    data["provenance"]["engine"]["version"] = "0.1"
    assert data["provenance"].pop("warnings") == []
    sidecar.write_text(json.dumps(data))
    answer = cli(*command("unfinished", "--images", "first:2"))
    assert answer.code == 0
    assert "come from another engine (version 0.1 then, " in answer.err
    record = json.loads(sidecar.read_text())["provenance"]
    assert [(part["commit"], part["engine"]["version"]) for part in record["parts"]] == [("an older one", "0.1")]
    assert record["commit"] != "an older one"
    assert record["parts"][0]["warnings"] is None  # an older version did not record them
    assert "come from another engine" in record["warnings"][0]


def test_the_sidecar_says_that_another_engine_had_to_vote(cli: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise InputError("OpenVINO cannot convert this")

    monkeypatch.setitem(ENGINES, "openvino", fail)
    answer = cli("certify", "toy:colours", "npz:data.npz", "--sigma", "0.5", "--n", "100", "--out", "fallen-back")
    record = json.loads(Path("fallen-back/certificates.json").read_text())["provenance"]
    assert (answer.code, record["engine"]["engine"]) == (0, "torch")
    assert record["warnings"] == ["OpenVINO cannot convert this"]
    assert answer.err.count("warning: OpenVINO cannot convert this") == 1


@FUZZ
@given(st.data())
def test_fuzzed_partial_votes_are_used_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path, settings = tmp_path / PARTIAL, Settings(sigma=0.5, n0=50, n=150)
    write_partial(path, "this", {0: Started(False, 64, {0: 50}, {0: 60, 1: 4}), 7: Started(True, 20, {2: 20})})
    path.write_bytes(mutate(path.read_bytes(), data))
    with contextlib.suppress(FileFormatError):
        assert all(state.fits(settings, 3) for state in read_partial(path, "this", settings, 3).values())


def test_ctrl_c_of_a_command_that_does_not_resume_says_so(cli: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(find_command("metrics"), "run", interrupted)
    answer = cli("metrics", "x.tsv")
    assert (answer.code, answer.out, answer.err) == (
        130, "", "interrupted; it keeps nothing to go on from, to start over: arquant metrics x.tsv\n",
    )  # fmt: skip
