"""What is said beforehand about how long a search takes."""

import pytest

from arquant.loading.roles import Roles
from arquant.searching.forecast import Pace, expected_stages
from arquant.searching.options import search_options
from arquant.searching.study import Limits
from tests.support.small_search import image_set

ROLES = Roles(image_set(512, 1), image_set(50, 2), image_set(20, 3))
PACE = Pace(float_votes=100.0, votes=1000.0, steps=10.0)


def seconds(limits, budgets=1, **changes):
    options = search_options(0.5, **changes)
    return {stage.name: stage.seconds for stage in expected_stages(PACE, options, ROLES, limits, budgets)}


def test_every_stage_has_its_time():
    found = seconds(Limits(trials=6))
    assert found["reference"] == pytest.approx(50 * 2000 / 100)
    assert found["search"] == pytest.approx(6 * (60 / 10 + 50 * 200 / 1000))
    assert found["shortlist"] == pytest.approx((3 + 1) * 2 * (60 / 10 + 50 * 500 / 1000))
    assert found["fine-tune"] == pytest.approx(2 * 10 * (512 / 128) / 10), "batches of 128 images, two copies each"
    assert found["certify"] == pytest.approx(2 * 20 * 10_100 / 1000)
    assert found["certify float"] == pytest.approx(20 * 10_100 / 100)


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
