"""The model card: front matter that a model hub can read, and text that claims no more than the certificates."""

import pytest
import yaml

from arquant.base.errors import InputError
from arquant.certificates.files import read_certificates
from arquant.commands.report import report
from arquant.quantization.policy import Policy
from tests.support.report_runs import HOSTILE, write_certificates, write_search
from tests.support.some_certificates import certificate_set


def card(run):
    text = report(run, format="card").path.read_text()
    _, front, body = text.split("---\n", 2)
    return yaml.safe_load(front), body


def test_front_matter_has_the_certified_figures(tmp_path):
    run = write_search(tmp_path / "run")
    front, body = card(run)
    assert (run / "card.md").exists()
    assert front["library_name"] == "arquant"
    assert front["pipeline_tag"] == "image-classification"
    (model,) = front["model-index"]
    (result,) = model["results"]
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    found = read_certificates(run)
    assert values["accuracy"] == round(found.clean_accuracy, 4)
    assert values["average_certified_radius"] == round(found.acr, 4)
    assert values["certified_accuracy_0.25"] == round(found.certified_accuracy(0.25), 4)
    assert result["dataset"] == {"type": "elsewhere", "name": "elsewhere, 40 images"}
    for title in ("How to run it", "Results", "What is certified", "What is not certified", "What it costs"):
        assert f"## {title}\n" in body
    assert "For each image tried, the chance of a false certificate is at most 0.001" in body
    assert "arquant predict RUN photo.jpg" in body
    assert "datasets" not in front, "a data set that hubs do not know is not named as one"


def test_known_data_are_named(tmp_path):
    write_certificates(tmp_path, certificate_set(), data={"name": "cifar10 (certify)", "images": 40})
    assert card(tmp_path)[0]["datasets"] == ["cifar10"]


def test_hostile_names_stay_text(tmp_path):
    front, body = card(write_certificates(tmp_path, certificate_set(), model=f"a: [b]\n---\n{HOSTILE}"))
    assert front["model-index"][0]["name"] == f"a: [b] --- {HOSTILE}"
    assert "<script>" not in body


def test_without_certificates_there_is_no_card(tmp_path):
    Policy({"a": "w8a8", "b": "w3a3"}).save(tmp_path / "policy.json")
    with pytest.raises(InputError, match="needs a certified model"):
        report(tmp_path, format="card")
