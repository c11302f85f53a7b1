"""Batches of photos: decoded ahead, cropped by (seed, epoch, image), and a killed run ends like one that was never killed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from arquant.base.errors import InputError
from arquant.base.progress import Status
from arquant.images import photos as photos_module
from arquant.images.imageset import ImageSet
from arquant.loading.datasets import load_data
from arquant.training.batches import (
    TrainingPhotos,
    _chosen,
    data_digest,
    noisy_batch,
    resized_parts,
    source_of,
    visited,
)
from arquant.training.checkpoint import identity_of
from arquant.training.loop import train
from arquant.training.recipe import Recipe
from tests.support.photo_folders import photo_folder
from tests.support.small_search import small_classifier

RECIPE = Recipe(sigma=0.1, steps=8, batch=8, lr=0.05)
RESIZED = replace(RECIPE, crops="resized:0.3")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    return photo_folder(tmp_path_factory.mktemp("photos"), ("a", "b", "c", "d"), 6, size=(14, 10))


@pytest.fixture
def photos(spec: str) -> ImageSet:
    return load_data(spec, "calibrate", size=(3, 8, 8))


@pytest.fixture
def array(spec: str) -> ImageSet:
    return load_data(spec, "certify", size=(3, 8, 8))


def test_padded_crops_of_photos_are_those_of_the_array(photos: ImageSet, array: ImageSet) -> None:
    assert isinstance(source_of(photos)[0], TrainingPhotos)
    for step in (0, 1, 5, 3):
        for one, other in zip(*(noisy_batch(*source_of(each), RECIPE, step) for each in (photos, array)), strict=True):
            assert torch.equal(one, other)


def test_a_run_on_few_photos_is_the_run_on_their_array(photos: ImageSet, array: ImageSet) -> None:
    first, second = (identity_of(small_classifier(), RECIPE, *source_of(each)) for each in (photos, array))
    assert first == second


def test_a_run_on_many_photos_is_known_without_decoding(photos: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos_module, "FEW", 4)
    source, labels = source_of(photos)
    assert isinstance(source, TrainingPhotos)
    digest = data_digest(source, labels)
    assert not len(source.photos.read_so_far())
    assert digest != data_digest(source, labels.flip(0))
    assert digest != data_digest(source[torch.arange(20)], labels)


def test_resized_crops_are_a_function_of_seed_epoch_and_image(photos: ImageSet) -> None:
    source, labels = source_of(photos)
    clean = replace(RESIZED, sigma=0.0)
    numbers = torch.arange(len(labels))

    def crops(recipe: Recipe, steps: range) -> dict[int, torch.Tensor]:
        batches = [noisy_batch(source, numbers, recipe, step) for step in steps]
        return {int(n): image for images, chosen in batches for image, n in zip(images, chosen, strict=True)}

    epoch, again = crops(clean, range(3)), crops(replace(clean, batch=12), range(2))
    assert all(torch.equal(epoch[number], again[number]) for number in range(24)), "whatever the batch"
    for other in (crops(clean, range(3, 6)), crops(replace(clean, seed=1), range(3))):
        assert not any(torch.equal(image, other[number]) for number, image in epoch.items())
    plain = crops(replace(clean, augment=False), range(3))
    assert all(np.array_equal(np.rint(plain[n].numpy() * 255), photos.images[n]) for n in range(24))


def test_resized_crops_of_an_array_are_parts_of_it() -> None:
    ramp = torch.arange(16, dtype=torch.uint8).mul(16).view(1, 1, 1, 16).expand(40, 3, 16, 16)
    parts = resized_parts(ramp, 0.2, range(40))
    assert parts.dtype == torch.uint8
    assert parts.shape == ramp.shape
    rising = (parts[:, 0, 0, 15] > parts[:, 0, 0, 0]).sum()
    assert 8 < rising < 32, "about half are mirrored"
    assert torch.equal(parts[3:4], resized_parts(ramp[3:4], 0.2, [3]))
    floats = resized_parts(ramp.float() / 255, 0.2, range(40))
    torch.testing.assert_close(floats, parts.float() / 255, atol=0.5 / 255 + 1e-6, rtol=0)


def test_a_killed_run_on_photos_resumes_to_the_same_weights(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh() -> ImageSet:
        return load_data(spec, "calibrate", size=(3, 8, 8))

    straight, killed, resumed = small_classifier(), small_classifier(), small_classifier()
    train(straight, *source_of(fresh()), RESIZED, compiled=False)

    def kill(status: Status) -> None:
        if status.done >= 4 * RESIZED.batch:
            raise KeyboardInterrupt

    monkeypatch.setattr("arquant.training.loop.REPORT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(
            killed, *source_of(fresh()), RESIZED, compiled=False, checkpoint=tmp_path / "c.safetensors",
            checkpoint_seconds=0.0, report=kill,
        )  # fmt: skip
    train(resumed, *source_of(fresh()), RESIZED, compiled=False, checkpoint=tmp_path / "c.safetensors")
    weights = straight.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in resumed.state_dict().items())


def test_the_next_batch_is_decoded_meanwhile(photos: ImageSet) -> None:
    source, labels = source_of(photos)
    assert isinstance(source, TrainingPhotos)
    noisy_batch(source, labels, RECIPE, 0)
    source.ahead.result()
    assert len(source.photos.read_so_far()) == 16


def test_crops_are_part_of_the_recipe_where_they_are_not_the_usual_ones() -> None:
    assert "crops" not in RECIPE.facts()
    assert RESIZED.facts()["crops"] == "resized:0.3"
    with pytest.raises(InputError, match="valid are padded"):
        replace(RECIPE, crops="any")


@pytest.mark.parametrize(
    "changes", [{"steps": 2}, {"steps": 7}, {"images": 10, "steps": 1}, {"steps": 1, "settle_batchnorm": 1}]
)
def test_the_photos_that_a_run_reads_are_known(photos: ImageSet, array: ImageSet, changes: dict[str, int]) -> None:
    recipe = replace(RECIPE, batch=10, **changes)
    used = visited(photos, recipe)
    model = small_classifier()
    source, labels = source_of(photos)
    read: set[int] = set()
    assert isinstance(source, TrainingPhotos)
    decode = TrainingPhotos._decode

    def noted(self: TrainingPhotos, recipe: Recipe, step: int) -> np.ndarray:
        if step < recipe.steps + recipe.settle_batchnorm:  # the batch after the last is decoded in vain
            read.update(self.photos.numbers[_chosen(len(self), recipe, step)[0]].tolist())
        return decode(self, recipe, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingPhotos, "_decode", noted)
        train(model, source, labels, recipe, compiled=False)
    assert read == set(used.indices.tolist())
    assert visited(array, recipe) is array


def test_some_of_the_photos_are_trained_on(photos: ImageSet, array: ImageSet) -> None:
    some = replace(RECIPE, images=10, steps=2)
    one, other = small_classifier(), small_classifier()
    train(one, *source_of(photos), some, compiled=False)
    train(other, *source_of(array), some, compiled=False)
    assert one.fingerprint() == other.fingerprint()
