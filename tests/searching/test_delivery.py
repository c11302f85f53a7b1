"""From a policy to a model that ships, and what becomes of the models of shorter searches."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from arquant.base.journal import Journal
from arquant.base.progress import silent
from arquant.base.run_folder import read_config
from arquant.certificates.files import read_certificates
from arquant.quantization.artifact import load_artifact
from arquant.quantization.policy import Policy
from arquant.searching.delivery import CHECKPOINT, Delivery
from arquant.searching.history import models_made
from arquant.searching.options import search_options
from arquant.searching.workbench import EngineOptions
from arquant.searching.workbench_setup import workbench_for
from arquant.training.checkpoint import read_checkpoint, save_checkpoint
from arquant.training.loop import train
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier, small_space

ARCH = "tests.support.small_search:factory"


@pytest.fixture
def delivery(tmp_path: Path) -> Iterator[Delivery]:
    options = search_options(
        SIGMA, final_steps=1, train_batch=16, n=32, n0=8, alpha=0.01, distill=0.0, train_precision="float32"
    )
    space = small_space()
    bench = workbench_for(
        small_classifier(), space.budget.cheapest(), image_set(64, 1), options, EngineOptions(), layers=space.layers,
        compiled=False,
    )  # fmt: skip
    with quick_engines(), Journal(tmp_path / "journal.jsonl", {}) as journal:
        yield Delivery(
            tmp_path,
            bench,
            options,
            image_set(4, 2),
            EngineOptions(),
            journal,
            {"command": "search"},
            {},
            silent,
            silent,
        )
    bench.close()


def test_a_model_that_was_made_again_is_set_aside_again(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (small_space().uniform(pair) for pair in small_space().uniform_pairs[:3])

    def make(policy):
        model = delivery.model(tmp_path, policy, examined=1)
        return delivery.certificates(tmp_path, model, "it", examined=1)

    before = make(first)
    with monkeypatch.context() as patch:
        patch.setattr("arquant.searching.workbench.train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(second)
    assert make(first).acr == before.acr
    (tmp_path / "certificates.partial.json").write_text("{}")  # as if its certification had not ended
    make(third)
    assert load_artifact(tmp_path / "model.safetensors", arch=ARCH).policy == third
    aside = tmp_path / "earlier" / "1"
    assert load_artifact(aside / "model.safetensors", arch=ARCH).policy == first
    assert (aside / "certificates.tsv").exists()
    assert (aside / "certificates.partial.json").exists()


def test_a_checkpoint_that_is_refused_leaves_nothing_behind(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small_space().uniform(small_space().uniform_pairs[0])
    undisturbed = delivery.model(tmp_path / "undisturbed", policy, examined=1)
    finetune, bench = delivery.workbench.finetune_, delivery.workbench

    def stopped(*args: Any, checkpoint: Path, **options: Any) -> None:
        finetune(*args, checkpoint=checkpoint, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bench, "finetune_", stopped)
        with pytest.raises(KeyboardInterrupt):
            delivery.model(tmp_path / "it", policy, examined=1)
    checkpoint = tmp_path / "it" / CHECKPOINT
    tensors, state = read_checkpoint(checkpoint)
    shifted = {name: value + 1 if name.endswith("weight") else value for name, value in tensors.items()}
    lacking = {name: value for name, value in shifted.items() if not name.endswith("bias")}
    save_checkpoint(checkpoint, lacking, {**state, "step": 0})
    assert delivery.model(tmp_path / "it", policy, examined=1).fingerprint() == undisturbed.fingerprint()
    assert not checkpoint.exists()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per training, no two of which give the same model: as on a GPU."""
    runs: list[int] = []

    def train_otherwise(model: Any, *args: Any, **options: Any) -> dict[str, Any]:
        record = train(model, *args, **options)
        runs.append(len(runs))
        with torch.no_grad():
            model.module[1].bias += 0.01 * len(runs)
        return record

    monkeypatch.setattr("arquant.searching.workbench.train", train_otherwise)
    return runs


def made_in(delivery: Delivery, folder: Path, policy: Policy) -> tuple[str, float]:
    """The fingerprint of the policy's model, and its ACR."""
    model = delivery.model(folder, policy, examined=1)
    assert (
        load_artifact(folder / "model.safetensors", arch=ARCH).policy == Policy.load(folder / "policy.json") == policy
    )
    return model.fingerprint(), delivery.certificates(folder, model, "it", examined=1).acr


@pytest.mark.parametrize("name", [".", "controls/uniform"])
def test_a_winner_that_wins_again_is_taken_back(
    delivery: Delivery, tmp_path: Path, trained: list[int], name: str
) -> None:
    folder = tmp_path / name
    first, second = (small_space().uniform(pair) for pair in small_space().uniform_pairs[:2])
    one, two = (made_in(delivery, folder, policy) for policy in (first, second))
    for policy, wanted in ((first, one), (first, one), (second, two), (first, one)):
        model = delivery.model(folder, policy, examined=1)
        assert model.fingerprint() == wanted[0]
        assert read_certificates(folder).acr == wanted[1]
        assert folder == tmp_path or read_config(folder)["policy"] == policy.widths()
    assert len(trained) == 2
    assert models_made(delivery.journal.records) == 2
    assert [path.parent.name for path in folder.glob("earlier/*/model.safetensors")] == ["4"]


@pytest.mark.parametrize("file", ["policy.json", "certificates.tsv", "model.safetensors"])
def test_killed_while_a_winner_is_taken_back_it_is_taken_back_later(
    delivery: Delivery, tmp_path: Path, trained: list[int], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    first, second = (small_space().uniform(pair) for pair in small_space().uniform_pairs[:2])
    one = made_in(delivery, tmp_path, first)
    made_in(delivery, tmp_path, second)
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self == tmp_path / "earlier" / "1" / file:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            delivery.model(tmp_path, first, examined=1)
    assert made_in(delivery, tmp_path, first) == one
    assert len(trained) == 2


def test_a_model_whose_file_is_gone_may_come_out_differently(
    delivery: Delivery, tmp_path: Path, trained: list[int]
) -> None:
    policy = small_space().uniform(small_space().uniform_pairs[0])
    before, acr = made_in(delivery, tmp_path, policy)
    (tmp_path / "model.safetensors").unlink()
    after = made_in(delivery, tmp_path, policy)
    assert after[0] != before
    assert read_certificates(tmp_path / "earlier" / before[:12]).acr == acr
    assert made_in(delivery, tmp_path, policy) == after
    assert len(trained) == 2
    assert models_made(delivery.journal.records) == 2, "both were certified on the same images"


def test_the_copy_of_a_model_that_came_out_differently_is_known(
    delivery: Delivery, tmp_path: Path, trained: list[int]
) -> None:
    policy, control = small_space().uniform(small_space().uniform_pairs[0]), tmp_path / "controls" / "uniform"
    for _ in range(2):
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        made = made_in(delivery, tmp_path, policy)
        assert delivery.certified(control, policy, "control", examined=1, twin=tmp_path).acr == made[1]
    assert made_in(delivery, control, policy) == made
    assert len(trained) == 2


@pytest.mark.parametrize("at", ["model.safetensors", "certificates.json", "certificates.tsv"])
def test_killed_while_a_model_is_copied_it_is_copied_later(
    delivery: Delivery, tmp_path: Path, trained: list[int], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    policy, control = small_space().uniform(small_space().uniform_pairs[0]), tmp_path / "controls" / "uniform"
    made = made_in(delivery, tmp_path, policy)
    copyfile = shutil.copyfile

    def killed(source: Path, target: Path) -> None:
        copyfile(source, target)
        if source.name == at:
            target.write_bytes(source.read_bytes()[:-20])
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            delivery.certified(control, policy, "control", examined=1, twin=tmp_path)
    assert not (control / at).exists()
    assert delivery.certified(control, policy, "control", examined=1, twin=tmp_path).acr == made[1]
    assert made_in(delivery, control, policy) == made
    assert len(trained) == 1
