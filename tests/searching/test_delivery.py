"""From a policy to a model that ships: made once, certified once, shown in one folder or several, kept for ever."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arquant.base.errors import MismatchError
from arquant.base.journal import Journal
from arquant.base.progress import silent
from arquant.base.run_folder import read_config
from arquant.certificates.files import CertificateWriter, read_certificates, read_sidecar
from arquant.engines.choice import EngineOptions
from arquant.quantization.artifact import load_artifact, read_provenance, save_artifact
from arquant.quantization.policy import Policy
from arquant.searching.delivery import CHECKPOINT, Delivery
from arquant.searching.history import models_made
from arquant.searching.journal_lines import Model, SearchJournal, read_line
from arquant.searching.options import search_options
from arquant.searching.release import Releases, is_certified
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
    with quick_engines(), SearchJournal(tmp_path / "journal.jsonl", {}, read_line) as journal:
        yield Delivery(
            tmp_path,
            bench,
            options,
            image_set(4, 2),
            options.smoothing(),
            journal,
            {"command": "search"},
            {},
            silent,
            silent,
        )
    bench.close()


def policies(count: int) -> list[Policy]:
    return [small_space().uniform(pair) for pair in small_space().uniform_pairs[:count]]


def shown(delivery: Delivery, place: Path, policy: Policy, examined: int = 1) -> tuple[str, float]:
    """The fingerprint and the ACR of what a folder shows, after it was asked to show a policy."""
    acr = delivery.certified(place, policy, "it", examined=examined).acr
    model = load_artifact(place / "model.safetensors", arch=ARCH)
    assert model.policy == Policy.load(place / "policy.json") == policy
    release = delivery.releases.folder(model.fingerprint())
    assert delivery.releases.current()[str(place.relative_to(delivery.root))] == model.fingerprint()
    assert (release / "certificates.tsv").read_bytes() == (place / "certificates.tsv").read_bytes()
    assert read_certificates(place).acr == acr
    assert place == delivery.root or read_config(place)["policy"] == policy.widths()
    return model.fingerprint(), acr


def test_a_checkpoint_that_is_refused_leaves_nothing_behind(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small_space().uniform(small_space().uniform_pairs[0])
    undisturbed, _ = shown(delivery, tmp_path, policy)
    shutil.rmtree(tmp_path / "models")
    (tmp_path / "model.safetensors").unlink()
    finetune, bench = delivery.workbench.finetune_, delivery.workbench

    def stopped(*args: Any, checkpoint: Path, **options: Any) -> None:
        finetune(*args, checkpoint=checkpoint, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bench, "finetune_", stopped)
        with pytest.raises(KeyboardInterrupt):
            shown(delivery, tmp_path, policy)
    (checkpoint,) = tmp_path.glob(f"models/*/{CHECKPOINT}")
    tensors, state = read_checkpoint(checkpoint)
    shifted = {name: value + 1 if name.endswith("weight") else value for name, value in tensors.items()}
    lacking = {name: value for name, value in shifted.items() if not name.endswith("bias")}
    save_checkpoint(checkpoint, lacking, {**state, "step": 0})
    assert shown(delivery, tmp_path, policy)[0] == undisturbed
    assert not checkpoint.parent.exists()


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


@pytest.mark.parametrize("name", [".", "controls/uniform"])
def test_a_winner_that_wins_again_is_not_made_again(
    delivery: Delivery, tmp_path: Path, trained: list[int], name: str
) -> None:
    place, (first, second) = tmp_path / name, policies(2)
    one, two = (shown(delivery, place, policy) for policy in (first, second))
    for policy, wanted in ((first, one), (first, one), (second, two), (first, one)):
        assert shown(delivery, place, policy) == wanted
    assert len(trained) == 2
    assert models_made(delivery.journal.lines) == 2
    assert {path.name for path in (tmp_path / "models").iterdir()} == {one[0][:12], two[0][:12]}


def test_folders_share_a_release_and_each_says_how_it_was_chosen(
    delivery: Delivery, tmp_path: Path, trained: list[int]
) -> None:
    (policy,) = policies(1)
    places = [tmp_path, tmp_path / "controls" / "uniform", tmp_path / "points" / "b"]
    assert (
        len({shown(delivery, place, policy, examined) for place, examined in zip(places, (9, 1, 9), strict=True)}) == 1
    )
    assert len(trained) == 1
    for place, examined in ((places[0], 9), (places[1], 1), (places[2], 9)):
        assert read_provenance(place / "model.safetensors")["candidates_examined"] == examined
        assert read_sidecar(place / "certificates.json")["provenance"]["candidates_examined"] == examined
    lines = [line for line in delivery.journal.lines if isinstance(line, Model)]
    assert [(line.folder, bool(line.seconds)) for line in lines] == [
        (".", True), ("controls/uniform", False), ("points/b", False),
    ]  # fmt: skip


def test_a_model_whose_files_are_all_gone_may_come_out_differently(
    delivery: Delivery, tmp_path: Path, trained: list[int]
) -> None:
    (policy,) = policies(1)
    before, acr = shown(delivery, tmp_path, policy)
    shutil.rmtree(tmp_path / "models")
    assert shown(delivery, tmp_path, policy) == (before, acr), "the copy becomes the release"
    (tmp_path / "model.safetensors").unlink()
    (delivery.releases.folder(before) / "model.safetensors").unlink()
    after = shown(delivery, tmp_path, policy)
    assert after[0] != before
    assert shown(delivery, tmp_path, policy) == after
    assert len(trained) == 2
    assert models_made(delivery.journal.lines) == 2, "both were certified on the same images"


def test_certificates_that_the_search_would_not_make_are_refused(delivery: Delivery, tmp_path: Path) -> None:
    (policy,) = policies(1)
    shown(delivery, tmp_path, policy)
    other = replace(delivery, certifier=replace(delivery.options, n=40).smoothing())
    with pytest.raises(MismatchError, match=r"settings\.n 32 there, 40 here"):
        other.certified(tmp_path, policy, "it", examined=1)


def test_what_was_made_of_a_model_goes_and_comes_with_it(delivery: Delivery, tmp_path: Path) -> None:
    first, second = policies(2)
    one, _ = shown(delivery, tmp_path, first)
    (tmp_path / "small.onnx").write_bytes(b"exported")
    (tmp_path / "exports.json").write_text('{"small.onnx": {"format": "onnx", "sha256": "", "fingerprint": ""}}')
    (tmp_path / "report.html").write_text("a report")
    shown(delivery, tmp_path, second)
    assert not any((tmp_path / name).exists() for name in ("small.onnx", "exports.json", "report.html"))
    assert (delivery.releases.folder(one) / "report.html").exists()
    shown(delivery, tmp_path, first)
    assert (tmp_path / "small.onnx").read_bytes() == b"exported"


def test_a_folder_never_holds_certificates_of_another_model(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever moment one looks at it."""
    first, second = policies(2)
    shown(delivery, tmp_path, first)
    seen: set[tuple[bool, bool]] = set()
    step = Path.replace

    def looked(self: Path, target: Path) -> Path:
        result = step(self, target)
        if (tmp_path / "certificates.tsv").exists():
            certified = read_sidecar(tmp_path / "certificates.json")["provenance"]["model"]["fingerprint"]
            there = load_artifact(tmp_path / "model.safetensors", arch=ARCH)
            seen.add((certified == there.fingerprint(), there.policy == second))
        return result

    monkeypatch.setattr(Path, "replace", looked)
    shown(delivery, tmp_path, second)
    assert seen == {(True, False), (True, True)}


def kills(patch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """Kill before move, deletion or journal line number `at`; returns how many there were."""
    count = 0

    def between(original: Any) -> Any:
        def wrapped(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise KeyboardInterrupt
            return original(*args, **options)

        return wrapped

    for owner, name in ((Path, "replace"), (Path, "unlink"), (Journal, "append"), (CertificateWriter, "write")):
        patch.setattr(owner, name, between(getattr(owner, name)))
    return lambda: count


def test_killed_between_making_certifying_and_publishing_it_ends_the_same(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = policies(2)
    one = shown(delivery, tmp_path, first)
    at, wanted, killed = 0, None, True
    while killed:
        at += 1
        with monkeypatch.context() as patch:
            count = kills(patch, at)
            try:
                delivery.certified(tmp_path, second, "it", examined=5)
                killed = False
            except KeyboardInterrupt:
                pass
        two = shown(delivery, tmp_path, second, examined=5)
        assert two == (wanted or two)
        wanted = two
        assert not list(tmp_path.rglob("making-*"))
        assert is_certified(delivery.releases.folder(one[0]))
        # and the way back, killed at the same step
        with monkeypatch.context() as patch:
            kills(patch, at)
            with suppress(KeyboardInterrupt):
                delivery.certified(tmp_path, first, "it", examined=1)
        assert shown(delivery, tmp_path, first) == one
        shutil.rmtree(delivery.releases.folder(two[0]))
    assert at > 20
    assert count() < at
    assert models_made(delivery.journal.lines) == 2


def test_a_model_that_another_command_made_of_the_one_shown_is_a_release_too(
    delivery: Delivery, tmp_path: Path
) -> None:
    (policy,) = policies(1)
    own, acr = shown(delivery, tmp_path, policy)
    releases = Releases(tmp_path, ARCH)

    def save(path: Path) -> str:
        other = load_artifact(tmp_path / "model.safetensors", arch=ARCH)
        other.module[1].bias.data += 0.5
        save_artifact(path, other, {"sigma": SIGMA})
        return "saved"

    (tmp_path / "quantized.safetensors").write_bytes(b"what it started from")
    assert releases.replace(tmp_path, save) == "saved"
    tuned = load_artifact(tmp_path / "model.safetensors", arch=ARCH).fingerprint()
    assert tuned != own
    assert releases.current() == {".": tuned}
    assert not (tmp_path / "certificates.tsv").exists()
    assert (tmp_path / "quantized.safetensors").exists(), "a second fine-tuning starts from it"
    assert Policy.load(releases.folder(tuned) / "policy.json") == policy
    assert shown(delivery, tmp_path, policy) == (own, acr)
    assert releases.has(tuned)
    assert (releases.folder(tuned) / "quantized.safetensors").exists()
