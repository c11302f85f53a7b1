"""All scores of a run are compared with the same votes of the float model."""

import numpy as np
import pytest

from arquant.base.errors import MismatchError
from arquant.searching.journal_lines import End, ReferenceVotes, SearchJournal, read_line
from arquant.searching.reference import compare_only_with
from tests.support.small_search import cache_of

LABELS = np.zeros(3, np.int64)


def test_all_scores_of_a_journal_are_compared_with_the_same_votes(tmp_path):
    cache, other = (cache_of(np.full((3, 4), vote), LABELS) for vote in (0, 1))
    with SearchJournal(tmp_path / "journal.jsonl", {}, read_line) as journal:
        for made_again in (cache, cache, other, cache):  # nothing is scored yet
            compare_only_with(made_again, journal)
        assert len(journal.lines) == 3
        assert all(isinstance(line, ReferenceVotes) for line in journal.lines)
        journal.add(End(reason="something was scored"))
        compare_only_with(cache, journal)
        assert len(journal.lines) == 4
        with pytest.raises(MismatchError, match=r"journal.jsonl holds scores against other votes.*another --out"):
            compare_only_with(other, journal)
