"""The loop: journaled, resumed after a kill at any moment to the same result, each policy evaluated once."""

import hashlib
import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from arquant.base.errors import InputError, MismatchError
from arquant.base.journal import Journal
from arquant.quantization.policy import Policy
from arquant.searching.candidate import Outcome
from arquant.searching.history import end_reason
from arquant.searching.journal_lines import SearchJournal, read_line, read_search_journal
from arquant.searching.kept_networks import Kept, KeptNetworks
from arquant.searching.racing import Race
from arquant.searching.score import Score
from arquant.searching.standings import Track
from arquant.searching.strategies.evolve import Evolve
from arquant.searching.strategies.random_search import RandomSearch
from arquant.searching.strategies.uniform import Uniform
from arquant.searching.strategy import Proposal, Strategy
from arquant.searching.study import MOST_FAILURES, MOST_REPEATS, Limits, Study, costs
from tests.support.small_search import small_space

IMAGES = 12


class Killed(BaseException):
    """Stands for the signal that ends a process."""


class Evaluation:
    """Scores that are a function of the policy; some policies fail, some are abandoned."""

    def __init__(self, *, fails=lambda policy: False, races=False):
        self.asked: list[Policy] = []
        self.rivals: list[float] = []
        self.fails, self.races = fails, races

    def __call__(self, proposal, rival):
        policy = proposal.policy
        self.asked.append(policy)
        if self.fails(policy):
            return Outcome(None, failure="the loss became nan", seconds={"finetune": 1.0})
        digest = hashlib.sha256(repr(policy).encode()).digest()
        values = np.frombuffer(digest[:IMAGES], np.uint8) / 255
        score = Score.of("acr", values, 10)
        if rival is not None:
            self.rivals.append(float(rival.votes.mean()))
        lost = Race(5, -0.1, 0.0) if self.races and rival is not None and values.mean() < 0.4 else None
        return Outcome(
            score,
            score,
            (0.1, 0.01),
            race=lost,
            seconds={"finetune": 2.0, "votes": 1.0},
            disagreement=0.5,
            votes=None if lost else np.frombuffer(digest, np.uint8)[:, None].copy(),
            network=None if lost else {"weight": torch.from_numpy(values.copy())},
        )


def studied(
    folder, evaluate, *, trials=8, budgets=("bops<=3bit",), strategy=RandomSearch, limits=None, keep=2, racing=True,
    **options,
):  # fmt: skip
    """Run a study to its end, or to what kills it."""
    with SearchJournal(folder / "journal.jsonl", {"study": "test"}, read_line) as journal:
        tracks = [Track(small_space(budget), strategy(small_space(budget), 0)) for budget in budgets]
        study = Study(
            tracks,
            evaluate,
            journal,
            KeptNetworks(folder / "kept"),
            limits=limits or Limits(trials=trials),
            shortlist=keep,
            racing=racing,
            **options,
        )
        study.run()
        return study


def journal_of(folder):
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_every_candidate_is_journaled_with_cost_score_and_seconds(tmp_path):
    study = studied(tmp_path, Evaluation())
    header, *lines, end = journal_of(tmp_path)
    assert header["schema"] == "arquant.journal"
    assert end == {"kind": "end", "reason": "8 trials"}
    assert [line["number"] for line in lines] == list(range(8))
    for line in lines:
        assert set(line["cost"]) == {"bops", "bops@paper", "weight_bytes"}
        assert small_space().contains(Policy(line["policy"]))
        assert line["score"]["standard_error"] > 0
        assert line["seconds"] == {"finetune": 2.0, "votes": 1.0}
    assert study.standings.examined == 8
    assert study.standings.seconds == 24


def test_the_best_networks_are_kept_and_the_others_deleted(tmp_path):
    evaluate = Evaluation()
    study = studied(tmp_path, evaluate, keep=2)
    best = study.standings.ranking(study.tracks[0])
    values = [candidate.value for candidate in best]
    assert values == sorted(values, reverse=True)
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == sorted(f"{candidate.number:06d}.safetensors" for candidate in best[:2])
    kept = study.network(best[0])
    assert kept.network["weight"].mean() == pytest.approx(values[0])
    count = len(evaluate.asked)
    again = study.network(best[5])  # its file is gone: it is made again
    assert again.network["weight"].mean() == pytest.approx(values[5])
    assert len(evaluate.asked) == count + 1


def kill_points(monkeypatch, at):
    """Make call number `at` of any step that changes the disk kill the process, before or after its work."""
    count = 0

    def step():
        nonlocal count
        count += 1
        if count == at:
            raise Killed

    def wrap(owner, name):
        original = getattr(owner, name)

        def wrapped(*args, **kwargs):
            step()
            result = original(*args, **kwargs)
            step()
            return result

        monkeypatch.setattr(owner, name, wrapped)

    wrap(Journal, "append")
    wrap(KeptNetworks, "save")
    wrap(KeptNetworks, "keep_only")
    wrap(Evaluation, "__call__")


def kept_in(folder):
    """The weights of the networks that are kept, by file name."""
    return {path.name: load_file(path)["network.weight"].tolist() for path in (folder / "kept").iterdir()}


@pytest.mark.parametrize("strategy", [RandomSearch, Evolve])
def test_killed_at_any_moment_it_ends_with_the_same_journal(tmp_path, monkeypatch, strategy):
    options = {"strategy": strategy, "trials": 6, "budgets": ("bops<=3bit", "bops<=4bit")}
    studied(tmp_path, Evaluation(races=True), **options)
    wanted = journal_of(tmp_path)
    networks = kept_in(tmp_path)
    at = 0
    killed = True
    while killed:
        at += 1
        folder = tmp_path / f"{strategy.name}-{at}"
        folder.mkdir()
        with monkeypatch.context() as patch:
            kill_points(patch, at)
            try:
                studied(folder, Evaluation(races=True), **options)
                killed = False
            except Killed:
                pass
        evaluate = Evaluation(races=True)
        studied(folder, evaluate, **options)
        assert journal_of(folder) == wanted
        assert kept_in(folder) == networks
    assert at > 40
    assert evaluate.asked == []


def test_a_torn_last_line_is_evaluated_again(tmp_path):
    studied(tmp_path, Evaluation(), trials=4)
    wanted = journal_of(tmp_path)
    raw = (tmp_path / "journal.jsonl").read_bytes()
    lines = raw.splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    evaluate = Evaluation()
    studied(tmp_path, evaluate, trials=4)
    assert journal_of(tmp_path) == wanted
    assert {Policy(line["policy"]) for line in wanted[3:5]} <= set(evaluate.asked)


class Stubborn(Strategy):
    """Proposes the same two policies for ever."""

    def _propose(self):
        return self.space.uniform(2 + self.told % 2)


Stubborn.name = "stubborn"


def test_a_repeated_policy_is_not_evaluated_again_and_counts_as_a_trial(tmp_path):
    evaluate = Evaluation()
    study = studied(tmp_path, evaluate, strategy=Stubborn, trials=7)
    assert len(evaluate.asked) == 2
    assert study.standings.examined == 2
    lines = journal_of(tmp_path)[1:-1]
    assert [line["repeat_of"] for line in lines] == [None, None, 0, 1, 0, 1, 0]
    assert lines[2]["score"] == lines[0]["score"]
    assert len(study.standings.ranking(study.tracks[0])) == 2


@pytest.mark.parametrize("limits", [Limits(hours=1), Limits(hours=1, trials=2 * MOST_REPEATS)])
def test_a_strategy_that_only_repeats_itself_ends_a_search_by_the_clock(tmp_path, limits):
    study = studied(tmp_path, Evaluation(), strategy=Stubborn, limits=limits)
    assert len(study.candidates) == MOST_REPEATS + 2
    assert "repeated policies" in journal_of(tmp_path)[-1]["reason"]


def test_hours_count_the_time_of_all_runs(tmp_path):
    limits = Limits(hours=10 / 3600)
    study = studied(tmp_path, Evaluation(), limits=limits)
    assert len(study.candidates) == 4  # 3 seconds each
    again = Evaluation()
    studied(tmp_path, again, limits=limits)
    assert again.asked == []


def test_hours_do_not_end_the_search_before_every_budget_has_a_candidate(tmp_path):
    wide_first = ("bops<=4bit", "bops<=3bit", "bops<=2.5bit")
    study = studied(tmp_path, Evaluation(), budgets=wide_first, limits=Limits(hours=1 / 3600))
    assert all(study.standings.ranking(track) for track in study.tracks)
    assert len(study.candidates) == 3
    assert journal_of(tmp_path)[-1]["reason"] == "0.000277778 hours"


def test_a_budget_in_which_all_fails_does_not_keep_the_search_from_its_end(tmp_path):
    tight = small_space("bops<=2.5bit")
    evaluate = Evaluation(fails=tight.contains)
    study = studied(tmp_path, evaluate, budgets=("bops<=4bit", "bops<=2.5bit"), limits=Limits(hours=1 / 3600))
    assert sum(candidate.failure is not None for candidate in study.candidates) == MOST_FAILURES


def test_limits_may_grow_and_a_finished_search_goes_on(tmp_path):
    inner = Evaluation()

    def interrupted(proposal, rival):
        if len(inner.asked) == 3:
            raise Killed
        return inner(proposal, rival)

    with pytest.raises(Killed):
        studied(tmp_path, interrupted, trials=4)
    assert len(studied(tmp_path, Evaluation(), trials=5).candidates) == 5
    assert len(studied(tmp_path, Evaluation(), trials=4).candidates) == 5
    longer = Evaluation()
    assert len(studied(tmp_path, longer, trials=9).candidates) == 9
    assert len(longer.asked) == 4
    lines = journal_of(tmp_path)[1:]
    assert [line.get("reason") for line in lines if line["kind"] == "end"] == ["5 trials", "9 trials"]
    typed = read_search_journal(tmp_path / "journal.jsonl")[1]
    assert end_reason(typed) == "9 trials"
    assert end_reason(typed[:-1]) is None
    (tmp_path / "at once").mkdir()
    at_once = studied(tmp_path / "at once", Evaluation(), trials=9)
    assert [each.policy.widths() for each in at_once.candidates] == [
        line["policy"] for line in lines if line["kind"] == "candidate"
    ]


def test_a_target_ends_the_search(tmp_path):
    study = studied(tmp_path, Evaluation(), limits=Limits(trials=50, target_acr=0.5))
    best = study.standings.ranking(study.tracks[0])[0]
    assert best.acr.value >= 0.5
    assert best.number == len(study.candidates) - 1
    assert journal_of(tmp_path)[-1]["reason"] == "estimated ACR 0.5"


def test_a_finished_strategy_ends_the_search(tmp_path):
    study = studied(tmp_path, Evaluation(), strategy=Uniform, trials=50)
    assert len(study.candidates) == len(small_space().uniform_pairs)


def test_budgets_take_turns_and_share_what_they_evaluate(tmp_path):
    evaluate = Evaluation()
    study = studied(tmp_path, evaluate, budgets=("bops<=2.5bit", "bops<=4bit"), strategy=Evolve, trials=10)
    tight, wide = study.tracks
    assert [candidate.budget for candidate in study.candidates[:4]] == [tight.name, wide.name] * 2
    assert len(set(evaluate.asked)) == len(evaluate.asked)
    # whatever fits the tight budget is in both rankings
    numbers = [{candidate.number for candidate in study.standings.ranking(track)} for track in (tight, wide)]
    assert numbers[0] < numbers[1]
    assert wide.strategy.told > tight.strategy.told


def test_a_candidate_has_the_costs_of_every_budget(tmp_path):
    study = studied(tmp_path, Evaluation(), budgets=("bops<=4bit", "bytes<=4bit"), trials=2)
    policy = study.candidates[0].policy
    assert study.candidates[0].cost.keys() == costs(policy, [track.space for track in study.tracks]).keys()
    for track in study.tracks:
        assert track.space.budget.cost(policy).items() <= study.candidates[0].cost.items()


def test_a_failed_candidate_is_told_as_one_and_never_ranked(tmp_path):
    bad = small_space().uniform(3)
    study = studied(tmp_path, Evaluation(fails=lambda policy: policy == bad), strategy=Evolve)
    failed = [record for record in study.candidates if record.failure]
    assert [record.policy for record in failed] == [bad]
    assert failed[0].score is None
    assert study.tracks[0].strategy.failed == 1
    assert bad not in [record.policy for record in study.standings.ranking(study.tracks[0])]


def test_a_search_in_which_everything_fails_says_why(tmp_path):
    evaluate = Evaluation(fails=lambda policy: True)
    with pytest.raises(InputError, match=f"first {MOST_FAILURES} candidates failed.*nan"):
        studied(tmp_path, evaluate, trials=50)
    assert len(evaluate.asked) == MOST_FAILURES


def test_candidates_race_against_the_best_of_their_budget(tmp_path):
    evaluate = Evaluation(races=True)
    study = studied(tmp_path, evaluate, trials=12)
    abandoned = [record for record in study.candidates if record.abandoned]
    assert abandoned
    assert len(evaluate.rivals) == 11
    assert not {r.number for r in abandoned} & {r.number for r in study.standings.ranking(study.tracks[0])}


class InPairs(Strategy):
    """Two policies within a budget of 2.5 bits, or two that only a wider one allows."""

    def _propose(self):
        pairs = ("2", "w2a3") if "2.5" in self.space.budget.text else ("4", "w4a3")
        return self.space.uniform(pairs[self.answered])


InPairs.name = "in pairs"


def test_a_candidate_of_two_budgets_races_against_the_worse_of_their_bests(tmp_path):
    """It may still win where the best is worse; one that only the wide budget allows has to beat that one's best."""
    scores, rivals = [0.3, 0.9, 0.2, 0.5], []

    def evaluate(proposal, rival):
        number = len(rivals)
        rivals.append(None if rival is None else int(rival.votes[0, 0]))
        score = Score.of("acr", np.full(IMAGES, scores[number]), 10)
        votes = np.full((IMAGES, 1), number, np.uint8)
        return Outcome(score, score, (0.1, 0.01), votes=votes, network={"weight": torch.zeros(1)})

    study = studied(tmp_path, evaluate, budgets=("bops<=2.5bit", "bops<=4bit"), strategy=InPairs, trials=4)
    assert [len(candidate.within) for candidate in study.candidates] == [2, 1, 2, 1]
    assert rivals == [None, 0, 0, 1]


def test_strategies_are_told_which_rewards_are_censored(tmp_path, monkeypatch):
    told = []

    def raced(self, policy, reward):
        told.append((policy, reward))

    monkeypatch.setattr(RandomSearch, "_learn_raced", raced)
    study = studied(tmp_path, Evaluation(races=True), trials=12)
    abandoned = [record for record in study.candidates if record.abandoned]
    assert [proposal.policy for proposal, _ in told] == [record.policy for record in abandoned]


def test_races_can_be_switched_off(tmp_path):
    evaluate = Evaluation(races=True)
    studied(tmp_path, evaluate, racing=False)
    assert evaluate.rivals == []


def test_a_strategy_that_proposes_something_else_is_refused(tmp_path):
    studied(tmp_path, Evaluation(), trials=3)
    with pytest.raises(MismatchError, match=r"candidate 0 .* is not the policy"):
        studied(tmp_path, Evaluation(), trials=3, strategy=Uniform)


@pytest.mark.parametrize("limits", [{"trials": 0}, {"hours": -1}, {"target_acr": 0}])
def test_impossible_limits_are_refused(limits):
    with pytest.raises(InputError, match="positive"):
        Limits(**limits)


def test_a_kept_network_of_another_policy_is_not_taken(tmp_path):
    kept = KeptNetworks(tmp_path)
    votes = np.arange(600, dtype=np.uint16).reshape(2, 300)
    space = small_space()
    kept.save(3, space.uniform(3), Kept({"w": torch.ones(2)}, votes))
    assert (kept.load(3, space.uniform(3)).votes == votes).all()
    assert kept.load(3, space.uniform(3)).early is None
    kept.save(5, space.uniform(3), Kept({"w": torch.ones(2)}, votes, votes[:, :7].astype(np.uint8)))
    assert (kept.load(5, space.uniform(3)).early == votes[:, :7].astype(np.uint8)).all()
    assert kept.load(3, space.uniform(3)).votes.dtype == np.uint16
    assert kept.load(3, space.uniform(2)) is None
    assert kept.load(4, space.uniform(3)) is None


class Rungs(Strategy):
    """Looks at three policies shortly, and at the best of them again for longer; then shortly at it, which is a repeat."""

    def __init__(self, space, seed=0, options=None):
        super().__init__(space, seed, options)
        self.scores = {}
        self.queue = [Proposal(space.uniform(pair), 3) for pair in space.uniform_pairs[:3]]

    def ask(self, count=1):
        if not self.queue:
            best = max(self.scores, key=self.scores.get)
            self.queue = [Proposal(best, 12), Proposal(best, 3)]
        return self.queue[:count]

    def tell(self, proposal, reward, *, raced=False):
        self.scores.setdefault(proposal.policy, reward)
        self.queue.remove(proposal)

    def _propose(self):
        raise AssertionError


Rungs.name = "rungs"


class Longer(Evaluation):
    """Scores that rise with the steps of the fine-tuning."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def __call__(self, proposal, rival):
        self.steps.append((proposal.steps, rival is not None))
        outcome = super().__call__(proposal, rival)
        return replace(outcome, score=Score.of("acr", outcome.score.per_image + 0.1 * proposal.steps, 10))


@pytest.mark.parametrize("size", [1, 3])
def test_a_policy_with_more_steps_than_before_is_evaluated_again(tmp_path, size):
    evaluate = Longer()
    study = studied(tmp_path, evaluate, strategy=Rungs, trials=5, round=size)
    lines = journal_of(tmp_path)[1:-1]
    assert [line["steps"] for line in lines] == [3, 3, 3, 12, 3]
    assert [line["repeat_of"] for line in lines] == [None, None, None, None, 3]
    assert [steps for steps, _ in evaluate.steps] == [3, 3, 3, 12]
    assert not evaluate.steps[3][1], "no other candidate was fine-tuned for as long"
    (track,) = study.tracks
    best = study.standings.ranking(track)
    assert (best[0].number, len(best)) == (3, 3)
    assert study.standings.examined == 3
    again = Longer()
    studied(tmp_path, again, strategy=Rungs, trials=5, round=size)
    assert again.steps == []
    longest = study.network(best[0])
    (tmp_path / "kept" / "000003.safetensors").unlink()
    assert (study.network(best[0]).votes == longest.votes).all()
    assert evaluate.steps[-1] == (12, False), "a network that is made again has its steps"


def test_lines_without_stated_steps_are_as_they_were(tmp_path):
    studied(tmp_path, Evaluation(), trials=2)
    assert "steps" not in journal_of(tmp_path)[1]


class Batches(Strategy):
    """Proposes as many policies as it is asked for, which depend on all that it was told before."""

    def __init__(self, space, seed=0, options=None):
        super().__init__(space, seed, options)
        self.pending, self.heard = [], []

    def ask(self, count=1):
        while len(self.pending) < count:
            wish = np.random.default_rng(len(self.heard) * 100 + len(self.pending)).uniform(2, 8, (2, 2))
            self.pending.append(Proposal(self.space.fit(wish)))
        return self.pending[:count]

    def tell(self, proposal, reward, *, raced=False):
        policy = proposal.policy if isinstance(proposal, Proposal) else proposal
        self.heard.append(policy)
        if proposal in self.pending:
            self.pending.remove(proposal)

    def _propose(self):
        raise AssertionError


Batches.name = "batches"


def test_a_round_is_asked_for_before_it_is_told_and_races_against_the_leaders_before_it(tmp_path):
    evaluate = Evaluation(races=True)
    studied(tmp_path, evaluate, strategy=Batches, trials=8, round=4, keep=1)
    assert len(evaluate.rivals) == len(evaluate.asked[4:]) > 1, "the first round has nobody to race against"
    assert len(set(evaluate.rivals)) == 1, "all of the second round have the same rival"


@pytest.mark.parametrize("at", range(1, 60, 3))
def test_killed_within_a_round_it_ends_with_the_same_journal(tmp_path, monkeypatch, at):
    options = {"strategy": Batches, "trials": 7, "round": 3, "budgets": ("bops<=3bit", "bops<=4bit"), "keep": 1}
    (tmp_path / "whole").mkdir()
    studied(tmp_path / "whole", Evaluation(races=True), **options)
    with monkeypatch.context() as patch:
        kill_points(patch, at)
        with suppress(Killed):
            studied(tmp_path, Evaluation(races=True), **options)
    studied(tmp_path, Evaluation(races=True), **options)
    assert journal_of(tmp_path) == journal_of(tmp_path / "whole")
    assert kept_in(tmp_path) == kept_in(tmp_path / "whole")


def test_more_trials_end_like_as_many_at_once_whatever_part_of_a_round_was_left(tmp_path):
    (tmp_path / "whole").mkdir()
    studied(tmp_path / "whole", Evaluation(), strategy=Batches, trials=8, round=3)
    studied(tmp_path, Evaluation(), strategy=Batches, trials=4, round=3)
    studied(tmp_path, Evaluation(), strategy=Batches, trials=8, round=3)
    parts, whole = (
        [line for line in journal_of(f) if line.get("kind") == "candidate"] for f in (tmp_path, tmp_path / "whole")
    )
    assert parts == whole
