import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from arquant.base.processor import _compiles
from arquant.engines.torch import TorchEngine
from arquant.models.classifier import Classifier


def test_votes_are_those_of_the_frozen_network_even_while_it_is_trained() -> None:
    layers = [nn.Dropout(0.5), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 10)]
    classifier = Classifier(nn.Sequential(*layers), num_classes=10, input_shape=(3, 4, 4))
    batch = np.random.default_rng(0).normal(size=(64, 3, 4, 4)).astype(np.float32)
    with torch.no_grad():
        wanted = classifier.eval()(torch.from_numpy(batch)).argmax(1).numpy()
    engine = TorchEngine(classifier, batch=64, input_kind="unit", compiled=False)
    fingerprint = classifier.fingerprint()
    for _ in range(2):
        classifier.train()
        np.testing.assert_array_equal(engine.labels_of(batch), wanted)
    assert classifier.fingerprint() == fingerprint, "BatchNorm has learnt from the votes"
    engine.close()


class _Remembering(nn.Module):
    """Leaves a value on itself for its last line, with Python in between that no compiler follows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 10)
        self.seen: torch.Tensor | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen = self.linear(images.flatten(1))
        time.sleep(0.002)
        return self.seen


@pytest.mark.parametrize(("network", "workers"), [
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 10)), 2), (_Remembering, 1),
])  # fmt: skip
def test_batches_share_a_network_only_if_it_is_captured_whole(network: Callable[[], nn.Module], workers: int) -> None:
    classifier = Classifier(network(), num_classes=10, input_shape=(3, 4, 4))
    batches = np.random.default_rng(0).normal(size=(9, 32, 3, 4, 4)).astype(np.float32)
    with torch.no_grad():
        wanted = [classifier.eval()(torch.from_numpy(batch)).argmax(1).numpy() for batch in batches]
    before = torch.get_num_threads()
    engine = TorchEngine(classifier, batch=32, input_kind="unit", threads=2)
    assert (engine.describe()["workers"], engine.describe()["threads"]) == (workers, 2)
    found = []
    for batch in batches:
        if engine.in_flight == engine.depth:
            found.append(engine.collect())
        buffer = engine.buffer()
        buffer[:] = batch
        engine.submit(buffer)
    found += [engine.collect() for _ in range(engine.in_flight)]
    engine.close()
    np.testing.assert_array_equal(found, wanted)
    assert torch.get_num_threads() == before, "the engine's threads are its own affair"


def test_any_number_of_networks_is_compiled_in_one_process() -> None:
    engines = [
        TorchEngine(
            Classifier(nn.Sequential(nn.Flatten(), nn.Linear(48, width)), num_classes=width, input_shape=(3, 4, 4)),
            batch=8, input_kind="unit", threads=2,
        )
        for width in range(2, 12)
    ]  # fmt: skip
    assert [engine.workers for engine in engines] == [2] * len(engines), (
        "torch.compile gives up after eight of one code"
    )
    for engine in engines:
        engine.close()


def test_an_engine_that_is_not_frozen_follows_the_network() -> None:
    linear = nn.Linear(48, 10)
    classifier = Classifier(nn.Sequential(nn.Flatten(), linear), num_classes=10, input_shape=(3, 4, 4))
    batch = np.random.default_rng(0).normal(size=(32, 3, 4, 4)).astype(np.float32)
    engine = TorchEngine(classifier, batch=32, input_kind="unit", threads=2, frozen=False)
    for seed in range(2):
        torch.manual_seed(seed)
        nn.init.normal_(linear.weight)
        with torch.no_grad():
            wanted = classifier.eval()(torch.from_numpy(batch)).argmax(1).numpy()
        np.testing.assert_array_equal(engine.labels_of(batch), wanted)
    engine.close()


def test_without_a_compiler_that_works_the_network_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("fatal error: Python.h: No such file or directory")

    classifier = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(48, 10)), num_classes=10, input_shape=(3, 4, 4))
    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr("arquant.base.processor._compiles", _compiles.__wrapped__)
    with pytest.warns(RuntimeWarning, match="no working C"):
        engine = TorchEngine(classifier, batch=4, input_kind="unit", threads=1)
    assert engine.describe()["compiled"] is False
    assert engine.labels_of(np.zeros((4, 3, 4, 4), np.float32)).shape == (4,)
    engine.close()


def test_weights_that_change_later_are_not_those_that_vote() -> None:
    classifier = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(48, 10)), num_classes=10, input_shape=(3, 4, 4))
    batch = np.random.default_rng(0).normal(size=(16, 3, 4, 4)).astype(np.float32)
    engine = TorchEngine(classifier, batch=16, input_kind="unit", compiled=False)
    before = engine.labels_of(batch)
    with torch.no_grad():
        classifier.module[1].bias.copy_(100 * torch.eye(10)[3])
    np.testing.assert_array_equal(engine.labels_of(batch), before)
    engine.close()


class _Viewing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return self.head(x.view(x.size(0), -1))


def test_a_network_for_contiguous_images_votes() -> None:
    classifier = Classifier(_Viewing(), num_classes=10, input_shape=(3, 4, 4)).eval()
    batch = np.random.default_rng(0).normal(size=(16, 3, 4, 4)).astype(np.float32)
    engine = TorchEngine(classifier, batch=16, input_kind="unit", compiled=False)
    with torch.no_grad():
        wanted = classifier(torch.from_numpy(batch)).argmax(1).numpy()
    np.testing.assert_array_equal(engine.labels_of(batch), wanted)
    engine.close()
