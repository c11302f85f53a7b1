"""Certificates by workers are those of one process, whatever their number and the order of their answers."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arquant.base import provenance
from arquant.base.errors import MismatchError
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.certificate import Settings
from arquant.certificates.files import TSV_NAME
from arquant.certification import identity, pooled_votes
from arquant.certification.certify_work import CertifyWork
from arquant.certification.pooled_votes import PooledVotes, Voter
from arquant.certification.smoothing import Smoothed
from arquant.commands.certify import certify
from arquant.engines.choice import make_engine
from arquant.engines.exporting import export_model
from arquant.engines.files import load_file_classifier
from arquant.engines.probes import make_probes
from arquant.noise.source import Noise
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier

IMAGES = image_set(6, 3, "certify")
HOW: dict[str, Any] = {"sigma": SIGMA, "n": 300, "n0": 20}


@pytest.fixture(scope="module", autouse=True)
def _quick_engines() -> Iterator[None]:
    with quick_engines():
        yield


def rows(folder: Path) -> list[list[str]]:
    """The table without its times."""
    lines = [line.split("\t") for line in (folder / TSV_NAME).read_text().splitlines()]
    time_column = lines[0].index("time")
    return [[*line[:time_column], *line[time_column + 1 :]] for line in lines]


class Shuffled:
    """A pool in this process, whose units come back in any order."""

    def __init__(self, worker: Voter, workers: int, seed: int) -> None:
        self.worker, self.workers, self.wanted = worker, workers, workers
        self._rng = random.Random(seed)

    def run(self, take: Callable[[], Any], receive: Callable[[Any, Any], None]) -> None:
        under_way: list[Any] = []
        while True:
            while len(under_way) < 2 * self.workers and (unit := take()) is not None:
                under_way.append(pickle.loads(pickle.dumps(unit)))
            if not under_way:
                return
            unit = under_way.pop(self._rng.randrange(len(under_way)))
            receive(unit, self.worker.work(unit))

    def end(self) -> None:
        self.worker.end()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("adaptive", [None, Adaptive()])
@pytest.mark.parametrize("mode", ["select", "label"])
def test_the_order_of_the_answers_changes_nothing(
    mode: Any, adaptive: Adaptive | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(sigma=SIGMA, noise="grid", n=700, n0=20, mode=mode, adaptive=adaptive)
    classifier = small_classifier()
    probes = make_probes(IMAGES, Noise("grid", SIGMA), seed=0)
    engine = make_engine(classifier, input_kind="levels", probes=probes)
    smoothed = Smoothed(classifier, SIGMA, engine=engine)
    alone = [vars(each) for each in smoothed.certify(IMAGES, settings)]
    worker = Voter(lambda: (engine, classifier), probes)
    for seed, unit in enumerate((64, 100, 333)):
        monkeypatch.setattr(pooled_votes, "open_pool", lambda *_, **__: Shuffled(worker, 3, seed))  # noqa: B023
        smoothed.votes = PooledVotes(pooled_votes.Cluster("local"), classifier, engine, probes, unit=unit)
        counted: list[int] = []

        def look(votes: int, work: CertifyWork) -> None:
            counted.append(votes)  # noqa: B023
            assert all(state.fits(settings, classifier.num_classes) for state in work.in_progress().values())

        found = [vars(each) for each in smoothed.certify(IMAGES, settings, on_votes=look)]
        assert [{**each, "seconds": 0} for each in found] == [{**each, "seconds": 0} for each in alone]
        assert sum(counted) == sum(each["n"] + each["n0"] for each in alone), "no vote is counted twice"
    smoothed.close()


@pytest.mark.usefixtures("local_ray")
def test_certificates_of_real_workers_are_those_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arquant.engines.ray import RayPool

    hand_out = RayPool._hand_out
    all_ready = lambda pool, take: pool.workers == pool.wanted and hand_out(pool, take)  # noqa: E731
    monkeypatch.setattr(RayPool, "_hand_out", all_ready)
    monkeypatch.setattr(pooled_votes, "UNIT_SECONDS", 0.0)  # units of one batch: all workers get some
    certify(small_classifier(), IMAGES, out=tmp_path / "alone", threads=1, **HOW)
    for workers in (1, 2, 4):
        statuses: list[Any] = []
        out = tmp_path / str(workers)
        certify(
            small_classifier(), IMAGES, out=out, cluster="auto", workers=workers, report=statuses.append, **HOW
        )  # fmt: skip
        assert rows(out) == rows(tmp_path / "alone")
        assert statuses[-1].details["workers"] == str(workers)
        assert statuses[-1].details["images"] == f"{len(IMAGES)}/{len(IMAGES)}"
    monkeypatch.undo()
    again = certify(small_classifier(), IMAGES, out=out, cluster="nowhere:1", **HOW)
    assert len(again.certificates) == len(IMAGES), "where nothing is left, no cluster is needed"


@pytest.mark.usefixtures("local_ray")
def test_a_worker_with_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {**provenance.installed(), "torch": "1.0"}
    monkeypatch.setattr(identity, "installed", lambda: versions)
    with pytest.raises(MismatchError, match=r"versions\.torch '2\.[^']*' there, '1\.0' here"):
        certify(small_classifier(), IMAGES, out=tmp_path, cluster="auto", workers=1, **HOW)
    monkeypatch.undo()
    assert len(certify(small_classifier(), IMAGES, out=tmp_path, **HOW).certificates) == len(IMAGES)


def test_a_file_goes_to_the_workers_with_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    export_model(small_classifier(), folder / "small.xml", format="openvino")
    classifier = load_file_classifier(folder / "small.xml")
    probes = make_probes(IMAGES, Noise("grid", SIGMA), seed=0)
    how = {"kind": "openvino", "batch": 16, "input_kind": "levels", "threads": 1, "device": "cpu", "probes": probes}
    from tests.support.small_search import SHIPPED_ENGINES

    make = pooled_votes._MakeVotes(classifier, how, SHIPPED_ENGINES["openvino"], pooled_votes._files_of(classifier))
    sent, fingerprint = pickle.dumps(make), classifier.fingerprint()
    for path in folder.iterdir():
        path.unlink()
    engine, moved = pickle.loads(sent)()
    assert engine.fingerprint == fingerprint
    assert np.isfinite(engine.logits_of(engine.buffer())).all()
    assert moved.name == classifier.name
    engine.close()


CERTIFY = """
import sys
from pathlib import Path
from arquant.certification import pooled_votes, run
from arquant.commands.certify import certify
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier

if __name__ == "__main__":
    pooled_votes.UNIT_SECONDS, run.PARTIAL_SECONDS = 0.0, 0.0
    with quick_engines():
        certify(small_classifier(), image_set(6, 3, "certify"), out=Path(sys.argv[1]), sigma=SIGMA, n=30_000, n0=20,
                cluster="local", workers=1)
"""


def test_a_killed_driver_leaves_no_workers_and_goes_on_without_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    driver = subprocess.Popen([sys.executable, "-c", CERTIFY, str(tmp_path)], start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "certificates.partial.json").exists():
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    how = {**HOW, "n": 30_000, "threads": 1}
    notes: list[str] = []
    certify(small_classifier(), IMAGES, out=tmp_path, note=notes.append, **how)
    assert not any("start over" in note for note in notes), "the votes that the workers cast count"
    certify(small_classifier(), IMAGES, out=tmp_path / "alone", **how)
    assert rows(tmp_path) == rows(tmp_path / "alone")
    deadline = time.monotonic() + 30
    while left := _workers(driver.pid):
        assert time.monotonic() < deadline, f"workers are left: {left}"
        time.sleep(0.2)


def _workers(session: int) -> list[int]:
    """The workers of a session; Ray's own agents end themselves later, after about a minute."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            own = entry.name.isdecimal() and os.getsid(int(entry.name)) == session
            if own and (entry / "cmdline").read_bytes().startswith(b"ray::_Actor"):
                found.append(int(entry.name))
    return found


def test_ray_is_not_imported_without_a_cluster() -> None:
    code = "import sys, arquant.certification.run, arquant.searching.run; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
