"""What a strategy is given to prepare with: a network of its own, a trainer, and results that outlive a kill."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from arquant.base.errors import InputError
from arquant.base.progress import silent
from arquant.engines.choice import EngineOptions
from arquant.quantization.calibration import NoisyImages
from arquant.quantization.quantized import quantize
from arquant.searching.context import context_for
from arquant.searching.testing import toy_context, toy_space
from arquant.searching.workbench import Workbench
from arquant.training.recipe import Recipe
from tests.support.small_search import SIGMA, image_set, small_classifier, small_layers, small_space

RECIPE = Recipe(sigma=SIGMA, steps=3, batch=16, lr=0.01, augment=False)


@pytest.fixture(scope="module")
def calibrate():
    return image_set(64, 100)


@pytest.fixture(scope="module")
def bench(calibrate):
    classifier = small_classifier()
    quantized = quantize(
        classifier, small_space().uniform(8), calibrate, sigma=SIGMA, clip="max", learn="lsq", layers=small_layers()
    )
    return Workbench(classifier, quantized, calibrate, engines=EngineOptions(device="cpu", threads=1), compiled=False)


def context(bench, folder, **changes):
    settings = {"sigma": SIGMA, "seed": 0, "recipe": RECIPE, "final_recipe": RECIPE, "report": silent, **changes}
    return context_for(bench, settings.pop("space", small_space()), folder=folder, **settings)


def weights(model):
    named = model.module.named_parameters()
    return torch.cat([parameter.detach().flatten() for name, parameter in named if ".quantizer." not in name])


def test_it_shows_the_network_and_the_calibration_images(bench, calibrate, tmp_path):
    found = context(bench, tmp_path, sigma=0.3, seed=4)
    assert found.classifier is not bench.classifier
    assert found.classifier.fingerprint() == bench.classifier.fingerprint()
    assert not found.classifier.training
    assert found.calibrate is calibrate
    assert (found.sigma, found.noise, found.seed, found.device, found.threads) == (0.3, "grid", 4, "cpu", 1)
    assert (found.recipe, found.folder) == (RECIPE, tmp_path)


def test_every_quantized_copy_is_fresh_and_on_the_cheapest_policy(bench, tmp_path):
    found = context(bench, tmp_path)
    before = bench.quantized.fingerprint()
    one = found.quantized()
    assert one.policy == small_space().budget.cheapest()
    assert (one.clip, one.learn, one.per_channel) == ("max", "lsq", False)
    assert torch.equal(weights(one), weights(bench.classifier))
    other = found.quantized()
    one.set_policy_(small_space().uniform(4))
    found.train(one)
    assert other.fingerprint() == found.quantized().fingerprint()
    assert bench.quantized.fingerprint() == before
    assert torch.equal(weights(found.classifier), weights(bench.classifier))


def test_a_copy_starts_as_a_candidate_of_the_workbench_does(bench, calibrate, tmp_path):
    statistics = NoisyImages(calibrate, bench.classifier, sigma=SIGMA, count=32)
    estimating = Workbench(bench.classifier, bench.quantized, calibrate, statistics=statistics, compiled=False)
    copies = [context(each, tmp_path).quantized() for each in (bench, estimating)]
    estimating.set_(small_space().budget.cheapest())
    assert copies[1].fingerprint() == estimating.quantized.fingerprint() != copies[0].fingerprint()


def test_training_has_the_float_network_as_teacher_where_the_recipe_distils(bench, tmp_path):
    found = context(bench, tmp_path)
    plain, taught, again = (found.quantized() for _ in range(3))
    assert found.train(plain)["steps"] == 3
    for model in (taught, again):
        found.train(model, replace(RECIPE, distill=1.0))
    assert not torch.equal(weights(plain), weights(taught))
    assert torch.equal(weights(taught), weights(again))


def test_a_training_resumes_from_a_checkpoint_in_a_folder_that_was_not_there(bench, tmp_path):
    found = context(bench, tmp_path / "a" / "b")
    model, resumed = found.quantized(), found.quantized()
    checkpoint = found.folder / "training.safetensors"
    found.train(model, checkpoint=checkpoint)
    assert checkpoint.is_file()
    found.train(resumed, checkpoint=checkpoint)
    assert torch.equal(weights(model), weights(resumed))


ARRAYS = {
    "table": np.arange(6.0).reshape(2, 3).T,
    "count": np.array(3),
    "none": np.empty((0, 2), np.float32),
    "bits": np.array([1, -2], np.int8),
}


def kept(found, arrays=None, name="table", **more):
    """Return what is kept, and how often it was computed for that."""
    calls = []
    return found.kept(name, lambda: calls.append(1) or arrays or ARRAYS, **more), len(calls)


def test_what_was_computed_is_found_again(bench, tmp_path):
    first, calls = kept(context(bench, tmp_path / "own"))
    assert calls == 1
    second, calls = kept(context(bench, tmp_path / "own"), {"table": np.zeros(1)})
    assert calls == 0
    for found in (first, second):
        assert set(found) == set(ARRAYS)
        assert all(found[key].dtype == value.dtype and (found[key] == value).all() for key, value in ARRAYS.items())
        assert all(found[key].shape == value.shape for key, value in ARRAYS.items())
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["table.safetensors"]


def test_results_of_different_names_do_not_meet(bench, tmp_path):
    found = context(bench, tmp_path)
    kept(found)
    assert kept(found, name="other")[1] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"sigma": 0.5},
        {"seed": 1},
        {"recipe": replace(RECIPE, steps=4)},
        {"space": small_space()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_result_of_other_settings_is_computed_anew(bench, tmp_path, change):
    if "space" in change:
        budget = replace(small_space().budget, min_bits=3)
        change = {"space": replace(small_space(), budget=budget)}
    kept(context(bench, tmp_path))
    assert kept(context(bench, tmp_path, **change))[1] == 1
    assert kept(context(bench, tmp_path, **change))[1] == 0


def test_other_options_images_and_networks_count_too(bench, calibrate, tmp_path):
    kept(context(bench, tmp_path), options={"count": 3})
    assert kept(context(bench, tmp_path), options={"count": 3})[1] == 0
    assert kept(context(bench, tmp_path), options={"count": 4})[1] == 1
    images = Workbench(bench.classifier, bench.quantized, image_set(64, 101), compiled=False)
    assert kept(context(images, tmp_path), options={"count": 4})[1] == 1
    other = small_classifier()
    with torch.no_grad():
        next(other.module.parameters()).add_(1e-3)
    network = Workbench(other, bench.quantized, image_set(64, 101), compiled=False)
    assert kept(context(network, tmp_path), options={"count": 4})[1] == 1


def test_budgets_of_one_search_share_a_result(bench, tmp_path):
    kept(context(bench, tmp_path))
    assert kept(context(bench, tmp_path, space=small_space("bytes<=4bit")))[1] == 0


def test_a_kill_or_damage_leaves_nothing_that_is_taken_for_a_result(bench, tmp_path):
    found = context(bench, tmp_path)

    def killed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.kept("table", killed)
    kept(found)
    path = tmp_path / "table.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    assert kept(found)[1] == 1
    path.write_bytes(b"something else")
    assert kept(found)[1] == 1
    assert kept(found)[1] == 0


@pytest.mark.parametrize("name", ["", "../table", "a/b", "table.safetensors"])
def test_a_name_that_is_no_file_of_the_folder_is_refused(bench, tmp_path, name):
    with pytest.raises(InputError, match="needs a name"):
        kept(context(bench, tmp_path), name=name)


def test_the_toy_context_counts_the_work(tmp_path):
    found = toy_context(toy_space(), tmp_path)
    found.kept("table", lambda: {"x": np.zeros(1)})
    found.kept("table", lambda: {"x": np.zeros(1)})
    found.train(found.quantized())
    assert found.work == ["table", "train"]
