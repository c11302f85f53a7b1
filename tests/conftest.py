"""For all tests: hypothesis without deadlines, since machines differ, and with ARQUANT_FUZZ examples; the command line."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.command_line import InProcess, Project
from tests.damage import EXAMPLES

settings.register_profile("arquant", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", settings.get_profile("arquant"), max_examples=EXAMPLES)
settings.load_profile("fuzz" if "ARQUANT_FUZZ" in os.environ else "arquant")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A folder with a small network and its images, one for all tests of a module."""
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def cli(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    """Runs a command in this process, in the project's folder."""
    monkeypatch.chdir(project.folder)
    return InProcess(project, capsys)
