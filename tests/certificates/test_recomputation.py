import math
from dataclasses import replace

import pytest

from arquant.base.errors import FileFormatError, InputError
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.certificate import ABSTAIN, CertificateSet, Settings
from arquant.certificates.files import labels_digest
from arquant.certificates.recomputation import check_follows, recompute
from arquant.certificates.table import HEADER, format_row, parse_table
from tests.support.some_certificates import SETTINGS, certificate, certificate_set

ADAPTIVE = Settings(0.5, n=10_000, adaptive=Adaptive())
MULTICLASS = Settings(0.5, n=1000, certificate="multiclass")


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, MULTICLASS, ADAPTIVE, Settings(0.5, n=1000, noise="uniform"), Settings(0.5, n=1000, family_wise=40)],
)
@pytest.mark.parametrize("compat", [False, True])
def test_an_honest_set_agrees_with_its_votes_in_memory_and_in_a_file(settings, compat):
    some = certificate_set(settings=settings)
    assert recompute(some) == []
    text = "\n".join([HEADER, *(format_row(c, compat=compat) for c in some.certificates)])
    assert recompute(CertificateSet(parse_table(text, "x")[0], settings)) == []


def test_stopped_images_are_judged_at_the_level_of_their_look():
    early = certificate(1000, ADAPTIVE, n=1024, stop="tolerance")
    futile = replace(
        early, idx=20, predict=ABSTAIN, radius=0.0, votes=2, n=64, counts=((0, 2), (1, 62)), stop="futility"
    )
    assert recompute(CertificateSet([early, futile], ADAPTIVE)) == []
    assert {d.field for d in recompute(CertificateSet([replace(early, stop="fixed")], ADAPTIVE))} == {"n"}
    unpaid = replace(certificate(1000, Settings(0.5, n=1024)), stop="tolerance")
    assert {d.field for d in recompute(CertificateSet([unpaid], ADAPTIVE))} == {"p_lower", "radius"}
    free = Settings(0.5, n=10_000, adaptive=Adaptive(tolerance=None))
    assert {d.field for d in recompute(CertificateSet([early], free))} == {"stop"}


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"radius": 0.8224}, {"radius"}),
        ({"radius": 0.7}, {"radius"}),
        ({"radius": 1e308}, {"radius"}),
        ({"p_lower": 0.95}, {"p_lower"}),
        ({"p_lower": None}, {"p_lower"}),
        ({"p_upper": 0.1}, {"p_upper"}),
        ({"votes": 951}, {"votes"}),
        ({"counts": ((0, 950), (7, 49))}, {"counts"}),
        ({"counts": ((1, 950), (7, 50))}, {"votes"}),
        ({"n": 512, "votes": 490, "counts": ((0, 490), (7, 22))}, {"n"}),
        ({"predict": ABSTAIN, "radius": 0.0}, {"radius", "predict"}),
        ({"stop": "futility"}, {"predict"}),
        ({"n0": 99}, {"n0"}),
        ({"select_votes": 0}, {"select_votes"}),
        ({"counts": ((0, 950), (7, 25), (7, 25))}, {"counts"}),
    ],
)
def test_whatever_does_not_follow_from_the_votes_is_listed(change, fields):
    honest = certificate(950)
    assert honest.radius == pytest.approx(0.72, abs=0.01)
    found = recompute(CertificateSet([replace(honest, **change), certificate(800, idx=20)], SETTINGS))
    assert {d.field for d in found} == fields
    assert {d.idx for d in found} == {0}


HONEST = certificate(950)


@pytest.mark.parametrize(
    ("radius", "follows"),
    [
        (math.floor(HONEST.radius * 1e3) / 1e3, True),
        (math.floor(HONEST.radius * 1e8) / 1e8, True),
        (math.ceil(HONEST.radius * 1e3) / 1e3, False),
        (math.ceil(HONEST.radius * 1e8 + 10) / 1e8, False),
        (math.floor(HONEST.radius * 1e3 - 1) / 1e3, False),
        (HONEST.radius - 3e-4, False),
        (HONEST.radius + 1e-6, False),
    ],
)
def test_a_radius_may_be_truncated_as_files_do_and_in_no_other_way(radius, follows):
    found = recompute(CertificateSet([replace(HONEST, radius=radius)], SETTINGS))
    assert {d.field for d in found} == (set() if follows else {"radius"})


def test_a_bound_that_is_off_by_a_millionth_is_listed():
    for off in (1e-6, -1e-6):
        forged = replace(HONEST, p_lower=HONEST.p_lower + off)
        assert {d.field for d in recompute(CertificateSet([forged], SETTINGS))} == {"p_lower"}


def test_a_class_that_the_votes_do_not_prove_is_not_claimed_and_a_count_is_one_of_those_there_are():
    undecided = certificate(500)
    assert undecided.abstained
    assert {d.field for d in recompute(CertificateSet([replace(undecided, predict=0)], SETTINGS))} == {"predict"}
    invented = replace(undecided, votes=40)
    assert {d.field for d in recompute(CertificateSet([invented], SETTINGS))} == {"votes"}


def test_a_runner_up_that_was_hidden_is_found():
    honest = certificate(600, MULTICLASS, others=[(1, 300)])
    hidden = certificate(600, MULTICLASS, others=[(1, 100), (2, 100), (3, 100)])
    forged = replace(hidden, counts=honest.counts)
    assert {d.field for d in recompute(CertificateSet([forged], MULTICLASS))} == {"p_upper", "radius"}


def test_a_set_that_does_not_follow_is_refused_by_its_first_image():
    check_follows(certificate_set(), "x.tsv")
    honest = certificate(950, idx=20)
    forged = CertificateSet([certificate(900), replace(honest, radius=0.9, p_lower=0.99)], SETTINGS)
    with pytest.raises(FileFormatError, match=r"x\.tsv .* p_lower of image 20 is 0\.99 .*1 more"):
        check_follows(forged, "x.tsv")


def test_labels_are_those_that_were_certified():
    found = certificate_set()
    digest = labels_digest((c.idx, c.label) for c in found.certificates)
    recorded = CertificateSet(found.certificates, SETTINGS, {"labels_sha256": digest})
    check_follows(recorded, "x.tsv")
    moved = [replace(c, label=c.predict) if not c.abstained else c for c in found.certificates]
    for rows in (moved, found.certificates[1:]):
        with pytest.raises(FileFormatError, match=r"x\.tsv is damaged: rows are missing, or labels"):
            check_follows(replace(recorded, certificates=tuple(rows)), "x.tsv")


def test_without_settings_nothing_can_be_recomputed():
    with pytest.raises(InputError, match="settings unknown"):
        recompute(CertificateSet([certificate(950)]))


def test_where_the_label_is_tried_nothing_is_selected_and_nothing_else_claimed():
    settings = Settings(0.5, n=1000, mode="label")
    honest = replace(certificate(950, settings), n0=0, select_votes=0)
    assert recompute(CertificateSet([honest], settings)) == []
    selected, other = replace(honest, n0=100, select_votes=90), replace(honest, label=3)
    assert [d.field for d in recompute(CertificateSet([selected], settings))] == ["n0"]
    assert [d.field for d in recompute(CertificateSet([other], settings))] == ["predict"]
