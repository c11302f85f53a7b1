"""Measuring sensitivities: single changes, paired differences, resuming, and the files that other parts read."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.base.journal import TypedJournal
from arquant.commands.main import main
from arquant.commands.sensitivity import sensitivity
from arquant.quantization.policy import Policy
from arquant.searching.score import Score
from arquant.searching.sensitivities import Change, changes, measure_sensitivities, read_measured_line
from arquant.searching.sensitivity_table import SensitivityTable
from arquant.searching.space import Space
from arquant.searching.strategies.ilp import read_sensitivities
from tests.support.small_search import SIGMA, image_set, small_classifier, small_space

BASE = Policy({"first": "w8a8", "x": "w4a4", "y": "w4a3", "last": "w8a8"})
DATA = {"calibrate": image_set(96, 2, "calibrate"), "certify": image_set(12, 3, "certify")}
SMALL = {"search_images": 8, "search_n": 32, "reference_n": 64, "min_bits": 6, "threads": 1}


def scored(seen: list[Policy]) -> Callable[[Policy], Score]:
    """Loses 0.1 / bits for each width of x and 0.2 / bits of y, and differs from image to image."""

    def evaluate(policy: Policy) -> Score:
        seen.append(policy)
        loss = sum(
            weight / bits for name, weight in (("x", 0.1), ("y", 0.2)) for bits in (policy[name].w, policy[name].a)
        )
        return Score.of("acr", np.array([1.0, 3.0]) - loss * np.array([0.5, 1.5]), 10)

    return evaluate


def test_every_smaller_width_of_every_layer_is_tried_alone() -> None:
    found = list(changes(BASE, ["x", "y"], 2))
    assert found == [
        *(Change("x", kind, bits) for kind in "wa" for bits in (2, 3)), Change("y", "w", 2), Change("y", "w", 3),
        Change("y", "a", 2),
    ]  # fmt: skip
    assert found[0].of(BASE) == BASE.with_({"x": "w2a4"})
    assert found[-1].of(BASE) == BASE.with_({"y": "w4a2"})


def test_values_are_paired_differences_and_a_restart_measures_the_rest(tmp_path: Path) -> None:
    seen: list[Policy] = []
    with TypedJournal(tmp_path / "j.jsonl", {}, read_measured_line) as journal:
        table = measure_sensitivities(scored(seen), BASE, ["x", "y"], journal)
    assert table.values["x"]["w"] == {2: pytest.approx(0.025), 3: pytest.approx(0.1 / 12), 4: 0.0}
    assert table.values["y"]["a"] == {2: pytest.approx(0.2 / 6), 3: 0.0}
    assert table.errors["x"]["w"][2] == pytest.approx(0.0125), "images differ by +-50 % of the loss"
    assert len(seen) == 8
    lines = (tmp_path / "j.jsonl").read_text().splitlines()
    (tmp_path / "j.jsonl").write_text("\n".join(lines[:5]) + "\n")
    with TypedJournal(tmp_path / "j.jsonl", {}, read_measured_line) as journal:
        again = measure_sensitivities(scored(seen), BASE, ["x", "y"], journal)
    assert (again.values, again.errors) == (table.values, table.errors)
    assert len(seen) == 8 + 4


def test_the_command_writes_its_table_once(tmp_path: Path) -> None:
    options = {"sigma": SIGMA, "out": tmp_path, **DATA, **SMALL}
    data = image_set(40, 4, "search")
    table = sensitivity(small_classifier(), data, **options)
    space = small_space()
    assert tuple(table.values) == space.searched
    assert table.facts["images"] == 8
    written = (tmp_path / "sensitivity.json").read_bytes()
    sensitivity(small_classifier(), data, **options)
    assert (tmp_path / "sensitivity.json").read_bytes() == written
    assert SensitivityTable.load(tmp_path / "sensitivity.json").values == table.values
    with pytest.raises(MismatchError, match="sigma"):
        sensitivity(small_classifier(), data, **{**options, "sigma": 2 * SIGMA})


def test_fine_tuning_changes_the_losses_that_ilp_reads(tmp_path: Path) -> None:
    options = {"sigma": SIGMA, **DATA, **SMALL, "min_bits": 2, "reward": "val", "base": "4", "train_batch": 32}
    data = image_set(40, 4, "search")
    before = sensitivity(small_classifier(), data, out=tmp_path / "before", **options)
    after = sensitivity(small_classifier(), data, out=tmp_path / "after", steps=2, **options)
    assert before.values != after.values
    space = Space(small_space().budget, max_bits=4)
    table = read_sensitivities(tmp_path / "before" / "sensitivity.json", space)
    for part in (table.weights, table.activations):
        assert part.shape == (2, 3)
        assert (part[:, 2] == 0).all()


def test_bad_wishes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="steps must be at least 0, got -1"):
        sensitivity(small_classifier(), "sample", sigma=SIGMA, out=tmp_path, steps=-1)
    for wrong in ({"reward": "acx"}, {"reward": "acr", "search_n": 8}):
        with pytest.raises(InputError, match="reward"):
            sensitivity(small_classifier(), "sample", sigma=SIGMA, out=tmp_path / "new", **wrong)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="nothing to measure"):
        sensitivity(small_classifier(), image_set(40, 4), sigma=SIGMA, out=tmp_path, keep=("*=8",), **DATA, **SMALL)


def test_the_command_line_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = image_set(60, 5)
    np.savez(tmp_path / "images.npz", images=images.images, labels=images.labels)
    command = [
        "sensitivity", "tests.support.small_search:small_classifier", f"npz:{tmp_path / 'images.npz'}", "--split", "60,20,20",
        "--sigma", str(SIGMA), "--search-images", "6", "--search-n", "16", "--reference-n", "32", "--min-bits", "7",
        "--threads", "1", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].split() == ["w7", "a7"]
    assert "Gaussian" not in shown.err
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["layers"].keys() == set(small_space().searched)
    elsewhere = [*command[:-1], str(tmp_path / "laplace"), "--noise", "laplace", "--steps", "1", "--train-batch", "8"]
    assert main(elsewhere) == 0
    assert "fine-tuning adds Gaussian noise" in capsys.readouterr().err
