import json
from pathlib import Path

import pytest

from arquant.base.journal import Journal
from arquant.base.run_folder import JOURNAL, open_run
from arquant.certification.search_record import record_certified
from arquant.searching.journal_lines import Certified, read_search_journal

IDENTITY = {"images": {"certify": "these"}}


@pytest.fixture
def search(tmp_path: Path) -> Path:
    open_run(tmp_path, {"command": "search"})
    with Journal(tmp_path / JOURNAL, IDENTITY) as journal:
        journal.append({"kind": "certified", "folder": ".", "fingerprint": "known"})
    return tmp_path


def test_a_search_learns_of_a_model_that_it_did_not_make(search: Path) -> None:
    record_certified(search, "another", "these")
    record_certified(search, "another", "these")
    _, lines = read_search_journal(search / JOURNAL)
    assert lines[1:] == [Certified(folder=".", fingerprint="another")]


@pytest.mark.parametrize(("fingerprint", "images"), [("known", "these"), ("another", "those")])
def test_a_known_model_or_other_images_leave_the_journal_alone(search: Path, fingerprint: str, images: str) -> None:
    before = (search / JOURNAL).read_bytes()
    record_certified(search, fingerprint, images)
    assert (search / JOURNAL).read_bytes() == before
    assert json.loads(before.splitlines()[0])["identity"] == IDENTITY
