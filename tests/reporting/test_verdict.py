"""The verdict says what the figures show: what to ship, what is lost, which controls are missing, what limits."""

import json
from dataclasses import replace

import pytest

from arquant.certificates.certificate import CertificateSet
from arquant.certificates.claims import claim
from arquant.reporting.gathering import gather
from arquant.reporting.limits import acr_with_votes
from arquant.reporting.verdict import budget_words, verdict_of
from tests.support.report_runs import write_certificates, write_front, write_search
from tests.support.some_certificates import SETTINGS, certificate, certificate_set


def said(run):
    verdict = verdict_of(gather([run] if not isinstance(run, list) else run))
    return verdict, " ".join((*verdict.ship, *verdict.cost, *verdict.controls, *verdict.limits))


def test_the_question_and_the_choice(tmp_path):
    verdict, text = said(write_search(tmp_path / "run"))
    assert verdict.question == (
        "Which bit-widths of toy keep most of its certified robustness under noise of σ = 0.5, within the bit operations of 3 "
        "bits everywhere?"
    )
    assert verdict.ship[0].startswith(
        "Ship searched (w3a3): its ACR (average certified radius) is larger than that of uniform"
    )
    found = certificate_set(better=0.05)
    wrong = sum(not c.correct and not c.abstained for c in found.certificates)
    claimed = sum(not c.abstained for c in found.certificates)
    assert f"{wrong} of its {claimed} certificates are for a wrong class" in text


def test_a_uniform_network_that_is_better_is_shipped_instead(tmp_path):
    run = write_search(tmp_path / "run")
    (run / "controls" / "uniform" / "certificates.tsv").unlink()
    write_certificates(run / "controls" / "uniform", certificate_set(better=0.2))
    verdict, _ = said(run)
    assert verdict.ship[0].startswith(
        "Ship uniform (w2a2): the ACR (average certified radius) of searched (w3a3) is smaller (-"
    )


def test_a_tie_does_not_hide_lost_clean_accuracy(tmp_path):
    """Twelve images of a hundred are lost, eight gain a large radius: ACR ties, clean accuracy does not."""
    before, after = [], []
    for i in range(100):
        votes = (600, 480) if i < 12 else (880, 935) if i % 11 == 0 else (900, 898)
        before.append(certificate(votes[0], idx=i))
        after.append(certificate(votes[1], idx=i))
    run = write_certificates(tmp_path / "run", CertificateSet(after, SETTINGS))
    write_certificates(run / "controls" / "float", CertificateSet(before, SETTINGS))
    (difference,) = gather([run]).differences
    assert difference.verdict == "a tie"
    verdict, text = said(run)
    assert verdict.ship[0].startswith("Ship toy: it ties with the float network in ACR (average certified radius), ")
    assert "Beware: on clean images it is 12 points below the float network (-12.0 [-19.0, " in text


def test_among_models_without_a_control_the_best_is_named(tmp_path):
    runs = [
        write_certificates(tmp_path / x, certificate_set(better=0.1 * i), model=f"net {x}") for i, x in enumerate("abc")
    ]
    verdict, _ = said(runs)
    assert verdict.ship[0].startswith(
        "Ship net c: its ACR (average certified radius) is larger than that of net a (+0."
    )
    assert said(runs[::-1])[0].ship[0].startswith("Ship net c: none of the others has a larger ACR")


def test_missing_controls_are_named(tmp_path):
    verdict, _ = said(write_search(tmp_path / "run"))
    assert verdict.controls[0] == "The winner is itself the best uniform pair of the search (w3a3)."
    assert "the float network fine-tuned for as long" in verdict.controls[1]
    tuned = write_certificates(tmp_path / "tuned", certificate_set())
    (tuned / "training.json").write_text('{"model": "toy", "init": "toy:x"}')
    assert len(said([tmp_path / "run", tuned])[0].controls) == 1


def test_the_best_uniform_pair_that_was_not_certified_is_named(tmp_path):
    run = write_front(tmp_path)
    for name in ("bops-2bit", "bops-4bit"):
        (run / "points" / name / "controls" / "uniform" / "certificates.tsv").unlink()
        (run / "points" / name / "controls" / "uniform" / "policy.json").unlink()
    verdict, _ = said(run)
    assert verdict.controls[0].startswith(
        "Missing control: the best uniform pair of the search, w4a4, was not certified. It scored 0.32 ± 0.02"
    )


def test_several_budgets_are_counted(tmp_path):
    verdict, _ = said(write_front(tmp_path))
    assert "of 2 budgets, the network that the search found has a larger ACR" in verdict.ship[0]


def test_the_cost_of_a_guaranteed_prediction(tmp_path):
    run = write_search(tmp_path / "run")
    verdict, _ = said(run)
    assert verdict.cost[0].startswith(
        "One guaranteed prediction is 1,100 votes × 1.1 ms = 1.2 s, as measured while certifying"
    )
    assert verdict.cost[1].startswith("A vote of the float network took 1.0 times as long.")


def test_an_unmeasured_time_is_not_claimed(tmp_path):
    rows = [replace(c, seconds=0.0) for c in certificate_set().certificates]
    verdict, _ = said(write_certificates(tmp_path, CertificateSet(rows, SETTINGS)))
    assert verdict.cost == ()
    assert "stands alone here" in verdict.ship[0]


def test_more_votes_of_the_same_shares():
    found = certificate_set()
    shares = [dict(c.counts).get(c.label, 0) / c.n for c in found.certificates]
    votes = [int((share * 1000 + 0.5) / 1001 * 10_000) for share in shares]
    expected = claim(votes, 10_000, 0.001, 0.5).radius.mean()
    assert acr_with_votes(found, SETTINGS, 10_000) == pytest.approx(expected)
    assert acr_with_votes(found, SETTINGS, 10_000) > found.acr
    bare = CertificateSet([replace(c, counts=()) for c in found.certificates], SETTINGS)
    assert acr_with_votes(bare, SETTINGS, 10_000) is None


def test_what_limits_most_comes_first(tmp_path):
    sure = [certificate(1000, idx=i) for i in range(40)]
    verdict, _ = said(write_certificates(tmp_path / "sure", CertificateSet(sure, SETTINGS)))
    assert verdict.limits[0].startswith("Limits most here: votes. With n = 10,000 instead of 1,000")
    assert "100% of the images are at the largest radius" in verdict.limits[0]
    verdict, _ = said(write_certificates(tmp_path / "few", certificate_set(5)))
    assert verdict.limits[0].startswith("Limits most here: images. Fewer than 10")


@pytest.mark.parametrize(
    ("budget", "words"),
    [("bops<=2.5bit", "the bit operations of 2.5 bits everywhere"), ("bytes<=100k", "the budget bytes<=100k")],
)
def test_budgets_in_words(budget, words):
    assert budget_words(budget) == words


def test_a_control_that_could_not_be_made_is_named(tmp_path):
    run = write_search(tmp_path / "run")
    (run / "summary.json").write_text(
        json.dumps({"points": [{"missing_controls": {"uniform": "the loss became nan"}}]})
    )
    assert said(run)[0].controls[0] == "Missing control: the uniform network: the loss became nan."
    (run / "summary.json").write_text("[]")
    assert "became nan" not in said(run)[1]


@pytest.mark.parametrize(
    ("steps", "first"), [(60, "fine-tuning. The network was fine-tuned for 60 steps, 7,680"), (0, "votes")]
)
def test_a_short_fine_tuning_limits_where_clean_accuracy_is_lost(tmp_path, steps, first):
    run = write_search(tmp_path / "run")
    journal = run / "journal.jsonl"
    recipe = {"steps": steps, "epochs": 10.0, "batch": 128}
    text = journal.read_text().replace('{"steps": 0, "epochs": 10.0, "images": 60000}', json.dumps(recipe))
    journal.write_text(text)
    limits = said(run)[0].limits
    assert limits[0].startswith(f"Limits most here: {first}")
    assert any("points below the float network" in text for text in limits)
