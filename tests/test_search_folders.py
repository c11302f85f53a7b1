"""What other commands do in the folder of a search, and what a search makes of it when it is called again."""

import shlex

import numpy as np
import pytest

from arquant import search_run
from arquant.cli import main
from arquant.commands.certification import certify
from arquant.commands.prediction import predict
from arquant.commands.quantizing import finetune
from arquant.commands.searching import search
from arquant.errors import InputError, Interrupted
from arquant.smoothing import Smoothed
from tests.small_search import CLASSES, SHAPE, SIGMA, image_set, quick_engines

ARCH = "tests.small_search:factory"
SIZES = {"search": (20, 1), "calibrate": (64, 2), "certify": (6, 3)}
SMALL = {
    "strategy": "uniform", "trials": 1, "search_n": 48, "reference_n": 160, "n0": 16, "n": 120, "steps": 1, "final_steps": 2,
    "train_batch": 32, "shortlist": 1, "compiled": False, "controls": (),
    "model_options": {"input_shape": SHAPE, "num_classes": CLASSES},
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


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def test_what_an_interrupted_search_found_can_be_taken_on(data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(search_run, "winner_of", interrupt)
    with pytest.raises(Interrupted):
        run_search(data, out, model_options={**SMALL["model_options"], "bounds": (0.0, 1.0)})
    with pytest.raises(InputError, match="made no model yet: the command that began it goes on") as refused:
        finetune(out, **FINETUNE)
    command = str(refused.value).partition("of its own: ")[2]
    assert command == (
        f"arquant quantize {ARCH} npz:{data}/calibrate.npz --input 3,8,8 --classes 4 --policy {out}/policy.json "
        f"--sigma {SIGMA} --out OTHER"
    )
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command)[1:], "--calibration-images", "8", "-q"]) == 0
    finetune("OTHER", **FINETUNE)


def test_a_search_that_has_found_nothing_goes_on(data, tmp_path, monkeypatch):
    monkeypatch.setattr("arquant.study.Study._step", interrupt)
    with pytest.raises(Interrupted):
        run_search(data, tmp_path)
    with pytest.raises(InputError, match="the command that began it goes on$"):
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
