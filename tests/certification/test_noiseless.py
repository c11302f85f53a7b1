"""A certifier without noise: what it proves holds, and a search scores and certifies with it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.journal import read_journal
from arquant.base.progress import silent
from arquant.certificates.files import read_certificates, read_sidecar
from arquant.certification.checking import check_run
from arquant.certification.noiseless import NoiselessCertifier
from arquant.commands.search import search
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.quantization.artifact import load_artifact
from arquant.quantization.quantized import quantize
from tests.support.linear_network import NAME, intervals, labelled_images, linear_classifier

CERTIFY = labelled_images(12, 3)


def run_search(out: Path, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "calibrate": labelled_images(64, 2), "certify": CERTIFY, "sigma": 0.1, "budget": "bops<=4bit", "trials": 3,
        "strategy": "random", "reward": "acr", "steps": 12, "final_steps": 2, "train_batch": 32, "shortlist": 2,
        "controls": ("uniform",), "compiled": False, "certifier": intervals(), "device": "cpu", "engine": "torch",
    }  # fmt: skip
    return search(linear_classifier(), labelled_images(20, 1), out=out, **{**options, **changes})


@pytest.mark.parametrize("bits", [None, 3, 8])
def test_no_attack_within_the_radius_changes_the_class(bits: int | None) -> None:
    classifier = linear_classifier()
    if bits is not None:
        classifier = quantize(classifier, bits, labelled_images(64, 2), sigma=0.1)
    pixels = torch.from_numpy(CERTIFY.images) / 255
    labels = classifier(pixels).argmax(dim=1)
    images = ImageSet(CERTIFY.images, labels.numpy(), CERTIFY.indices, "its own answers", 4)
    radii = torch.from_numpy(intervals().proved(classifier, images))[:, None, None, None]
    assert radii.max() > 0.005

    def answers_at(radius: torch.Tensor) -> torch.Tensor:
        point = pixels.clone().requires_grad_()
        logits = linear_classifier()(point)
        logits.gather(1, labels[:, None]).sum().backward()
        assert point.grad is not None
        return classifier(pixels - radius * point.grad.sign()).argmax(dim=1)

    certified = radii.flatten() > 0
    assert (answers_at(radii) == labels)[certified].all()
    assert (answers_at(10 * radii + 0.2) != labels).any(), "the attack works where nothing is proved"


def test_a_search_scores_and_certifies_with_it_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = run_search(out)
    found = read_certificates(out)
    assert summary["certified"]["acr"] == found.acr > 0
    assert found.settings is None
    assert found.provenance["certifier"] == "intervals"
    assert set(summary["certified"]["controls"]) == {"uniform"}
    model = load_artifact(out / "model.safetensors", arch=NAME)
    assert found.credited == pytest.approx(intervals().proved(model, CERTIFY), abs=1e-8)
    _, lines = read_journal(out / "journal.jsonl")
    candidates = [line for line in lines if line["kind"] == "candidate"]
    assert {line["engine"] for line in candidates if line["abandoned"] is None} == {"intervals"}
    assert all(line["acr"]["estimate"] == "acr" for line in candidates if line["acr"])
    before = (out / "journal.jsonl").read_bytes()
    assert run_search(out)["certified"] == summary["certified"]
    assert (out / "journal.jsonl").read_bytes() == before
    with pytest.raises(MismatchError, match="certifier"):
        run_search(out, certifier=None)


def test_a_reward_of_votes_is_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Intervals counts none; use the reward acr"):
        run_search(tmp_path / "run", reward="val")


def test_certificates_of_others_are_refused(tmp_path: Path) -> None:
    classifier = linear_classifier()
    certifier, fingerprint = intervals(), classifier.fingerprint()
    certifier.certify(classifier, CERTIFY, tmp_path, examined=None, report=silent, note=silent)
    certifier.check(tmp_path, fingerprint, CERTIFY)
    for model, images in (("another", CERTIFY), (fingerprint, labelled_images(12, 4))):
        with pytest.raises(MismatchError, match="other certificates"):
            certifier.check(tmp_path, model, images)


def test_a_table_that_was_begun_is_completed(tmp_path: Path) -> None:
    classifier, whole, killed = linear_classifier(), tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        intervals().certify(classifier, CERTIFY, folder, examined=None, report=silent, note=silent)
    table = killed / "certificates.tsv"
    complete = table.read_text()
    table.write_text("\n".join(complete.splitlines()[:5]) + "\n")
    (killed / "certificates.json").unlink()
    intervals().certify(classifier, CERTIFY, killed, examined=None, report=silent, note=silent)
    assert table.read_text() == complete


@pytest.mark.parametrize("radii", [np.zeros(3), np.full(12, np.nan), np.full(12, -1.0), np.zeros((12, 1))])
def test_what_is_no_radius_per_image_is_refused(radii: np.ndarray, tmp_path: Path) -> None:
    class Wrong(NoiselessCertifier):
        name = "wrong"

        def proved(self, classifier: Classifier, images: ImageSet) -> np.ndarray:
            return radii

    with pytest.raises(InputError, match="'wrong' must give one finite radius"):
        Wrong().certify(linear_classifier(), CERTIFY, tmp_path, examined=None, report=silent, note=silent)


def test_a_sidecar_without_settings_names_the_certifier(tmp_path: Path) -> None:
    """Nobody can strip the settings of votes from a sidecar unnoticed, and nothing of it is taken for verified."""
    classifier = linear_classifier()
    intervals().certify(classifier, CERTIFY, tmp_path, examined=None, report=silent, note=silent)
    path = tmp_path / "certificates.json"
    assert read_sidecar(path)["settings"] is None
    (finding,) = check_run(tmp_path, data=CERTIFY)
    assert not finding.passed
    data = json.loads(path.read_text())
    del data["provenance"]["certifier"]
    path.write_text(json.dumps(data))
    with pytest.raises(FileFormatError, match="settings"):
        read_sidecar(path)
