import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import InputError
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.bounds import max_radius
from arquant.certificates.certificate import ABSTAIN, Certificate, CertificateSet, Settings
from arquant.certificates.files import settings_from_json, settings_json
from arquant.certificates.resampling import bootstrap_mean
from tests.support.some_certificates import certificate, certificate_set


def rows(*triples):
    return CertificateSet(
        [Certificate(i, label, predict, radius) for i, (label, predict, radius) in enumerate(triples)]
    )


def test_an_abstention_is_never_correct_even_without_a_label():
    assert not Certificate(0, -1, ABSTAIN, 0.0).correct
    assert Certificate(0, 3, 3, 0.0).correct
    assert Certificate(0, -1, ABSTAIN, 0.0).abstained


@pytest.mark.parametrize(
    "wrong",
    [
        {"radius": -0.1},
        {"radius": float("nan")},
        {"radius": float("inf")},
        {"predict": ABSTAIN},
        {"predict": -2},
        {"label": -2},
        {"idx": -1},
        {"votes": 11, "n": 10},
        {"votes": -1, "n": 10},
        {"votes": -1, "n": 0},
        {"n": -1},
        {"select_votes": 2, "n0": 1},
        {"select_votes": -1, "n0": 1},
        {"p_lower": 1.5},
        {"p_upper": -0.5},
        {"stop": "bored"},
        {"seconds": -1.0},
        {"seconds": float("inf")},
        {"seconds": float("nan")},
    ],
)
def test_certificates_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError):
        Certificate(**{"idx": 0, "label": 1, "predict": 1, "radius": 0.5, **wrong})


def test_the_figures_keep_errors_and_abstentions_in_the_denominator():
    some = rows((0, 0, 0.5), (0, 1, 2.0), (1, ABSTAIN, 0.0), (1, 1, 1.0))
    assert some.acr == pytest.approx(0.375)
    assert some.clean_accuracy == 0.5
    assert some.abstained == 0.25
    assert some.certified_accuracy(0.0) == 0.5
    assert some.certified_accuracy(0.5) == 0.5
    assert some.certified_accuracy(0.5000001) == 0.25
    assert some.certified_accuracy(1.01) == 0.0
    assert len(some) == 4
    with pytest.raises(InputError):
        some.certified_accuracy(-1.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2), st.floats(0, 3)), min_size=1, max_size=30))
def test_acr_is_the_area_under_the_certified_accuracy(triples):
    some = rows(*[(label, predict, radius if predict >= 0 else 0.0) for label, predict, radius in triples])
    steps = np.unique(np.append(some.credited, 0.0))
    area = sum(some.certified_accuracy(r) * (r - before) for before, r in itertools.pairwise(steps))
    assert some.acr == pytest.approx(area, abs=1e-12)
    accuracies = [some.certified_accuracy(r) for r in steps]
    assert accuracies == sorted(accuracies, reverse=True)


def test_a_set_is_neither_empty_nor_counts_an_image_twice():
    with pytest.raises(InputError, match="at least one"):
        CertificateSet([])
    with pytest.raises(InputError, match="image 7"):
        CertificateSet([Certificate(7, 0, 0, 0.1), Certificate(7, 0, 0, 0.2)])


def test_the_interval_surrounds_the_acr_and_the_accuracy():
    some = certificate_set()
    interval = some.bootstrap()
    assert interval.value == some.acr
    assert interval.low < some.acr < interval.high
    accuracy = some.bootstrap(0.5)
    assert accuracy.value == some.certified_accuracy(0.5)
    assert accuracy.low <= accuracy.value <= accuracy.high


@pytest.mark.parametrize("radius", [None, 0.5])
def test_the_interval_is_made_with_the_confidence_resamples_and_seed_asked_for(radius):
    some = certificate_set()
    values = some.credited if radius is None else some.certified(radius)
    for options in ({"confidence": 0.5}, {"resamples": 7}, {"resamples": 7, "seed": 1}):
        assert some.bootstrap(radius, **options) == bootstrap_mean(values, **options)[0]
        assert some.bootstrap(radius, **options) != some.bootstrap(radius)


def test_settings_state_alpha_per_image_norm_and_ceiling():
    settings = Settings(0.5, n=10_000, alpha=0.001, family_wise=500)
    assert settings.effective_alpha == 0.001 / 500
    assert settings.largest_radius == pytest.approx(0.5 * 3.009, abs=5e-4)
    assert Settings(0.5, n=100_000).largest_radius == max_radius(100_000, 0.001, 0.5)
    assert Settings(0.5, noise="laplace").norm == "l1"
    assert Settings(0.5, adaptive=Adaptive()).largest_radius == max_radius(10_000, 0.0005, 0.5)
    assert Settings(0.5, certificate="multiclass").largest_radius == pytest.approx(max_radius(10_000, 0.0005, 0.5))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"noise": "cauchy"}, "cauchy"),
        ({"alpha": 1.0}, "alpha"),
        ({"n": 0}, "n=0"),
        ({"n0": 0}, "n0=0"),
        ({"certificate": "three-sided"}, "three-sided"),
        ({"mode": "guess"}, "guess"),
        ({"family_wise": 0}, "family_wise"),
        ({"n": 1000.5}, "n must be a whole number, got 1000.5"),
        ({"n": "many"}, "whole number"),
        ({"n": 2**53 + 1}, "at most"),
        ({"n0": 2**53 + 1}, "at most"),
        ({"n0": -1, "mode": "label"}, "n0=-1"),
        ({"seed": -1}, "seed"),
        ({"n": 9}, "n >= 10"),
        ({"n": 10, "family_wise": 2}, "n >= 11"),
        ({"n": 10, "certificate": "multiclass"}, "n >= 11"),
        ({"certificate": "multiclass", "noise": "uniform"}, "uniform"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_and_named(wrong, named):
    with pytest.raises(InputError, match=named):
        Settings(**{"sigma": 0.5, **wrong})


def test_the_smallest_n_that_the_message_names_suffices():
    assert Settings(0.5, n=10).largest_radius > 0
    assert Settings(0.5, n=11, certificate="multiclass").largest_radius > 0
    assert Settings(0.5, n0=0, mode="label").n0 == 0


@pytest.mark.parametrize("certificate", ["one-sided", "multiclass"])
@pytest.mark.parametrize("n", [60, 65])
def test_the_smallest_n_of_an_adaptive_run_pays_for_its_looks(n, certificate):
    """Beyond 64 votes there are two looks, and only half of alpha is left for the last."""
    wanted = {"alpha": 1e-20, "adaptive": Adaptive(), "certificate": certificate}
    # n votes prove more than 1/2 at a level above 2^-n: 1e-20 / 2 = 2^-67.4; the multiclass certificate halves it again
    enough = 68 if certificate == "one-sided" else 69
    with pytest.raises(InputError, match=f"use n >= {enough}"):
        Settings(0.5, n=n, **wanted)
    with pytest.raises(InputError):
        Settings(0.5, n=enough - 1, **wanted)
    assert Settings(0.5, n=enough, **wanted).largest_radius > 0


def test_settings_are_plain_numbers_whatever_they_were_given_as():
    given = Settings(np.float32(0.5), n0=np.int64(100), n=1e6, alpha=np.float32(0.25), seed=np.uint8(3))
    assert given == Settings(0.5, n0=100, n=1_000_000, alpha=0.25, seed=3)
    assert {type(value) for value in (given.sigma, given.alpha)} == {float}
    assert {type(value) for value in (given.n0, given.n, given.seed)} == {int}
    assert settings_from_json(json.loads(json.dumps(settings_json(given)))) == given


def test_certificates_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        certificate(900).radius = 3.0
