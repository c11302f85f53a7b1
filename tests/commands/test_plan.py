"""`arquant plan`: what so many hours are good for."""

import json
import shlex

import numpy as np
import pytest

import arquant
from arquant.base.errors import InputError
from arquant.base.options import options_of
from arquant.certificates.bounds import max_radius
from arquant.commands.main import find_command, main, read_options
from arquant.commands.plan import plan_lines, search_command
from arquant.loading.roles import Roles
from arquant.searching.forecast import Pace
from arquant.searching.options import TaskOptions, search_options
from arquant.searching.planning import forecast_within, largest_radius
from tests.support.small_search import SIGMA, image_set, small_space

ROLES = Roles(image_set(512, 1), image_set(50, 2), image_set(20, 3))
PACE = Pace(float_votes=100.0, votes=1000.0, steps=10.0)


def test_the_loop_gets_what_the_other_stages_leave():
    found = forecast_within(PACE, search_options(0.5, strategy="additive"), ROLES, 1.0, [small_space()])
    others = (
        50 * 2000 / 100 + 8 * (60 / 10 + 50 * 500 / 1000) + 2 * 40 / 10 + 2 * 20 * 10_100 / 1000 + 20 * 10_100 / 100
    )
    each = 60 / 10 + 50 * 200 / 1000
    assert found["candidate_seconds"] == pytest.approx(each)
    assert found["loop_hours"] == 0  # the other stages take longer than the hour
    assert others > 3600
    longer = forecast_within(PACE, search_options(0.5, strategy="additive"), ROLES, 3.0, [small_space()])
    assert longer["loop_hours"] * 3600 == pytest.approx(3 * 3600 - others)
    assert longer["candidates"] == int((3 * 3600 - others) / each)
    assert sum(stage["seconds"] for stage in longer["stages"]) == pytest.approx(3 * 3600)


def test_every_n_has_its_radius_and_its_price():
    found = forecast_within(PACE, search_options(0.5, strategy="additive", controls=()), ROLES, 5.0, [small_space()])
    rows = {row["n"]: row for row in found["certificates"]}
    assert sorted(rows) == [1_000, 10_000, 100_000, 1_000_000]
    assert rows[100_000]["largest_radius"] == pytest.approx(max_radius(100_000, 0.001, 0.5))
    assert rows[1_000]["certify_seconds"] == pytest.approx(20 * 1_100 / 1000)
    assert rows[1_000]["candidates"] > rows[100_000]["candidates"] > rows[1_000_000]["candidates"] == 0
    assert {
        row["n"]
        for row in forecast_within(PACE, search_options(0.5, strategy="additive", n=500), ROLES, 5.0, [small_space()])[
            "certificates"
        ]
    } >= {500}


def test_radii_follow_the_kind_of_certificate():
    assert largest_radius(search_options(0.5, n=5), 20) == 0.0  # five votes prove nothing at this alpha
    together = largest_radius(search_options(0.5, family_wise=True), 20)
    assert together == pytest.approx(max_radius(10_000, 0.001 / 20, 0.5))
    assert largest_radius(search_options(0.5, multiclass=True), 20) != together


@pytest.fixture
def data(tmp_path):
    images = image_set(160, 31)
    np.savez(tmp_path / "images.npz", images=images.images, labels=images.labels)
    return f"npz:{tmp_path / 'images.npz'}"


def test_a_plan_measures_this_machine_and_writes_nothing(data, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [
        "plan", "tests.support.small_search:factory", data, "--input", "3,8,8", "--classes", "4", "--split", "60,20,20",
        "--sigma", str(SIGMA), "--budget", "bops<=3bit", "--hours", "2", "--train-batch", "32", "--final-epochs", "1",
    ]  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(tmp_path.rglob("*")) == before
    pace = found["pace"]
    assert pace.pop("compiling") >= 0  # a difference of two measurements, 0 where a busy machine turned it round
    assert all(value > 0 for value in pace.values())
    assert found["candidates"] > 0
    assert found["memory"]["peak_bytes"] > 50e6
    planned = shlex.split(found["command"])
    assert planned[:4] == ["arquant", "search", "tests.support.small_search:factory", data]
    assert asked_for(planned[1:]) == asked_for(words)
    assert float(planned[planned.index("--hours") + 1]) == pytest.approx(found["loop_hours"], abs=0.005)
    text = "\n".join(plan_lines(found))
    assert "votes/s" in text
    assert "100,000" in text


def asked_for(words):
    """What the words after `arquant` say about the search itself."""
    found = read_options(find_command(words[0]), words[1:])[1]
    return {option.name: getattr(found, option.name) for option in options_of(TaskOptions)}


@pytest.mark.parametrize(
    "more",
    [
        ("--n", "5000"),
        ("--preset", "paper-cifar"),
        # our defaults, not the preset's
        ("--preset", "paper-cifar", "--n", "10000", "--strategy", "arq", "--steps", "60"),
        ("--epochs", "2", "--strategy", "haq", "--controls", "none", "--option", "episodes=3"),
    ],
)
def test_the_search_to_type_has_all_options_of_flags_and_files(tmp_path, more):
    file = tmp_path / "plan.yaml"
    file.write_text(
        "model: resnet20:sigma=0.5\ndata: sample\nsigma: 0.5\nbudget: [bops<=3bit, bytes<=100k]\ncompiled: true\n"
        "split: [60, 20, 20]\nadaptive: true\nhours: 3\nkeep: ['fc=8']\n"
    )
    words = ["plan", "--config", str(file), *more, "--json"]
    planned = shlex.split(search_command(read_options(find_command("plan"), words[1:])[1], 1.5))
    assert planned[2:4] == ["resnet20:sigma=0.5", "sample"]
    assert asked_for(planned[1:]) == asked_for(words)
    assert planned[-4:] == ["--hours", "1.50", "--out", "runs/search"]


def test_bad_hours_and_budgets_are_refused(data):
    with pytest.raises(InputError, match="hours must be positive, got 0"):
        arquant.plan("resnet20", "sample", sigma=0.5, budget="bops<=3bit", hours=0)
    with pytest.raises(InputError, match="cannot be met"):
        arquant.plan("resnet20", "sample", sigma=0.5, budget="bops<=1bit")


@pytest.mark.parametrize(
    ("options", "message"), [({"strategy": "ilp"}, "table"), ({"reward": "acr", "search_n": 8}, "the same for every")]
)
def test_what_the_search_would_refuse_is_not_planned(options, message):
    with pytest.raises(InputError, match=message):
        arquant.plan("resnet20", "sample", sigma=0.5, budget="bops<=3bit", **options)


def test_too_few_hours_are_said():
    found = forecast_within(PACE, search_options(0.5, strategy="additive"), ROLES, 0.1, [small_space()])
    assert (found["candidates"], found["loop_hours"]) == (0, 0.0)
    shown = {
        **found, "machine": {"processor": "x", "threads": 2}, "pace": vars(PACE), "compiled": False,
        "memory": {"peak_bytes": None, "available_bytes": None}, "budget": ["bops<=3bit"], "alpha": 0.001, "sigma": 0.5,
    }  # fmt: skip
    assert "no time for a candidate" in "\n".join(plan_lines(shown))
