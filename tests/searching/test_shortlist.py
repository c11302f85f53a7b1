"""The second look: who gets one, that it is made once per seed, and that it is not the first look's luck that wins."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.base.progress import silent
from arquant.searching.journal_lines import SearchJournal, SecondLook, read_line
from arquant.searching.kept_networks import KeptNetworks
from arquant.searching.options import search_options
from arquant.searching.score import Score
from arquant.searching.shortlist import shortlisted, winner_of
from arquant.searching.standings import Track
from arquant.searching.strategies.evolve import Evolve
from arquant.searching.strategies.random_search import RandomSearch
from arquant.searching.study import Limits, Study
from tests.searching.test_study import Evaluation
from tests.support.small_search import small_space

OPTIONS = search_options(0.25, seed=7, shortlist=3, shortlist_seeds=2)


class SecondLooks:
    """An evaluator whose second looks are as told: by candidate number, for each seed."""

    def __init__(self, study, values):
        self.asked: list[tuple[int, int]] = []
        self._numbers = {candidate.policy: candidate.number for candidate in study.candidates}
        self._values = values

    def looks_ahead(self, looks, report):
        self.ahead = {(recipe.seed, policy) for policy, recipe, _ in looks}

    def look_again(self, policy, recipe, n, report):
        assert (recipe.seed, policy) in self.ahead, (
            "all looks are known before the first: workers take them side by side"
        )
        assert n == OPTIONS.second_look_votes == 500
        self.steps = recipe.steps
        number = self._numbers[policy]
        self.asked.append((recipe.seed, number))
        value = self._values(number, recipe.seed)
        return None if value is None else Score.of("acr", np.full(3, value), n)


@contextmanager
def studied(folder, strategy=RandomSearch, trials=9, fails=lambda policy: False, budgets=("bops<=3bit",)):
    spaces, kept = [small_space(budget) for budget in budgets], KeptNetworks(folder / "kept")
    with SearchJournal(folder / "journal.jsonl", {"study": "test"}, read_line) as journal:
        tracks, evaluate = [Track(space, strategy(space, 0)) for space in spaces], Evaluation(fails=fails)
        study = Study(tracks, evaluate, journal, kept, limits=Limits(trials=trials), shortlist=2)
        study.run()
        yield study


@pytest.fixture
def study(tmp_path):
    with studied(tmp_path) as found:
        yield found


def test_one_alone_is_the_best_score(study):
    (track,) = study.tracks
    best = study.standings.ranking(track)[0]
    assert shortlisted(track, study.standings, 1) == [best]
    assert winner_of(track, study, None, search_options(0.25, shortlist=1), silent) == (best, [])


def test_the_list_is_of_the_best_by_score_and_by_what_all_candidates_let_expect(study, monkeypatch):
    (track,) = study.tracks
    space, ranked = track.space, study.standings.ranking(track)
    scores = [candidate.value for candidate in ranked]
    first, last = ranked[0].policy, ranked[-1].policy

    class Model:
        def __init__(self, given, results):
            assert given is space
            assert len(results) == study.standings.examined

        def predict(self, bits):
            return (scores[0] - scores[-1]) * 1.01 * (space.policy(bits) == last)

    monkeypatch.setattr("arquant.searching.shortlist.AdditiveModel", Model)
    chosen = [record.policy for record in shortlisted(track, study.standings, 2)]
    assert (chosen[0], chosen[-1]) == (first, last)
    assert all(space.is_uniform(policy) for policy in chosen[1:-1])


def test_the_best_uniform_policy_is_always_on_the_list(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "arquant.searching.shortlist.AdditiveModel.predict", lambda self, bits: -float(np.ptp(bits) == 0)
    )
    with studied(tmp_path, Evolve, 20, fails=lambda policy: policy == small_space().uniform(3)) as study:
        (track,) = study.tracks
        uniform = [record for record in study.standings.ranking(track) if track.space.is_uniform(record.policy)]
        assert uniform[0] != study.standings.ranking(track)[0]
        assert uniform[0] in shortlisted(track, study.standings, 2)


def test_the_best_mean_of_score_and_looks_wins_and_its_network_is_kept(study):
    (track,) = study.tracks
    first, *_, last = shortlisted(track, study.standings, 3)
    behind = first.value - last.value
    for gain, expected in ((0.4, first), (0.6, last)):  # of two looks: 0.5 each makes up for the score
        study.journal.lines[:] = [line for line in study.journal.lines if not isinstance(line, SecondLook)]
        values = {first.number: 0.9, last.number: 0.9 + gain * behind}
        looks = SecondLooks(study, lambda number, seed, values=values: values.get(number, 0.0) - 0.05 * (seed == 9))
        winner, lines = winner_of(track, study, looks, OPTIONS, silent)
        assert winner == expected
        assert {seed for seed, _ in looks.asked} == {8, 9}, "not the seed 7 that the candidates were chosen with"
        assert [(line.seed, line.number) for line in lines] == looks.asked
        assert study.kept.load(winner.number, winner.policy) is not None


def test_longer_looks_alone_decide(study):
    (track,) = study.tracks
    first, *_, last = shortlisted(track, study.standings, 3)
    assert first.value > last.value
    values = {first.number: 0.9, last.number: 0.9 + 1e-6}
    looks = SecondLooks(study, lambda number, seed: values.get(number, 0.0))
    assert winner_of(track, study, looks, replace(OPTIONS, shortlist_steps=600), silent)[0] == last
    assert looks.steps == 600


def test_what_was_looked_at_is_not_looked_at_again(tmp_path):
    with studied(tmp_path) as study:
        looks = SecondLooks(study, lambda number, seed: number / 100)
        winner, lines = winner_of(study.tracks[0], study, looks, OPTIONS, silent)
        assert len(looks.asked) == len(lines) >= 6
    with studied(tmp_path) as study:
        assert study.kept.load(winner.number, winner.policy) is not None, "reopening keeps the winner's network"
        assert winner_of(study.tracks[0], study, None, OPTIONS, silent) == (winner, lines)


def test_budgets_share_their_second_looks(tmp_path):
    with studied(tmp_path, budgets=("bops<=3bit", "bops<=3.01bit")) as study:
        looks = SecondLooks(study, lambda number, seed: number / 100)
        found = [winner_of(track, study, looks, OPTIONS, silent) for track in study.tracks]
        numbers = [{line.number for line in lines} for _, lines in found]
        assert numbers[0] & numbers[1], "no candidate is on both lists"
        assert len(looks.asked) == len(set(looks.asked)) == 2 * len(numbers[0] | numbers[1])


def test_a_candidate_that_diverges_the_second_time_does_not_win(study):
    (track,) = study.tracks
    best = study.standings.ranking(track)[0].number
    looks = SecondLooks(study, lambda number, seed: None if (number, seed) == (best, 9) else 0.1)
    assert winner_of(track, study, looks, OPTIONS, silent)[0].number != best


def test_no_scored_candidate_is_an_error(tmp_path):
    with (
        studied(tmp_path, trials=2, fails=lambda policy: True) as study,
        pytest.raises(
            InputError, match="within bops<=3bit could be scored: the last of 2 failed because the loss became nan"
        ),
    ):
        winner_of(study.tracks[0], study, None, OPTIONS, silent)
