"""Fabricated evidence does not pass `arquant check`, nor does `certify` go on with it; honest evidence passes."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import yaml

from arquant.base.errors import FileFormatError
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.files import read_certificates
from arquant.certification import evidence
from arquant.commands.certify import certify
from arquant.commands.check import check
from arquant.commands.main import main
from arquant.loading.datasets import load_data
from arquant.models.weights import save_weights
from tests.support.forged_certificates import forge, tried, voted
from tests.support.small_search import image_set, quick_engines, small_classifier

ARCH = "tests.support.small_search:factory"
SIGMA, N, N0, IMAGES = 0.5, 300, 50, 24
HOW = {"sigma": SIGMA, "n": N, "n0": N0, "arch": ARCH}


@pytest.fixture(scope="module", autouse=True)
def _quick_engines():
    with quick_engines():
        yield


def make(folder, name="run", **options):
    """A folder with a model, its configuration, the images it names, and certificates."""
    run = folder / name
    run.mkdir()
    save_weights(run / "model.safetensors", small_classifier(), arch=ARCH, sigma=SIGMA)
    images = image_set(IMAGES, 3)
    labels = images.labels.copy()
    labels[::4] = 1  # some that the network will not give
    np.savez(folder / "data.npz", images=images.images, labels=labels)
    config = {"command": "quantize", "data": f"npz:{folder}/data.npz", "sigma": SIGMA}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    certify(run, out=run, **{**HOW, **options})
    return run


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return make(tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory):
    return make(tmp_path_factory.mktemp("adaptive"), n=2000, adaptive=True, tolerance=0.1)


@pytest.fixture
def run(honest, tmp_path):
    return shutil.copytree(honest, tmp_path / "run")


def certificates(run, **options):
    """What `check` finds about the certificates."""
    return next(f for f in check(run, arch=ARCH, **options) if f.check == "certificates")


def test_honest_certificates_pass_whatever_is_drawn(honest, adaptive):
    for run in (honest, adaptive):
        for _ in range(3):
            found = certificates(run)
            assert found.passed, found.detail
            assert "as recorded" in found.detail
            assert found.unverified == ()
        findings = check(run, arch=ARCH, replay=5, fresh=5, min_acr=0.0)
        assert all(finding.passed for finding in findings), findings
        assert {finding.check for finding in findings} >= {"replay", "fresh", "min-acr"}


def test_the_rows_are_neither_all_sure_nor_all_right(honest):
    """Else the forgeries below would change nothing."""
    found = read_certificates(honest)
    assert 0.1 < found.clean_accuracy < 0.95
    assert np.mean([row.votes < row.n for row in found.certificates]) > 0.5


def unanimous(rows, settings):
    return [voted(row, settings, {tried(row): settings.n}, tried(row), select_votes=settings.n0) for row in rows]


def scaled(rows, settings):
    factor = settings.n // rows[0].n
    return [voted(row, settings, {c: k * factor for c, k in row.counts}, tried(row)) for row in rows]


def all_right(rows, settings):
    """Predictions and votes moved to the label."""
    forged = []
    for row in rows:
        counts, top = dict(row.counts), max(row.counts, key=lambda pair: pair[1])[0]
        counts[row.label], counts[top] = counts[top], counts.get(row.label, 0)
        forged.append(voted(row, settings, {c: k for c, k in counts.items() if k}, row.label))
    return forged


def swapped(rows, settings):
    """Each row has the votes of the next image."""
    return [
        dataclasses.replace(other, idx=row.idx, label=row.label)
        for row, other in zip(rows, [*rows[1:], rows[0]], strict=True)
    ]


def claimed(rows, settings):
    """Abstentions become claims with a few votes more."""
    few = settings.n * 7 // 10
    return [
        voted(row, settings, {tried(row): few, (tried(row) + 1) % 4: settings.n - few}, tried(row))
        if row.abstained
        else row
        for row in rows
    ]


def selected(rows, settings):
    return [dataclasses.replace(row, select_votes=settings.n0) for row in rows]


FORGERIES = {
    "all votes for one class": (unanimous, {}),
    "n raised, unanimous": (unanimous, {"n": 3000}),
    "n raised, the same shares": (scaled, {"n": 3000}),
    "every prediction right": (all_right, {}),
    "rows swapped": (swapped, {}),
    "abstentions claimed": (claimed, {}),
    "votes of the selection": (selected, {}),
    "another seed": (lambda rows, settings: rows, {"seed": 1}),
    "another sigma": (lambda rows, settings: [voted(r, settings, dict(r.counts), tried(r)) for r in rows], {"sigma": 1.0}),
    "another model": (lambda rows, settings: rows, {"model": "0" * 64}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_careful_forgeries_do_not_pass(run, name):
    rows, changes = FORGERIES[name]
    forge(run, rows, **changes)
    found = certificates(run)
    assert not found.passed, found.detail
    assert not next(f for f in check(run, arch=ARCH, min_acr=0.0) if f.check == "min-acr").passed


@pytest.mark.parametrize("name", ["all votes for one class", "every prediction right", "rows swapped"])
def test_gross_forgeries_are_found_on_another_processor_too(run, name):
    """There votes may differ, so that only what contradicts the model is found."""
    elsewhere = {"record": lambda record: record["machine"].update(processor="another")}
    forge(run, **elsewhere)
    found = certificates(run)
    assert found.passed
    assert "another engine, version or processor" in found.detail
    forge(run, FORGERIES[name][0], **elsewhere)
    assert not certificates(run).passed


def sidecar(run, path, value):
    data = json.loads((run / "certificates.json").read_text())
    *parents, last = path.split(".")
    place = data
    for parent in parents:
        place = place[parent]
    place[last] = value(place[last]) if callable(value) else value
    (run / "certificates.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("settings.seed", 1),
        ("settings.alpha_per_image", 1e-9),
        ("settings.norm", "linf"),
        ("settings.family_wise", 2),
        ("provenance.identity.settings.n", 3000),
        ("provenance.identity.model", "0" * 64),
        ("provenance.model.fingerprint", "0" * 64),
        ("provenance.noise.key_id", "0" * 16),
        ("provenance.noise.total_variation", 0.0),
        ("provenance.engine.engine", "openvino"),
        ("provenance.engine.version", "9.9"),
        ("provenance.engine.precision", "bfloat16"),
        ("provenance.engine.precision", "int8"),
        ("provenance.data.images", 5),
        ("provenance.labels_sha256", "0" * 64),
        ("provenance.bound", "Hoeffding"),
        ("images_sha256", "0" * 64),
    ],
)
def test_an_edited_sidecar_does_not_pass(run, path, value):
    sidecar(run, path, value)
    assert not certificates(run).passed


def test_the_time_column_proves_nothing_and_may_be_anything(run):
    forge(run, lambda rows, settings: [dataclasses.replace(row, seconds=7.0) for row in rows])
    assert certificates(run).passed


@pytest.mark.parametrize("tolerance", [0.5, 0.001, None])
def test_another_stopping_rule_does_not_pass(adaptive, tmp_path, tolerance):
    run = shutil.copytree(adaptive, tmp_path / "run")
    forge(run, adaptive=Adaptive(tolerance=tolerance))
    assert not all(finding.passed for finding in check(run, arch=ARCH, replay=IMAGES))


def test_a_selection_by_results_is_named_and_carries_no_requirement(run):
    images = load_data(yaml.safe_load((run / "config.yaml").read_text())["data"], "certify")
    good = []

    def best(rows, settings):
        good.extend(position for position, row in enumerate(rows) if row.correct)
        return [rows[position] for position in good]

    forge(run, best)
    forge(run, images=images.take(good).fingerprint())
    found = {finding.check: finding for finding in check(run, arch=ARCH, min_acr=0.0)}
    assert found["certificates"].passed, found["certificates"].detail
    assert "picked by their results" in found["certificates"].unverified[0]
    assert not found["min-acr"].passed


def relabel(run):
    """Wrong rows relabelled, both hashes of the images zeroed."""
    forge(
        run,
        lambda rows, settings: [
            dataclasses.replace(row, label=row.predict) if not row.abstained else row for row in rows
        ],
        images="0" * 64,
    )


def test_relabelled_rows_carry_no_requirement(run, capsys):
    relabel(run)
    assert main(["check", str(run), "--arch", ARCH, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert any("images and labels" in text for text in answer["unverified"])
    assert "not who made them" in answer["shows"]
    assert main(["check", str(run), "--arch", ARCH, "--min-acr", "0.01"]) == 3
    assert "unverified, certificates: images and labels" in capsys.readouterr().out
    data = yaml.safe_load((run / "config.yaml").read_text())["data"]
    assert main(["check", str(run), "--arch", ARCH, "--data", data]) == 3
    assert "other images than --data" in capsys.readouterr().out


def test_what_is_not_at_hand_can_be_named(honest, tmp_path, capsys):
    """Without model and configuration nothing is replayed, until both are named."""
    for name in ("certificates.tsv", "certificates.json"):
        shutil.copyfile(honest / name, tmp_path / name)
    assert main(["check", str(tmp_path)]) == 0
    assert "the model is not at hand" in capsys.readouterr().out
    assert main(["check", str(tmp_path), "--min-certified", "0@0"]) == 3
    assert main(["check", str(tmp_path), "--replay", "2"]) == 3
    given = ["--model", str(honest / "model.safetensors"), "--arch", ARCH, "--data", f"npz:{honest.parent}/data.npz"]
    assert main(["check", str(tmp_path), "--min-certified", "0@0", "--replay", "2", "--fresh", "2", *given]) == 0
    assert main(["check", str(tmp_path), "--replay", "-1"]) == 2


@pytest.mark.parametrize("unfinished", [True, False])
def test_certify_does_not_go_on_with_forged_rows(run, unfinished):
    def forged(rows, settings):
        return unanimous(rows, settings)[: IMAGES // 2 if unfinished else IMAGES]

    forge(run, forged)
    sidecar(run, "rows", IMAGES)
    sidecar(run, "provenance.data.images", IMAGES)
    before = (run / "certificates.tsv").read_bytes()
    with pytest.raises(FileFormatError, match="not what this model and engine answer"):
        certify(run, out=run, **HOW)
    assert (run / "certificates.tsv").read_bytes() == before


def test_certify_goes_on_with_honest_rows(run, honest):
    table = run / "certificates.tsv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:9]))
    certify(run, out=run, **HOW)
    before, after = (read_certificates(folder).certificates for folder in (honest, run))
    assert [dataclasses.replace(row, seconds=0.0) for row in after] == [
        dataclasses.replace(row, seconds=0.0) for row in before
    ]


@pytest.mark.parametrize(("way", "drawn"), [("replay", 6), ("fresh", IMAGES)])
def test_forged_votes_do_not_pass_what_is_asked_for(run, monkeypatch, way, drawn):
    """Votes that a little luck cannot explain; the chunks that are drawn unasked see nothing here."""

    def lucky(rows, settings):
        forged = []
        for row in rows:
            klass, counts = tried(row), dict(row.counts)
            for other in [c for c in counts if c != klass]:
                moved = counts[other] * 3 // 4
                counts[klass], counts[other] = counts[klass] + moved, counts[other] - moved
            forged.append(voted(row, settings, counts, klass))
        return forged

    monkeypatch.setattr(evidence.Replayer, "spot_check", lambda self: evidence.Replay())
    forge(run, lucky)
    found = {finding.check: finding for finding in check(run, arch=ARCH, **{way: drawn})}
    assert found["certificates"].passed, found["certificates"].detail
    assert not found[way].passed
    assert "not what the model answers" in found[way].detail


def test_a_sidecar_cannot_ask_for_all_memory(run):
    sidecar(run, "provenance.engine.batch", 2**16)
    assert certificates(run).passed  # the images are small
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "_MOST_PIXELS", 2**16)
        found = certificates(run)
    assert not found.passed
    assert "asks for batches of 65,536 images" in found.detail


RANDOM = """
import torch
from tests.support.small_search import small_classifier

class Random(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small_classifier()

    def forward(self, x):
        return self.inner(x + 0.2 * torch.randn_like(x))

def factory():
    return Random()
"""


def test_a_network_that_draws_at_random_is_resumed_and_checked(tmp_path, monkeypatch):
    """Its votes are not repeated, but their law is: forgeries do not pass."""
    (tmp_path / "gamble.py").write_text(RANDOM)
    images = image_set(IMAGES, 3)
    np.savez(tmp_path / "data.npz", images=images.images, labels=images.labels)
    monkeypatch.chdir(tmp_path)
    words = ["certify", "gamble:factory", "npz:data.npz", "--out", "run", "--engine", "torch", "--threads", "1"]
    words += ["--sigma", "0.5", "--n", "300", "--classes", str(small_classifier().num_classes)]
    assert main(words) == 0
    table = tmp_path / "run" / "certificates.tsv"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:9]))
    assert main(words) == 0
    checked = ["check", "run", "--model", "gamble:factory", "--data", "npz:data.npz", "--replay", "5"]
    assert main(checked) == 0
    forge(tmp_path / "run", unanimous)
    assert main(checked) == 3
    assert main(words) == 2


def test_a_planted_bug_is_seen(run, monkeypatch):
    """If what is drawn again were not compared, forgeries would pass."""
    monkeypatch.setattr(evidence.Replayer, "spot_check", lambda self: evidence.Replay())
    forge(run, unanimous)
    assert certificates(run).passed
