"""The lines of a journal: what is written reads back, what no search writes is refused, published journals still read."""

import json
from pathlib import Path

import pytest

from arquant.base.errors import FileFormatError
from arquant.base.journal import read_journal
from arquant.quantization.policy import Policy
from arquant.searching.journal_lines import (
    KINDS,
    Candidate,
    Choice,
    End,
    Estimate,
    Gap,
    LostRace,
    Model,
    SearchJournal,
    SecondLook,
    Winner,
    read_line,
    read_search_journal,
)
from tests.support.report_runs import candidate

ROOT = Path(__file__).parents[2]
POLICY = Policy({"a": "w8a8", "b": "w3a4"})
SCORE = Estimate(estimate="acr-cv", value=0.5, standard_error=0.1, low=0.3, high=0.7, images=20, n=48)
LINES = [
    Candidate(number=0, budget="bops<=3bit", within=("bops<=3bit",), policy=POLICY, usage=0.9, cost={"bops": 2.0},
              score=SCORE, acr=SCORE, acr_minus_float=Gap(value=-0.1, standard_error=0.01), seconds={"votes": 1.5}),
    Candidate(number=1, policy=POLICY, steps=240, failure="the loss became nan"),
    Candidate(number=2, policy=POLICY, score=SCORE, abandoned=LostRace(votes=64, difference=-0.1, p_value=0.001)),
    SecondLook(budget="bops<=3bit", number=0, seed=1, steps=None, n=500, score=None),
    Choice(shortlist=3, shortlist_seeds=2, shortlist_steps=None, shortlist_n=100),
    Winner(budget="bops<=3bit", number=0, shortlist=3, shortlist_seeds=2),
    Model(folder=".", fingerprint="f" * 64, policy=POLICY, seconds={"finetune": 3.0}),
    End(reason="3 trials"),
]  # fmt: skip


def test_what_is_written_reads_back(tmp_path):
    with SearchJournal(tmp_path / "journal.jsonl", {}, read_line) as journal:
        for line in LINES:
            journal.add(line)
    assert read_search_journal(tmp_path / "journal.jsonl") == ({}, LINES)
    with SearchJournal(tmp_path / "journal.jsonl", {}, read_line) as journal:
        assert journal.lines == LINES


def test_steps_are_written_only_where_they_are_stated():
    assert ["steps" in line.plain() for line in LINES[:3]] == [False, True, False]
    assert LINES[1].plain()["score"] is None, "what failed says so"


@pytest.mark.parametrize("name", ["search/arq", "search/arq-paper", "search/random", "demo", "resnet20-4bit"])
def test_published_journals_read(name):
    path = ROOT / "results" / name / "journal.jsonl"
    _, lines = read_search_journal(path)
    for line, record in zip(lines, read_journal(path)[1], strict=True):
        assert record.items() <= json.loads(json.dumps(line.plain())).items()


def damaged(**changes):
    return {**candidate(3, 0.5), **changes}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (damaged(number="three"), "number"),
        (damaged(number=True), "number"),
        (damaged(policy={"a": "w99a1"}), "policy"),
        (damaged(policy=None), "policy"),
        (damaged(score={"estimate": "acr"}), "score has no value"),
        (damaged(score={"value": "high"}), "score, value"),
        (damaged(score={"value": 1e999}), "score, value"),
        (damaged(cost={"bops": "many"}), "cost, bops"),
        (damaged(within="bops"), "within"),
        (damaged(within=[1]), "within"),
        (damaged(seconds=[]), "seconds"),
        (damaged(abandoned={"votes": 0.5}), "abandoned, votes"),
        (damaged(steps=1.5), "steps"),
        ({"kind": "end"}, "no reason"),
        ({"kind": "model", "folder": ".", "fingerprint": 7}, "fingerprint"),
        ({"kind": "nonsense"}, "unknown kind 'nonsense'"),
        ({"kind": ["end"]}, "unknown kind"),
    ],
)
def test_what_no_search_writes_is_refused_with_its_line_and_field(tmp_path, line, field):
    path = tmp_path / "journal.jsonl"
    header = {"schema": "arquant.journal", "version": 1, "identity": {}}
    path.write_text("".join(json.dumps(each) + "\n" for each in (header, {"kind": "setup", "compiled": True}, line)))
    with pytest.raises(FileFormatError, match=f"journal.jsonl, line 3.*{field}"):
        read_search_journal(path)
    with pytest.raises(FileFormatError, match="line 3"):
        SearchJournal(path, {}, read_line)
    SearchJournal(tmp_path / "other.jsonl", {}, read_line).close()


def test_every_kind_has_its_own_name():
    assert set(KINDS) == {
        "setup", "plan", "reference", "candidate", "shortlist", "choice", "winner", "model", "set aside", "certified", "end",
    }  # fmt: skip


def test_keys_of_a_later_version_are_ignored():
    assert read_line({**damaged(), "colour": "blue"}, "it").number == 3
