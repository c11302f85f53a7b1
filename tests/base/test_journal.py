"""The journal: what was appended is there, whatever happened since."""

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import ArquantError, FileFormatError, InputError, MismatchError
from arquant.base.journal import Journal, read_journal
from tests.support.damage import FUZZ, mutate

IDENTITY = {"model": "abc", "settings": {"sigma": 0.5, "images": [1, 2]}}


def filled(path, count=3):
    with Journal(path, IDENTITY) as journal:
        for number in range(count):
            journal.append({"number": number, "value": 0.1 * number})
    return path


def test_records_come_back_in_order(tmp_path):
    path = filled(tmp_path / "journal.jsonl")
    with Journal(path, IDENTITY) as journal:
        assert [record["number"] for record in journal.records] == [0, 1, 2]
        journal.append({"number": 3})
        assert journal.records[-1] == {"number": 3}
    identity, records = read_journal(path)
    assert identity == IDENTITY
    assert len(records) == 4


def test_cut_anywhere_it_keeps_every_complete_line(tmp_path):
    raw = filled(tmp_path / "whole").read_bytes()
    path = tmp_path / "journal.jsonl"
    for size in range(len(raw) + 1):
        path.write_bytes(raw[:size])
        with Journal(path, IDENTITY) as journal:
            assert len(journal.records) == max(0, raw[:size].count(b"\n") - 1)
            journal.append({"number": "next"})
        _, records = read_journal(path)
        assert records[-1] == {"number": "next"}


def test_a_last_line_of_garbage_is_cut_and_one_before_is_refused(tmp_path):
    path = filled(tmp_path / "journal.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0\0\0\n")
    with Journal(path, IDENTITY) as journal:
        assert len(journal.records) == 3
    assert path.read_bytes() == whole
    path.write_bytes(whole.replace(b'"number": 1', b'"number" 1'))
    with pytest.raises(FileFormatError, match="line 3"):
        Journal(path, IDENTITY)


def test_an_option_that_the_search_did_not_have_yet_is_one_that_is_not_stated(tmp_path):
    path = filled(tmp_path / "journal.jsonl")
    with Journal(path, {**IDENTITY, "newer": None}) as journal:
        assert len(journal.records) == 3
    with pytest.raises(MismatchError, match="newer not stated there, 7 here"):
        Journal(path, {**IDENTITY, "newer": 7})


def test_another_search_is_refused_by_what_differs(tmp_path):
    path = filled(tmp_path / "journal.jsonl")
    before = path.read_bytes()
    with pytest.raises(MismatchError, match=r"settings\.sigma 0\.5 there, 0\.25 here"):
        Journal(path, {**IDENTITY, "settings": {"sigma": 0.25, "images": [1, 2]}})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"schema": "other"}\n', b"[1]\n"])
def test_a_foreign_file_is_left_alone(tmp_path, content):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        Journal(path, IDENTITY)
    assert path.read_bytes() == content


def test_two_processes_cannot_write_one_journal(tmp_path):
    with Journal(tmp_path / "journal.jsonl", IDENTITY), pytest.raises(MismatchError, match="in use"):
        Journal(tmp_path / "journal.jsonl", IDENTITY)


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    path = filled(tmp_path / "journal.jsonl")
    before = path.read_bytes()
    with Journal(path, IDENTITY) as journal:

        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space"):
                journal.append({"number": 3})
        assert path.read_bytes() == before
        assert len(journal.records) == 3
        journal.append({"number": 3})
    _, records = read_journal(path)
    assert records[-1] == {"number": 3}


def test_numbers_that_json_has_not_are_refused(tmp_path):
    with Journal(tmp_path / "journal.jsonl", IDENTITY) as journal, pytest.raises(ValueError, match="not JSON"):
        journal.append({"value": float("nan")})
    assert read_journal(tmp_path / "journal.jsonl")[1] == []


def test_an_unwritable_place_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "journal.jsonl", IDENTITY)


@FUZZ
@given(data=st.data())
def test_fuzz_a_damaged_journal_is_read_or_refused(tmp_path, data):
    lines = [{"schema": "arquant.journal", "version": 1, "identity": IDENTITY}, {"number": 0}, {"number": 1}]
    raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path = tmp_path / "journal.jsonl"
    path.write_bytes(mutate(raw, data))
    try:
        with Journal(path, IDENTITY) as journal:
            assert all(isinstance(record, dict) for record in journal.records)
    except ArquantError:
        pass
