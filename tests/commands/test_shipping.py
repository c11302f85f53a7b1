"""`arquant.export` and `arquant.check` on what a search leaves: budgets with kept layers, tables, several points."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from arquant.base.errors import InputError, MismatchError, RequirementError
from arquant.base.run_folder import open_run
from arquant.base.seen import Seen
from arquant.certification.parity import Parity
from arquant.commands.certify import certify
from arquant.commands.check import check
from arquant.commands.export import export
from arquant.commands.search import search
from arquant.engines.files import load_file_classifier
from arquant.models.weights import save_weights
from arquant.quantization.artifact import counted_bytes, load_artifact
from arquant.quantization.budget import Budget
from arquant.quantization.costs import FileBytes
from arquant.quantization.latency import make_table, write_table
from arquant.quantization.policy import Policy
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier, small_layers

ARCH = "tests.support.small_search:factory"
DATA = {"calibrate": image_set(96, 2, "calibrate"), "certify": image_set(12, 3, "certify")}
SMALL = {
    "trials": 2, "strategy": "uniform", "search_n": 48, "reference_n": 64, "n0": 16, "n": 120, "steps": 1, "final_steps": 1,
    "train_batch": 32, "shortlist": 1, "controls": (), "compiled": False,
}  # fmt: skip


def run_search(out, budget, **changes):
    with quick_engines():  # for the search only: checks are by the engines that ship
        search(
            small_classifier(), image_set(20, 1), sigma=SIGMA, budget=budget, out=out, **{**DATA, **SMALL, **changes}
        )
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
    point = run / "points" / "bops-2.5bit"
    used = Budget.parse("bops<=1T", small_layers()).usage(Policy.load(point / "policy.json"))
    config = (point / "config.yaml").read_text()
    assert "bops<=2.5bit" in config
    (point / "config.yaml").write_text(config.replace("bops<=2.5bit", f"bops<={0.999 * used * 1e12:.0f}"))
    found = outcome(run)
    assert [name for name, passed in found.items() if not passed] == ["bops-2.5bit: budget"]


@pytest.mark.parametrize("wrong", [{"keep": 5}, {"min_bits": "two"}])
def test_values_of_another_kind_are_findings(several, tmp_path, wrong):
    run = tmp_path / "run"
    shutil.copytree(several / "points" / "bops-4bit", run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, **wrong}))
    found = outcome(run)
    assert found["model"]
    assert not all(found.values())


def test_a_failed_check_is_told_by_the_exit_code_though_nobody_reads(tmp_path):
    (tmp_path / "certificates.tsv").write_text("not certificates\n")
    command = f"set -o pipefail; {sys.executable} -m arquant check {tmp_path} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, "1 of 1 checks failed" in done.stderr) == (3, True)


def test_a_model_must_be_as_small_as_asked(several):
    point = several / "points" / "bops-4bit"
    size, quantized = counted_bytes(point / "model.safetensors"), load_artifact(point / "model.safetensors", arch=ARCH)
    budget = int(FileBytes().cost(quantized.policy, quantized.layers))
    assert size < (point / "model.safetensors").stat().st_size, "what the file says of images is beside the model"
    for limit, passes in ((10, False), (size - 1, False), (size, True), (budget, True)):
        found = outcome(point, max_bytes=limit)
        assert found.pop("max-bytes") is passes
        assert all(found.values())


def test_a_missing_point_is_noticed(several, tmp_path):
    shutil.copytree(several, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "points" / "bops-4bit")
    assert outcome(tmp_path / "run")["points"] is False


def test_a_budget_on_latency_is_checked_with_the_table_of_the_run(tmp_path):
    table = tmp_path / "table.json"
    write_table(make_table(small_layers()), table)
    run = run_search(tmp_path / "run", "latency<=4bit", table=[table])
    assert all(outcome(run).values())
    table.write_text(table.read_text().replace('"ms"', '"s"'))
    with pytest.raises(MismatchError, match="tables"):
        run_search(run, "latency<=4bit", table=[table])
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
    assert outcome(several)["bops-4bit: model.onnx parity"]


def test_a_float_folder_knows_its_noise_and_is_checked_like_any(tmp_path):
    """As `arquant train` leaves it: weights that say what they were trained for, and no configuration."""
    save_weights(tmp_path / "model.safetensors", small_classifier(), arch=ARCH, sigma=SIGMA)
    run = certify(tmp_path, DATA["certify"], n=64, n0=16, arch=ARCH, out=tmp_path)
    assert run.certificates.settings.sigma == SIGMA
    export(tmp_path, arch=ARCH)
    assert load_file_classifier(tmp_path / "model.onnx").sigma == SIGMA
    found = outcome(tmp_path)
    assert found.keys() >= {"certificates", "exported files", "model.onnx parity"}
    assert all(found.values())


@pytest.mark.parametrize(
    ("selected", "said"), [("first:5", "on 5 of the run's 12 images; labels are"), (None, "ACR 0.0000; labels are")]
)
def test_a_selection_of_the_run_s_images_is_of_its_own(tmp_path, selected, said):
    save_weights(tmp_path / "model.safetensors", small_classifier(), arch=ARCH, sigma=SIGMA)
    images = DATA["certify"]
    np.savez(tmp_path / "data.npz", images=images.images, labels=(images.labels + 1) % 3)  # all wrong: an ACR of 0
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"command": "quantize", "data": f"npz:{tmp_path}/data.npz"}))
    certify(tmp_path, n=64, n0=16, arch=ARCH, images=selected, out=tmp_path)
    (found,) = (finding for finding in check(tmp_path, arch=ARCH) if finding.check == "certificates")
    assert found.passed
    assert said in found.detail


DEMO = Path(__file__).parents[2] / "results" / "demo"


def _rows(run, change):
    """Rewrite the rows of a run's certificates, each a dictionary of texts."""
    path = run / "certificates.tsv"
    header, *lines = path.read_text().splitlines()
    names = header.split("\t")
    rows = change([dict(zip(names, line.split("\t"), strict=True)) for line in lines])
    path.write_text("\n".join([header, *("\t".join(row[name] for name in names) for row in rows)]) + "\n")
    return len(rows)


def _sidecar(run, **changes):
    path = run / "certificates.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **changes}))


def _labels(run):
    _rows(run, lambda rows: [{**r, "label": r["predict"], "correct": "1"} if r["predict"] != "-1" else r for r in rows])


def _fewer(run):
    _sidecar(run, rows=_rows(run, lambda rows: [row for row in rows if row["correct"] == "1"]))


def _indices(run):
    _rows(run, lambda rows: [{**row, "idx": str(int(row["idx"]) + 1)} for row in rows])


def _images(run):
    _sidecar(run, images_sha256="00")


def _sigma(run):
    settings = json.loads((run / "certificates.json").read_text())["settings"]
    _sidecar(run, settings={**settings, "sigma": 1.0})
    _rows(run, lambda rows: [{**row, "radius": f"{2 * float(row['radius']) - 2e-8:.8f}"} for row in rows])


@pytest.mark.parametrize("tamper", [_labels, _fewer, _indices, _images, _sigma])
def test_tampered_certificates_do_not_pass(tmp_path, tamper):
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    assert [finding for finding in check(run) if not finding.passed] == []
    tamper(run)
    assert [finding.check for finding in check(run) if not finding.passed] == ["certificates"]


@pytest.mark.parametrize("file", ["certificates.tsv", "policy.json", "config.yaml"])
def test_a_part_that_is_gone_does_not_pass(tmp_path, file):
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    (run / file).unlink()
    found = {finding.check: finding for finding in check(run)}
    assert not found["complete"].passed
    assert file in found["complete"].detail


def test_an_export_of_another_model_does_not_pass(several, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(several, run)
    first, second = (run / "points" / f"bops-{bits}bit" for bits in ("2.5", "4"))
    other = run_search(tmp_path / "other", "bops<=4bit", trials=1, seed=5)
    export(first / "model.safetensors", arch=ARCH)
    shutil.copyfile(export(other / "model.safetensors", arch=ARCH)["file"], second / "model.onnx")
    found = outcome(run)
    assert (found["bops-2.5bit: model.onnx parity"], found["bops-4bit: model.onnx parity"]) == (True, False)


@pytest.fixture
def point(several, tmp_path):
    """A copy of one budget's model, with an ONNX and a QONNX file of it."""
    run = tmp_path / "run"
    shutil.copytree(several, run)
    for kind in ("onnx", "qonnx"):
        export(run / "points" / "bops-4bit" / "model.safetensors", arch=ARCH, format=kind)
    return run / "points" / "bops-4bit"


def _one_bit(raw):
    raw[len(raw) // 2] ^= 1
    return raw


@pytest.mark.parametrize("damage", [_one_bit, lambda raw: raw[:-100], lambda raw: b"garbage"])
@pytest.mark.parametrize("file", ["model.onnx", "model.qonnx.onnx"])
def test_an_exported_file_that_was_changed_does_not_pass(point, file, damage):
    assert outcome(point)["exported files"]
    (point / file).write_bytes(damage(bytearray((point / file).read_bytes())))
    assert not outcome(point)["exported files"]
    (point / file).unlink()
    assert outcome(point)["exported files"], "moving a file away breaks nothing"


def test_a_damaged_record_of_exports_is_said_and_replaced(point):
    (point / "exports.json").write_text('{"../model.onnx": {}}')
    (found,) = (finding for finding in check(point, arch=ARCH) if finding.check == "exported files")
    assert not found.passed
    assert "exports.json is damaged" in found.detail
    export(point / "model.safetensors", arch=ARCH)
    assert outcome(point)["exported files"]


def test_an_ir_made_of_an_onnx_file_says_what_that_file_says(point, tmp_path):
    made = export(point / "model.onnx", format="openvino", out=tmp_path / "model.xml")
    first, second = (load_file_classifier(path).facts for path in (point / "model.onnx", made["file"]))
    assert first == second
    assert (first.sigma, first.more["candidates_examined"]) == (SIGMA, 4)
    seen = load_artifact(point / "model.safetensors", arch=ARCH).seen
    assert set(seen.uses) == {"calibrate", "search"}
    assert Seen.from_dict(first.more["seen"], "model.onnx") == seen


def test_an_export_of_any_name_is_known(point):
    made = export(point / "model.safetensors", arch=ARCH, container="int4", out=point / "small.onnx")
    found = outcome(point)
    assert found["small.onnx parity"]
    assert found["small.onnx parity, ONNX Runtime"]
    (point / "certificates.tsv").unlink()
    (point / "certificates.json").unlink()
    certify(made["file"], DATA["certify"], n=120, n0=16, out=point)
    assert outcome(point)["certificates"], "what ships is that file"


def test_a_search_is_judged_on_its_own_images(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    for name in ("certificates.tsv", "certificates.json"):
        (run / name).unlink()
    certify(run, "sample", images="first:2", n=100, n0=16, out=run)
    (found,) = (finding for finding in check(run, min_acr=0.0) if finding.check == "certificates")
    assert not found.passed
    assert "other images than those that the search kept" in found.detail


def test_damaged_certificates_are_no_evidence_for_a_requirement(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    header, row, *rest = (run / "certificates.tsv").read_text().splitlines()
    cells = row.split("\t")
    (run / "certificates.tsv").write_text("\n".join([header, "\t".join([*cells[:3], "9.0", *cells[4:]]), *rest]) + "\n")
    found = {finding.check: finding for finding in check(run, min_acr=0.1)}
    assert "the radius of image 0 is 9.0" in found["certificates"].detail
    assert not found["min-acr"].passed
    assert "no valid certificates.tsv" in found["min-acr"].detail


def test_controls_are_checked_too(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    _sigma(run / "controls" / "uniform")
    assert [finding.check for finding in check(run) if not finding.passed] == ["uniform: certificates"]


def test_labels_of_other_images_are_compared_too(point, tmp_path):
    point = shutil.copytree(point, tmp_path / "alone")  # outside its search, of which the images are to be
    for name in ("certificates.tsv", "certificates.json"):
        (point / name).unlink()
    certify(point, image_set(5, 9, "others"), n=120, n0=16, out=point, arch=ARCH)
    assert outcome(point)["certificates"]
    _rows(point, lambda rows: [{**row, "label": str((int(row["label"]) + 1) % 3), "correct": "0"} for row in rows])
    assert not outcome(point)["certificates"]


def test_an_export_that_answers_otherwise_is_said_so(several, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "arquant.certification.shipping.parity", lambda *_, **__: {"auto": Parity(0.6, 0.5, "sample", 512)}
    )
    with pytest.raises(
        RequirementError, match=r"is written, but m\.onnx has other votes than .*: 50\.00% of votes moved"
    ):
        export(several / "points" / "bops-4bit" / "model.safetensors", arch=ARCH, out=tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").exists()
    with pytest.raises(InputError, match="container int4 belongs to format onnx"):
        export(several / "points" / "bops-4bit" / "model.safetensors", arch=ARCH, format="openvino", container="int4")
