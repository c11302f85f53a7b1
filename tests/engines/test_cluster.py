"""Several nodes on one machine: nodes leave and join while votes are counted. `make test-cluster` runs it."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arquant.certification import pooled_votes
from arquant.commands.certify import certify
from tests.certification.test_pooled_votes import rows
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
HOW: dict[str, Any] = {"sigma": SIGMA, "n": 60_000, "n0": 20}
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": 10**8}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of a head without places and two nodes with one each; this process is connected to it."""
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    assert not ray.is_initialized()
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # the loopback interface only, which Ray otherwise takes for a mistake
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
    made = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0})
    made.nodes = [made.add_node(**NODE) for _ in range(2)]
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_a_node_that_leaves_and_one_that_joins_change_nothing(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_votes, "UNIT_SECONDS", 0.05)
    images = image_set(6, 3, "certify")
    notes: list[str] = []
    seen: list[str] = []
    changed = threading.Event()

    def report(status: Any) -> None:
        seen.append(status.details["workers"])
        if status.details["images"].startswith("1/") and not changed.is_set():
            changed.set()
            cluster.remove_node(cluster.nodes[0])
            cluster.add_node(**NODE)
            cluster.add_node(**NODE)

    with quick_engines():
        how = {**HOW, "threads": 1}
        found = certify(
            small_classifier(), images, out=tmp_path / "pool", cluster=cluster.address, report=report, note=notes.append,
            **how,
        )  # fmt: skip
        assert not ray.is_initialized(), "we connected, and we leave"
        certify(small_classifier(), images, out=tmp_path / "alone", **how)
    assert len(found.certificates) == 6
    assert changed.is_set()
    assert any("is replaced" in note for note in notes)
    assert "3" in seen, "the pool grows with the cluster"
    assert rows(tmp_path / "pool") == rows(tmp_path / "alone")


PROGRAM = """
import sys
from arquant.certification import run
from arquant.commands.main import main
from arquant.engines.choice import ENGINES
run.PARTIAL_SECONDS = 0.0
sys.exit(main(sys.argv[1:]))
"""


def test_a_cluster_that_is_gone_ends_the_command_with_one_message(cluster: Any, tmp_path: Path) -> None:
    command = [
        "certify", "resnet20:sigma=0.5", "sample", "--images", "first:20", "--n", "1e6", "--out", str(tmp_path),
        "--cluster", cluster.address, "--progress", "lines",
    ]  # fmt: skip
    driver = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "certificates.partial.json").exists():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    cluster.head_node.kill_gcs_server()
    began = time.monotonic()
    _, errors = driver.communicate(timeout=120)
    logging.getLogger(__name__).info("gone after %.0f s", time.monotonic() - began)
    assert driver.returncode == 2, errors
    lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert "is gone; what was done is kept" in lines[0]
    assert (tmp_path / "certificates.partial.json").exists()


def test_a_stopped_worker_is_given_up(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the system has stopped: it is there, and does not answer."""
    from arquant.engines import ray as pools

    monkeypatch.setattr(
        pools.RayPool.__init__, "__kwdefaults__", {**pools.RayPool.__init__.__kwdefaults__, "patience": 3.0}
    )
    monkeypatch.setattr(pooled_votes, "UNIT_SECONDS", 0.05)
    images, stopped = image_set(6, 3, "certify"), threading.Event()

    def report(status: Any) -> None:
        if status.details["images"].startswith("1/") and not stopped.is_set():
            stopped.set()
            os.kill(actor(), signal.SIGSTOP)

    with quick_engines():
        how = {**HOW, "threads": 1}
        certify(small_classifier(), images, out=tmp_path / "pool", cluster=cluster.address, report=report, **how)
        certify(small_classifier(), images, out=tmp_path / "alone", **how)
    assert stopped.is_set()
    assert rows(tmp_path / "pool") == rows(tmp_path / "alone")


def actor() -> int:
    """The process of a worker."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (entry / "cmdline").read_bytes().startswith(b"ray::_Actor"):
            return int(entry.name)
    raise AssertionError("there is no worker")
