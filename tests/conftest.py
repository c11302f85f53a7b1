"""For all tests: the same draws each time, so that a test that passes once passes again; the command line.

Hypothesis has no deadlines, since machines differ. With ARQUANT_FUZZ it draws that many examples, new ones each time.
"""

import logging
import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.support.command_line import InProcess, Project
from tests.support.damage import EXAMPLES, FUZZING

settings.register_profile(
    "arquant", deadline=None, derandomize=not FUZZING, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", settings.get_profile("arquant"), max_examples=EXAMPLES)
settings.load_profile("fuzz" if FUZZING else "arquant")


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    """Networks that a test makes have the same weights each time, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _heard_loggers() -> None:
    """Undo what libraries that other tests import do to all loggers: they silence them."""
    logging.root.setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "arquant" and isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A folder with a small network and its images, one for all tests of a module."""
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def cli(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    """Runs a command in this process, in the project's folder."""
    monkeypatch.chdir(project.folder)
    return InProcess(project, capsys)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A Ray of this machine alone, with four places for workers, for all tests of a session."""
    ray = pytest.importorskip("ray")
    from arquant.engines.ray_start import start_here

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        warnings.simplefilter("ignore")
        start_here(4, 10**8)
        yield
        ray.shutdown()
