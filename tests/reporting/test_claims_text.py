"""The sentences of a guarantee carry the right numbers, and are withheld where nothing is guaranteed."""

from dataclasses import replace

from arquant.certificates.adaptive import Adaptive
from arquant.certificates.certificate import CertificateSet, Settings
from arquant.certificates.rounding import down
from arquant.reporting.claims_text import claims, not_claimed
from arquant.reporting.model import Entry, Report
from arquant.reporting.search_content import Candidate, Search
from tests.support.some_certificates import SETTINGS, certificate_set


def entry(settings=SETTINGS, **changes):
    return Entry("mine", "result", "run", certificate_set(settings=settings), **changes)


def test_numbers_of_the_guarantee():
    one = entry()
    claimed = sum(not c.abstained for c in one.certificates.certificates)
    text = claims(one)[0]
    for part in (
        f"{claimed} of 40 images have a certificate",
        "For each image tried, the chance of a false certificate is at most 0.001 over the noise",
        "σ = 0.5",
        "ℓ₂",
        "1,000 votes",
        "smoothed classifier",
    ):
        assert part in text


def test_family_wise_shares_alpha():
    texts = claims(entry(Settings(0.5, n=1000, family_wise=40)))
    assert "at most 2.5e-05 over the noise" in texts[0]
    assert "hold together with probability at least 0.999 " in texts[1]
    assert "false ones are to be expected" not in texts[1]


def test_expected_false_certificates_are_told():
    assert "up to 0.04 false certificates are to be expected" in claims(entry())[1]


def test_l1_and_adaptive():
    assert "ℓ₁" in claims(entry(Settings(0.5, noise="uniform", n=1000)))[0]
    assert len(claims(entry(Settings(0.5, n=1000, adaptive=Adaptive())))) == 3


def test_nothing_is_claimed_of_forged_or_unknown_certificates():
    (text,) = claims(replace(entry(), certificates=None, refused="the radius of image 3 is 9"))
    assert text == "mine: nothing may be claimed. the radius of image 3 is 9, so none of its figures are shown."
    unknown = Entry("x", "result", "x", CertificateSet(certificate_set().certificates))
    assert "unknown" in claims(unknown)[0]
    assert claims(Entry("x", "result", "x")) == []


def test_a_search_is_said_to_prove_nothing():
    tried = Candidate(0, "bops<=3bit", ("bops<=3bit",), "scored", 0.3, 0.01, "acr-cv", 0.3, 1e9)
    searches = tuple(Search(folder, (tried,), {"examined": number}) for folder, number in (("a", 17), ("b", 1400)))
    assert any("It examined 17 candidates" in text for text in not_claimed(Report((entry(),), searches=searches[:1])))
    assert any("They examined 17 and 1,400 cand" in text for text in not_claimed(Report((entry(),), searches=searches)))
    assert not any("candidates" in text for text in not_claimed(Report((entry(),))))


def test_radii_are_shown_rounded_down():
    assert down(0.99999) == "0.999"
    assert down(1.0) == "1.000"
    assert down(0.1) == "0.100"


def test_chances_of_error_are_never_rounded_down():
    texts = claims(entry(Settings(0.5, n=1000, family_wise=300)))
    assert "at most 3.34e-06 over the noise" in texts[0]
    assert "3.4e-06 per image" in texts[1]


def test_certificates_for_a_wrong_class_are_counted():
    wrong = sum(not c.correct and not c.abstained for c in entry().certificates.certificates)
    assert wrong > 0
    assert f"For {wrong} of them that class is wrong." in claims(entry())[0]
