"""`arquant attack`: who judges, what certificates say beside it, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.certification.attack_run import Struck, certificates_for, summary_of
from arquant.certification.subject import Subject
from arquant.commands.attack import attack
from arquant.commands.certify import certify
from arquant.commands.main import main
from tests.support.linear_network import labelled_images, linear_classifier
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier


def test_a_far_attack_breaks_what_a_near_one_does_not() -> None:
    images = labelled_images(20, 1)
    found = attack(linear_classifier(), images, sigma=0.25, judge="plain", attack="pgd", epsilon=(1e-4, 3.0))
    near, far = found["rows"]
    assert found["judge"] == "plain"
    assert near["clean_accuracy"] == 1.0
    assert near["attacked_accuracy"] > 0.9 > 0.1 > far["attacked_accuracy"]
    assert far["success"] == pytest.approx(1 - far["attacked_accuracy"])
    assert far["certified_accuracy"] is None
    assert far["contradictions"] is None


def test_certificates_stand_beside_the_smoothed_model(tmp_path: Path) -> None:
    images, model = image_set(12, 5), small_classifier()
    with quick_engines():
        made = certify(model, images, sigma=SIGMA, n=200, n0=20, out=tmp_path / "run").certificates
        found = attack(
            model, images, sigma=SIGMA, epsilon=(0.1, 4.0), steps=5, draws=8, n=200,
            certificates=tmp_path / "run", out=tmp_path / "struck.tsv",
        )  # fmt: skip
    near, far = found["rows"]
    assert near["certified_accuracy"] == made.certified_accuracy(0.1) > 0
    assert far["certified_accuracy"] == 0.0
    assert (near["contradictions"], far["contradictions"]) == (0, 0)
    assert near["attacked_accuracy"] >= near["certified_accuracy"]
    assert far["attacked_accuracy"] < near["attacked_accuracy"], "an attack that never succeeds shows nothing"
    lines = (tmp_path / "struck.tsv").read_text().splitlines()
    assert len(lines) == 1 + 2 * len(images)
    assert all(each["distance"] <= each["epsilon"] + 1e-5 for each in found["images"])
    with pytest.raises(MismatchError, match="another model"):
        attack(small_other(), images, sigma=SIGMA, epsilon=(0.1,), judge="plain", certificates=tmp_path / "run")
    with pytest.raises(MismatchError, match="is for sigma"):
        attack(model, images, sigma=0.1, epsilon=(0.1,), judge="plain", certificates=tmp_path / "run")
    with pytest.raises(MismatchError, match="is for noise grid"):
        attack(
            model, images, sigma=SIGMA, noise="gaussian", epsilon=(0.1,), judge="plain", certificates=tmp_path / "run"
        )


def test_certificates_of_other_images_say_nothing(tmp_path: Path) -> None:
    model, theirs, others = small_classifier(), image_set(12, 5), image_set(12, 6)
    with quick_engines():
        certify(model, theirs, sigma=SIGMA, n=200, n0=20, images="every:2", out=tmp_path / "run")
    common = {"sigma": SIGMA, "epsilon": (0.1,), "judge": "plain", "certificates": tmp_path / "run"}
    notes: list[str] = []
    (part,) = attack(model, theirs, images="first:3", note=notes.append, **common)["rows"]
    assert part["certified_accuracy"] is not None
    assert "1 of 3 images have no certificate" in notes[-1]
    with pytest.raises(MismatchError, match="certifies other images"):
        attack(model, others, **common)  # of the same indices and labels
    subject = Subject(model, others, SIGMA, "grid", tmp_path / "run")
    assert certificates_for(subject, None, lambda: others, notes.append) is None
    assert "no certificates beside it" in notes[-1]
    (tmp_path / "run/certificates.json").unlink()
    assert certificates_for(subject, None, lambda: others, notes.append) is not None, "labels are all there is"


def small_other() -> Any:
    model = small_classifier()
    next(model.parameters()).data.mul_(1.5)
    return model


def test_what_counts_as_a_success_and_as_a_contradiction() -> None:
    def struck(clean: int, attacked: int, radius: float | None, certified: int | None = 1) -> Struck:
        return Struck(0.5, 0, 1, clean, attacked, 0.4, 0.5, None if radius is None else certified, radius)

    assert struck(1, 2, None).succeeded
    assert struck(1, -1, None).succeeded, "an abstention is not right"
    assert not struck(2, 2, None).succeeded, "it was wrong before"
    assert struck(1, 2, 0.45).contradicts
    assert not struck(1, -1, 0.45).contradicts
    assert not struck(1, 2, 0.4).contradicts
    assert not struck(2, 2, 0.45, certified=2).contradicts
    rows = [struck(1, 1, 0.6), struck(1, 2, 0.45), struck(2, 2, 0.6, certified=2), struck(1, 1, None)]
    (found,) = summary_of(rows, "smoothed")
    assert (found["certified_accuracy"], found["contradictions"]) == (0.25, 1)
    assert (found["clean_accuracy"], found["attacked_accuracy"], found["success"]) == (0.75, 0.5, 1 / 3)
    assert summary_of(rows, "plain")[0]["contradictions"] is None


def test_it_says_who_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = image_set(8, 5)
    np.savez(tmp_path / "images.npz", images=np.asarray(images.images), labels=images.labels)
    words = [
        "attack", "tests.support.small_search:factory", f"npz:{tmp_path / 'images.npz'}", "--input", "3,8,8", "--classes", "4",
        "--sigma", str(SIGMA), "--epsilon", "0.02,0.1", "--attack", "fgsm", "--norm", "linf", "--judge", "plain", "-q",
    ]  # fmt: skip
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "fgsm in linf, judged by the plain network" in said
    assert "epsilon 0.02:" in said
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert main([*words, "--epsilon", "0"]) == 2
    assert "epsilon must be positive" in capsys.readouterr().err


def test_nothing_to_do_is_refused() -> None:
    with pytest.raises(InputError, match="how far"):
        attack(linear_classifier(), labelled_images(4, 1), sigma=0.25, epsilon=(), judge="plain")
