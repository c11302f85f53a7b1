"""What other commands do in the folder of a search, and what a search makes of it when it is called again."""

import shlex
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from arquant.base.errors import InputError, Interrupted
from arquant.certificates.files import read_certificates, read_sidecar
from arquant.certification.smoothing import Smoothed
from arquant.commands.certify import certify
from arquant.commands.finetune import finetune
from arquant.commands.main import main
from arquant.commands.predict import predict
from arquant.commands.search import search
from arquant.commands.watch import watch, watch_lines
from arquant.quantization.artifact import load_artifact
from arquant.searching import run as search_run
from arquant.searching.history import models_made
from arquant.searching.journal_lines import read_search_journal
from tests.support.small_search import CLASSES, SHAPE, SIGMA, image_set, quick_engines

ARCH = "tests.support.small_search:factory"
SIZES = {"search": (20, 1), "calibrate": (64, 2), "certify": (6, 3)}
SMALL = {
    "strategy": "uniform", "trials": 1, "search_n": 48, "reference_n": 160, "n0": 16, "n": 120, "steps": 1, "final_steps": 2,
    "train_batch": 32, "shortlist": 1, "compiled": False, "controls": (),
    "input": SHAPE, "classes": CLASSES,
}  # fmt: skip
FINETUNE = {"steps": 1, "batch": 32, "arch": ARCH}
CERTIFY = {"n0": 16, "n": 120, "arch": ARCH}


@pytest.fixture(scope="module", autouse=True)
def _quick_engines():
    with quick_engines():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The images of every role, in files."""
    folder = tmp_path_factory.mktemp("data")
    for role, (count, seed) in SIZES.items():
        images = image_set(count, seed, role)
        np.savez(folder / f"{role}.npz", images=images.images, labels=images.labels)
    return folder


def run_search(data, out, budget="bops<=3bit", **changes):
    roles = {role: f"npz:{data / role}.npz" for role in ("calibrate", "certify")}
    return search(
        ARCH, f"npz:{data / 'search.npz'}", sigma=SIGMA, budget=budget, out=out, **roles, **{**SMALL, **changes}
    )


def test_the_noise_of_a_search_is_that_of_later_commands(data, tmp_path, monkeypatch):
    notes, seen = [], []
    budgets = ["bops<=3bit", "bops<=4bit"]
    run_search(data, tmp_path, budgets, trials=2, noise="laplace", note=notes.append)
    told = "fine-tuning adds Gaussian noise of the same standard deviation, all else laplace noise"
    assert notes.count(told) == 1
    point = tmp_path / "points" / "bops-3bit"
    assert certify(point, out=point, **CERTIFY).certificates.settings.noise == "laplace"
    monkeypatch.setattr(Smoothed, "predict", lambda self, *_, **__: seen.append(self.noise.kind) or [])
    predict(point, arch=ARCH)
    predict(point, noise="grid", arch=ARCH)
    assert seen == ["laplace", "grid"]
    notes.clear()
    finetune(point, note=notes.append, **FINETUNE)
    assert told in notes


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    return out, run_search(data, out)


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the folder of a finished search."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def forbidden(*args, **kwargs):
    raise AssertionError("nothing is left to train or to certify")


def fingerprint(folder):
    return load_artifact(folder / "model.safetensors", arch=ARCH).fingerprint()


def test_fine_tuning_takes_back_what_the_search_said_of_its_model(run, data):
    notes = []
    finetune(run, note=notes.append, **FINETUNE)
    assert any("summary.json is gone" in note for note in notes)
    snapshot = watch(run)
    assert (snapshot.summary, snapshot.stage, dict(snapshot.certified)) == (None, "delivery", {})
    assert not any("ACR" in line for line in watch_lines(snapshot))


def test_a_search_puts_its_own_model_back(run, finished, data, monkeypatch):
    own, notes = fingerprint(run), []
    finetune(run, **FINETUNE)
    tuned = fingerprint(run)
    certify(run, out=run, **CERTIFY)
    assert models_made(read_search_journal(run / "journal.jsonl")[1]) == 2
    with monkeypatch.context() as patch:
        patch.setattr("arquant.searching.workbench.train", forbidden)
        patch.setattr(Smoothed, "certify", forbidden)
        again = run_search(data, run, note=notes.append)
    assert (fingerprint(run), fingerprint(run / "models" / tuned[:12])) == (own, tuned)
    assert any(f"the one before, and what was made of it, is in {run / 'models' / tuned[:12]}" in n for n in notes)
    certified = read_sidecar(run / "models" / tuned[:12] / "certificates.json")["provenance"]["model"]["fingerprint"]
    assert certified == tuned
    assert again["certified"] == finished[1]["certified"]
    assert (again["models_certified"], finished[1]["models_certified"]) == (2, 1)
    assert watch(run).summary is not None
    # and from there on as before
    finetune(run, **FINETUNE)
    assert fingerprint(run) == tuned


def test_a_model_that_was_only_fine_tuned_is_not_counted(run, data):
    finetune(run, **FINETUNE)
    certify(run, images="first:3", out=run.parent / "others", **CERTIFY)
    assert run_search(data, run)["models_certified"] == 1


def test_killed_while_it_puts_its_model_back_a_search_ends_the_same(run, finished, data, tmp_path, monkeypatch):
    finetune(run, **FINETUNE)
    certify(run, out=run, **CERTIFY)
    tuned, acr, replace = fingerprint(run), read_certificates(run).acr, Path.replace
    step, killed = 0, True
    while killed:
        step += 1
        out, left, killed = shutil.copytree(run, tmp_path / str(step)), step, False

        def sometimes(self, target, out=out):
            nonlocal left, killed
            left -= "models" in Path(target).parts or self.parent == out
            if left == 0:
                killed = True
                left = -1  # once: what is saved on the way out is not interrupted too
                raise KeyboardInterrupt
            return replace(self, target)

        with monkeypatch.context() as patch:
            patch.setattr("arquant.searching.workbench.train", forbidden)
            patch.setattr(Smoothed, "certify", forbidden)
            with patch.context() as kill, suppress(Interrupted):
                kill.setattr(Path, "replace", sometimes)
                run_search(data, out)
            assert run_search(data, out)["certified"] == finished[1]["certified"]
        assert fingerprint(out / "models" / tuned[:12]) == tuned
        assert read_certificates(out / "models" / tuned[:12]).acr == acr
    assert step > 8


def test_another_winner_leaves_both_earlier_models(run, data, monkeypatch):
    own = fingerprint(run)
    finetune(run, **FINETUNE)
    tuned = fingerprint(run)
    monkeypatch.setattr(search_run, "winner_of", lambda track, study, *_: (study.candidates[1], []))
    run_search(data, run, trials=2)
    assert [fingerprint(run / "models" / name[:12]) for name in (own, tuned)] == [own, tuned]
    assert (run / "models" / own[:12] / "certificates.tsv").exists()


def test_a_fine_tuned_control_is_set_aside_too(data, tmp_path):
    run_search(data, tmp_path, controls=("uniform",))
    control = tmp_path / "controls" / "uniform"
    own = fingerprint(control)
    finetune(control, **FINETUNE)
    tuned = fingerprint(control)
    assert not (tmp_path / "summary.json").exists()
    run_search(data, tmp_path, controls=("uniform",))
    assert (fingerprint(control), fingerprint(tmp_path / "models" / tuned[:12])) == (own, tuned)


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def test_what_an_interrupted_search_found_can_be_taken_on(data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(search_run, "winner_of", interrupt)
    with pytest.raises(Interrupted):
        run_search(
            data, out, clip="kl", per_channel=True, noise="laplace",
        )  # fmt: skip
    with pytest.raises(InputError, match="made no model yet: the command that began it goes on") as refused:
        finetune(out, **FINETUNE)
    command = str(refused.value).partition("of its own: ")[2]
    assert command == (
        f"arquant quantize {ARCH} npz:{data}/calibrate.npz --input 3,8,8 --classes 4 --policy {out}/policy.json "
        f"--sigma {SIGMA} --out OTHER --noise laplace --clip kl --per-channel"
    )
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command)[1:], "--calibration-images", "8", "-q"]) == 0
    finetune("OTHER", **FINETUNE)


def test_a_search_that_has_found_nothing_goes_on(data, tmp_path, monkeypatch):
    monkeypatch.setattr("arquant.searching.study.Study._step", interrupt)
    with pytest.raises(Interrupted):
        run_search(data, tmp_path)
    with pytest.raises(InputError, match=r"the command that began it goes on$"):
        finetune(tmp_path, **FINETUNE)


def test_the_models_of_several_budgets_are_named(data, tmp_path, monkeypatch):
    budgets, places = ["bops<=3bit", "bops<=4bit"], [tmp_path / "points" / f"bops-{bits}bit" for bits in (3, 4)]
    with monkeypatch.context() as patch:
        patch.setattr(search_run, "winner_of", interrupt)
        with pytest.raises(Interrupted):
            run_search(data, tmp_path, budgets, trials=2)
    with pytest.raises(InputError) as refused:
        finetune(tmp_path, **FINETUNE)
    assert all(f"--policy {place}/policy.json" in str(refused.value) for place in places)
    run_search(data, tmp_path, budgets, trials=2)
    with pytest.raises(InputError, match=f"several budgets; fine-tune {places[0]} or {places[1]}$"):
        finetune(tmp_path, **FINETUNE)
