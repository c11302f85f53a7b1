"""One run at a time, whatever children the last one has left behind."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from arquant.base.errors import MismatchError
from arquant.base.file_lock import in_use
from arquant.base.journal import Journal
from arquant.certificates.files import CertificateWriter
from tests.support.command_line import Project

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")

Held = Callable[[Path], AbstractContextManager[object]]
HELD: dict[str, Held] = {
    "folder": in_use,
    "journal": lambda folder: Journal(folder / "journal.jsonl", {"search": 1}),
    "certificates": lambda folder: CertificateWriter(folder / "certificates.tsv"),
}
PROGRAM = """
import os, sys
from pathlib import Path
from tests.base.test_file_lock import HELD
with HELD[sys.argv[1]](Path(sys.argv[2])):
    if not os.fork():
        os.write(1, b"held\\n")  # by the child: until it runs, it has all that its parent had
        os.close(1)
        os.read(0, 1)
        os._exit(0)
    os.read(0, 1)
"""


@pytest.fixture(params=HELD)
def held(request: pytest.FixtureRequest) -> Held:
    return HELD[request.param]


@contextlib.contextmanager
def forked_child() -> Iterator[int]:
    """A child, forked here, that lives until the context ends."""
    theirs, ours = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        os.read(theirs, 1)
        os._exit(0)
    try:
        yield child
    finally:
        os.close(ours)
        os.close(theirs)
        os.waitpid(child, 0)


def test_a_child_that_lives_on_does_not_keep_the_lock(held: Held, tmp_path: Path) -> None:
    with contextlib.ExitStack() as children:
        for _ in range(2):
            with held(tmp_path):
                children.enter_context(forked_child())
        with held(tmp_path):
            pass


@pytest.mark.parametrize("fork", ["fork", "raw"])
def test_a_child_shares_the_open_file_and_the_lock_is_released_all_the_same(
    fork: str, held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of another library's making runs none of Python's hooks after a fork: it keeps its copy of the file."""
    if fork == "raw":
        monkeypatch.setattr("arquant.base.file_lock._held", _Unclosed())
    context = multiprocessing.get_context("fork")
    go_on = context.Event()
    child = context.Process(target=go_on.wait)
    try:
        with held(tmp_path):
            child.start()
        with held(tmp_path):
            pass
        assert child.is_alive()
    finally:
        go_on.set()
        child.join()


class _Unclosed(set):  # type: ignore[type-arg]
    """Hides the locked files from what runs in a child."""

    def __iter__(self) -> Iterator[object]:
        return iter(())


def test_a_child_that_leaves_the_context_does_not_release_the_lock(held: Held, tmp_path: Path) -> None:
    with held(tmp_path):
        child = -1
        with contextlib.suppress(KeyError), held_again(held, tmp_path / "other"):
            child = os.fork()
            if not child:
                raise KeyError("unwinds what the parent had entered, as an exception in a child does")
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(MismatchError, match="in use"), held(tmp_path):
            pass


@contextlib.contextmanager
def held_again(held: Held, folder: Path) -> Iterator[None]:
    folder.mkdir()
    with held(folder):
        yield
        with pytest.raises(MismatchError, match="in use"), held(folder):
            pass


def test_two_runs_of_one_process_refuse_each_other(held: Held, tmp_path: Path) -> None:
    with held(tmp_path):
        for _ in range(2):
            with (
                pytest.raises(MismatchError, match="by another process, or by another run of this one"),
                held(tmp_path),
            ):
                pass
    with held(tmp_path):
        pass


@pytest.mark.parametrize("kind", HELD)
def test_another_process_is_refused_until_the_first_ends_or_is_killed(kind: str, tmp_path: Path) -> None:
    for ending in ("end", "kill"):
        holder = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, kind, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(MismatchError, match="in use"), HELD[kind](tmp_path):
                pass
            if ending == "kill":  # its child goes on: it waits for its input
                holder.send_signal(signal.SIGKILL)
            else:
                holder.stdin.write(b"xx")
                holder.stdin.flush()
            holder.wait()
            with HELD[kind](tmp_path):
                pass
        finally:
            holder.stdin.close()
            holder.stdout.close()


def test_the_next_command_of_a_process_gets_into_the_folder_that_a_child_had(tmp_path: Path) -> None:
    """Two runs in one Python process, between which a worker of the first lives on."""
    project = Project(tmp_path)
    (tmp_path / "twice.py").write_text(
        """
import os, time
import arquant, toy

children = []

def fork_once(status):
    if not children and os.path.exists("out/certificates.tsv"):
        children.append(os.fork())
        if not children[0]:
            time.sleep(600)

for _ in range(2):
    done = arquant.certify(
        toy.colours(), "npz:data.npz", sigma=0.25, n=64, n0=10, out="out", engine="torch", report=fork_once
    )
    print(len(done.certificates), len(children))
    os.remove("out/certificates.tsv")
os.kill(children[0], 9)
"""
    )
    done = subprocess.run(
        [sys.executable, "twice.py"],
        cwd=project.folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert (done.returncode, done.stdout) == (0, "6 1\n6 1\n"), done.stderr
