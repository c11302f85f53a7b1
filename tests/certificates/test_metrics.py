import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from arquant.base.errors import InputError, MismatchError
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.certificate import Certificate, CertificateSet
from arquant.certificates.metrics import DEFAULT_RADII, compare, dataset_accuracy_bound, metrics_json
from tests.support.some_certificates import SETTINGS, certificate_set


def with_settings(certificates, **changes):
    return dataclasses.replace(certificates, settings=dataclasses.replace(certificates.settings, **changes))


def test_the_json_of_one_set_has_the_contracts_keys():
    some = certificate_set()
    data = metrics_json(some)
    assert list(data["certified_accuracy"]) == ["0.0", "0.25", "0.5", "0.75", "1.0", "1.25", "1.5", "1.75", "2.0"]
    assert data["acr"] == some.acr
    assert data["abstained"] == some.abstained
    assert data["images"] == 40
    assert data["certified_accuracy"]["0.5"] == some.certified_accuracy(0.5)
    assert data["acr_low"] < data["acr"] < data["acr_high"]
    assert data["clean_accuracy_low"] < data["clean_accuracy"] == some.clean_accuracy < data["clean_accuracy_high"]
    assert "second" not in data
    assert list(metrics_json(some, radii=[0, 1])["certified_accuracy"]) == ["0.0", "1.0"]
    json.dumps(data, allow_nan=False)


def test_the_json_of_two_sets_has_their_paired_difference():
    first, second = certificate_set(), certificate_set(better=0.05)
    data = metrics_json(first, second)
    assert set(data["difference"]) == {"acr", "low", "high"}
    assert data["difference"]["acr"] == pytest.approx(second.acr - first.acr)
    assert data["second"]["acr"] == second.acr
    json.dumps(data, allow_nan=False)


def test_a_comparison_is_paired_by_image_whatever_the_order():
    first, second = certificate_set(), certificate_set(better=0.02)
    found = compare(first, second)
    assert found.acr.value == pytest.approx(second.acr - first.acr)
    assert found.images == 40
    assert list(found.certified_accuracy) == list(DEFAULT_RADII)
    assert found.acr.high - found.acr.low < 0.5 * (first.bootstrap().high - first.bootstrap().low)
    shuffled = dataclasses.replace(second, certificates=second.certificates[::-1])
    assert compare(first, shuffled).acr == pytest.approx(found.acr)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sigma": 0.25}, "sigma 0.5 / 0.25"),
        ({"n": 2000}, "n 1000 / 2000"),
        ({"alpha": 0.01}, "alpha 0.001 / 0.01"),
        ({"family_wise": 40}, "alpha per image"),
        ({"certificate": "multiclass"}, "certificate one-sided / multiclass"),
        ({"noise": "laplace"}, "norm l2 / l1"),
    ],
)
def test_other_settings_are_refused_and_named(change, named):
    first = certificate_set()
    with pytest.raises(MismatchError, match=named):
        compare(first, with_settings(first, **change))


def test_every_difference_is_named_at_once():
    first = certificate_set()
    with pytest.raises(MismatchError) as caught:
        compare(first, with_settings(first, sigma=1.0, n=5000))
    assert "sigma 0.5 / 1.0" in str(caught.value)
    assert "n 1000 / 5000" in str(caught.value)


def test_other_images_are_refused_and_named():
    first = certificate_set()
    fewer = dataclasses.replace(first, certificates=first.certificates[:-1])
    with pytest.raises(MismatchError, match=r"idx: 1 only in the first \(780\)"):
        compare(first, fewer)
    relabelled = [dataclasses.replace(c, label=9) if c.idx == 20 else c for c in first.certificates]
    with pytest.raises(MismatchError, match=r"labels: 1 differ \(idx 20\)"):
        compare(first, dataclasses.replace(first, certificates=relabelled))
    with pytest.raises(MismatchError, match="images: sha256 aaaa"):
        compare(dataclasses.replace(first, images_sha256="a" * 64), dataclasses.replace(first, images_sha256="b" * 64))


def test_what_may_differ_is_noted():
    first = certificate_set()
    found = compare(first, with_settings(first, adaptive=Adaptive(), mode="label", seed=3, noise="gaussian"))
    notes = " ".join(found.notes)
    assert all(name in notes for name in ("adaptive None / Adaptive", "mode select / label", "seed 0 / 3", "noise"))
    assert found.warnings == ()


def test_without_sidecars_the_comparison_warns():
    first = certificate_set()
    found = compare(first, dataclasses.replace(first, settings=None))
    assert found.warnings == ("settings unknown: the second set has no sidecar",)
    assert metrics_json(first, dataclasses.replace(first, settings=None))["notes"] == list(found.warnings)


def test_the_data_set_bound_is_the_binomial_quantile():
    assert dataset_accuracy_bound(0.6, 10_000, 0.001) == pytest.approx(0.6 - 21 / 10_000)
    assert dataset_accuracy_bound(0.6, 500, 0.001) == pytest.approx(0.6 - 4 / 500)
    for images, alpha, rho in [(500, 0.001, 0.001), (37, 0.05, 0.01), (1, 0.5, 0.1), (10_000, 0.01, 1e-6)]:
        expected = max(1.0 - stats.binom.isf(rho, images, alpha) / images, 0)
        assert dataset_accuracy_bound(1.0, images, alpha, rho=rho) == pytest.approx(expected)
    assert dataset_accuracy_bound(0.001, 500, 0.01) == 0.0


def test_cohens_formula_is_reproduced_and_allows_too_few_false_certificates():
    found = dataset_accuracy_bound(0.6, 10_000, 0.001, method="cohen")
    assert found == pytest.approx(0.6 - 0.001 - 0.00083068 - 0.00023026, abs=1e-7)
    allowed = np.floor((0.6 - found) * 10_000)
    assert stats.binom.sf(allowed, 10_000, 0.001) > 0.001


@pytest.mark.parametrize("wrong", [{"share": 1.5}, {"images": 0}, {"alpha": 0.0}, {"rho": 1.0}, {"method": "hope"}])
def test_impossible_data_set_bounds_are_refused(wrong):
    options = {"share": 0.6, "images": 500, "alpha": 0.001, **wrong}
    with pytest.raises(InputError):
        dataset_accuracy_bound(options.pop("share"), options.pop("images"), options.pop("alpha"), **options)


def test_the_acr_of_a_known_table():
    radii = [0.0, 0.3, 0.6, 0.9]
    some = CertificateSet([Certificate(i, 0, 0, r) for i, r in enumerate(radii)], SETTINGS)
    assert metrics_json(some)["acr"] == pytest.approx(0.45)
    assert metrics_json(some)["certified_accuracy"]["0.25"] == 0.75
