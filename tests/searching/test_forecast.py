"""What is said beforehand about how long a search takes."""

import contextlib

import pytest

from arquant.loading.roles import Roles
from arquant.searching import forecast
from arquant.searching.forecast import Loop, Pace, expected_loop, expected_stages, measure
from arquant.searching.options import search_options
from arquant.searching.strategies.grouped_model import Grouping
from arquant.searching.study import Limits
from tests.support.small_search import image_set, small_space

ROLES = Roles(image_set(512, 1), image_set(50, 2), image_set(20, 3))
PACE = Pace(float_votes=100.0, votes=1000.0, steps=10.0)


def seconds(limits, budgets=1, pace=PACE, **changes):
    options = search_options(0.5, **{"strategy": "additive", **changes})
    spaces = [small_space()] * budgets
    return {stage.name: stage.seconds for stage in expected_stages(pace, options, ROLES, limits, spaces)}


def test_every_stage_has_its_time():
    found = seconds(Limits(trials=6))
    assert found["reference"] == pytest.approx(50 * 2000 / 100)
    assert found["search"] == pytest.approx(6 * (60 / 10 + 50 * 200 / 1000))
    assert found["shortlist"] == pytest.approx((3 + 1) * 2 * (60 / 10 + 50 * 500 / 1000))
    assert found["fine-tune"] == pytest.approx(2 * 10 * (512 / 128) / 10), "batches of 128 images, two copies each"
    assert found["certify"] == pytest.approx(2 * 20 * 10_100 / 1000)
    assert found["certify float"] == pytest.approx(20 * 10_100 / 100)


def test_every_fine_tuning_compiles_anew():
    plain, compiling = (seconds(Limits(trials=6), pace=Pace(100.0, 1000.0, 10.0, each)) for each in (0.0, 7.0))
    extra = {name: compiling[name] - plain[name] for name in plain}
    assert extra == pytest.approx(
        {**dict.fromkeys(plain, 0.0), "search": 6 * 7, "shortlist": 8 * 7, "fine-tune": 2 * 7}
    )


class Clocked(contextlib.AbstractContextManager):
    """A workbench and its engine, whose fine-tunings take so long besides their steps, and the first longer still."""

    def __init__(self, besides, step):
        self.besides, self.step, self.now, self.tuned = besides, step, 0.0, []

    def finetune_(self, recipe):
        self.now += self.besides + recipe.steps * self.step + (0 if self.tuned else 100.0)
        self.tuned.append(recipe.steps)

    def set_(self, policy):
        pass

    def engine(self):
        return self

    def images_per_second(self):
        return 1000.0

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(("besides", "step", "tuned"), [(6.0, 0.5, [1, 1, 9]), (5.0, 40.0, [1, 1, 2])])
def test_a_step_is_told_from_what_a_fine_tuning_takes_besides(besides, step, tuned, monkeypatch):
    bench = Clocked(besides, step)
    monkeypatch.setattr(forecast.time, "monotonic", lambda: bench.now)
    pace = measure(bench, lambda: 100.0, None, search_options(0.5))
    assert (pace.float_votes, pace.votes, pace.steps, pace.compiling) == pytest.approx(
        (100.0, 1000.0, 1 / step, besides)
    )
    assert bench.tuned == tuned


def test_hours_and_budgets_and_controls_count():
    assert seconds(Limits(hours=0.5))["search"] == 1800
    assert seconds(Limits(trials=1, hours=0.5))["search"] == pytest.approx(16)
    assert seconds(Limits(trials=1), budgets=2)["certify"] == pytest.approx(4 * 202)
    alone = seconds(Limits(trials=1), controls=())
    assert "certify float" not in alone
    assert "shortlist" not in seconds(Limits(trials=1), shortlist=1)
    longer = seconds(Limits(trials=1), shortlist_steps=600)["shortlist"]
    assert longer == pytest.approx((3 + 1) * 2 * (600 / 10 + 50 * 500 / 1000))
    assert seconds(Limits(trials=1), budgets=2)["shortlist"] == 2 * alone["shortlist"]
    assert alone["certify"] == pytest.approx(202)


def loop(limits, budgets=1, **changes):
    options = search_options(0.5, final_steps=1000, **changes)
    return expected_loop(PACE, options, ROLES, limits, [small_space()] * budgets)


def test_the_looks_of_arq_are_foreseen():
    space = small_space()
    design, pairs = Grouping(space, 6).parameters, len(space.uniform_pairs)
    first, last = 4 + pairs, 3
    found = loop(Limits(trials=design + 1 + first + last))
    assert found.counts == {60: design + 1, 240: first, 780: last}
    assert found.seconds == pytest.approx(sum(n * (steps / 10 + 10) for steps, n in found.counts.items()))
    assert loop(Limits(trials=design)).counts == {60: design}
    assert loop(Limits(trials=2 * design), budgets=2).counts[60] == design + 2, "budgets share the design"
    assert str(found).startswith(f"{design + 1} candidates of 60 steps, {first} of 240, {last} of 780")


def test_a_loop_of_hours_takes_as_many_candidates_as_they_last_for():
    short = loop(Limits(hours=0.01))
    assert short.seconds == pytest.approx(36)
    assert short.counts == {60: 3}
    longer, longest = loop(Limits(hours=2)), loop(Limits(hours=20))
    assert set(longer.counts) == {60, 240, 780}
    assert longest.candidates > 5 * longer.candidates
    assert str(Loop({}, 0.0)) == "0 candidates"
