"""`arquant.export` and `arquant.check` on what a search leaves: budgets with kept layers, tables, several points."""

import shutil

import pytest

from arquant.commands.searching import search
from arquant.commands.shipping import check, export
from arquant.engines.files import load_file_classifier
from arquant.errors import InputError, MismatchError
from arquant.latency import make_table, write_table
from arquant.run_folder import open_run
from tests.small_search import SIGMA, image_set, quick_engines, small_classifier, small_layers

ARCH = "tests.small_search:factory"
DATA = {"calibrate": image_set(96, 2, "calibrate"), "certify": image_set(12, 3, "certify")}
SMALL = {
    "trials": 2, "strategy": "uniform", "search_n": 48, "reference_n": 64, "n0": 16, "n": 120, "steps": 1, "final_steps": 1,
    "train_batch": 32, "shortlist": 1, "controls": (), "compiled": False,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _quick_engines():
    with quick_engines():
        yield


def run_search(out, budget, **changes):
    search(small_classifier(), image_set(20, 1), sigma=SIGMA, budget=budget, out=out, **{**DATA, **SMALL, **changes})
    return out


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Two budgets, and a layer that is kept at 8 bits, which `3bit` then counts with 8."""
    budgets = ["bops<=2.5bit", "bops<=4bit"]
    return run_search(tmp_path_factory.mktemp("several") / "run", budgets, keep=("3=8",), trials=4)


def outcome(run, **requirements):
    return {finding.check: finding.passed for finding in check(run, arch=ARCH, **requirements)}


def test_every_point_of_a_search_is_checked(several):
    found = outcome(several)
    parts = ("model", "policy", "budget", "certificates")
    assert set(found) == {"points", *(f"bops-{b}bit: {part}" for b in ("2.5", "4") for part in parts)}
    assert all(found.values())
    assert not all(outcome(several, min_acr=9.0).values())


def test_a_point_must_keep_its_own_budget(several, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(several, run)
    for name in ("model.safetensors", "policy.json", "certificates.tsv", "certificates.json"):
        shutil.copyfile(run / "points" / "bops-4bit" / name, run / "points" / "bops-2.5bit" / name)
    found = outcome(run)
    assert [name for name, passed in found.items() if not passed] == ["bops-2.5bit: budget"]


def test_a_missing_point_is_noticed(several, tmp_path):
    shutil.copytree(several, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "points" / "bops-4bit")
    assert outcome(tmp_path / "run")["points"] is False


def test_a_budget_on_latency_is_checked_with_the_table_of_the_run(tmp_path):
    table = tmp_path / "table.json"
    write_table(make_table(small_layers()), table)
    run = run_search(tmp_path / "run", "latency<=4bit", tables=[table])
    assert all(outcome(run).values())
    table.write_text(table.read_text().replace('"ms"', '"s"'))
    with pytest.raises(MismatchError, match="tables"):
        run_search(run, "latency<=4bit", tables=[table])
    table.unlink()
    assert all(outcome(run).values()), "the run keeps its own copy"
    next((run / "tables").iterdir()).unlink()
    assert outcome(run)["budget"] is False


def test_what_is_not_there_does_not_pass(several, tmp_path):
    open_run(tmp_path, {"command": "search", "budget": ["bops<=3bit"]})
    with pytest.raises(InputError, match="nothing to check"):
        check(tmp_path)
    shutil.copyfile(several / "points" / "bops-4bit" / "policy.json", tmp_path / "policy.json")
    assert outcome(tmp_path) == {"policy": False, "budget": False}


def test_a_model_file_is_exported_as_its_run_is(several):
    point = several / "points" / "bops-4bit"
    exported = export(point / "model.safetensors", arch=ARCH)
    assert exported["file"] == str(point / "model.onnx")
    assert load_file_classifier(point / "model.onnx").facts.sigma == SIGMA
    assert outcome(several)["bops-4bit: onnx parity"]
