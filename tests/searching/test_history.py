from arquant.searching.history import best_of, end_reason, seconds_by_stage, trials_of
from arquant.searching.journal_lines import read_line
from tests.support.report_runs import candidate

RECORDS = [
    {"kind": "setup", "compiled": False},
    candidate(0, 0.3, seconds={"finetune": 2.0, "votes": 1.0}),
    candidate(1, 0.5, abandoned={"votes": 64}, seconds={"finetune": 2.0, "votes": 0.5}),
    candidate(2, None, failure="diverged", seconds={"finetune": 1.0}),
    candidate(3, -0.4, budget="bytes<=100k", usage=0.9),
    candidate(4, 0.3, seconds={}),
    candidate(5, 0.3, repeat_of=0, seconds={}),
    candidate(6, 0.1, budget="bytes<=100k"),
]


def lines(records):
    return [read_line(record, "journal") for record in records]


def test_outcomes_in_order():
    trials = trials_of(lines(RECORDS))
    assert [trial.outcome for trial in trials] == [
        "scored", "abandoned", "failed", "scored", "scored", "repeated", "scored",
    ]  # fmt: skip
    assert [trial.value for trial in trials] == [0.3, 0.5, None, -0.4, 0.3, 0.3, 0.1]
    assert [trial.usage for trial in trials][3:5] == [0.9, None]


def test_the_best_is_scored_on_all_votes_and_the_earlier_of_equals():
    best = best_of(trials_of(lines(RECORDS)))
    assert {budget: trial.number for budget, trial in best.items()} == {"bops<=3bit": 0, "bytes<=100k": 6}
    tight = candidate(7, 0.6, budget="bytes<=100k", within=["bops<=3bit", "bytes<=100k"])
    shared = best_of(trials_of(lines([*RECORDS, tight])))
    assert [shared[budget].number for budget in ("bops<=3bit", "bytes<=100k")] == [7, 7], "budgets share evaluations"
    negative = best_of(trials_of(lines([candidate(0, -0.4), candidate(1, -0.3), candidate(2, -0.5)])))
    assert negative["bops<=3bit"].number == 1
    longer = best_of(trials_of(lines([candidate(0, 0.3), candidate(1, 0.2, steps=240), candidate(2, 0.4)])))
    assert longer["bops<=3bit"].number == 1, "scores after unequal fine-tunings are no rivals"


def test_seconds_and_the_end():
    assert seconds_by_stage(trials_of(lines(RECORDS[:4]))) == {"finetune": 5.0, "votes": 1.5}
    assert end_reason(lines(RECORDS)) is None
    assert end_reason(lines([*RECORDS, {"kind": "end", "reason": "5 trials"}])) == "5 trials"
