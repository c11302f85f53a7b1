"""Networks that are no fixed function of one image are refused by every engine; unusual ones that are pass."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.certification.votes import FixedWork, run_votes, segments_of
from arquant.engines.base import GraphEngine
from arquant.engines.choice import make_engine
from arquant.engines.exporting import export_model
from arquant.engines.files import load_file_classifier
from arquant.engines.guard import NotOneFunction, guarded
from arquant.engines.probes import ORDINARY, Probes, layouts, make_probes
from arquant.engines.torch import TorchEngine
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.noise.keys import noise_key
from arquant.noise.source import Noise, NoiseSource
from tests.support import unfixed_networks as odd
from tests.support.unfixed_networks import (
    COMPANIONS,
    HONEST,
    MEMORY,
    RANDOM,
    ROWS,
    ConstantInBetween,
    SociableWithoutTwins,
    classifier,
    images,
    quantized,
)

BATCH = 32
Run = Callable[..., GraphEngine]


def probes(sigma: float = odd.SIGMA, noise: str = "grid") -> Probes:
    return make_probes(images(), Noise(noise, sigma), seed=0)


@pytest.fixture
def run() -> Iterator[Run]:
    """Make an engine and test it; PyTorch as it is, unless another kind is asked for."""
    engines: list[GraphEngine] = []

    def make(model: Classifier, kind: str = "eager", sigma: float = odd.SIGMA, noise: str = "grid") -> GraphEngine:
        asked = probes(sigma, noise)
        unit: Any = "levels" if noise == "grid" else "unit"
        if kind == "eager":
            engine: Any = TorchEngine(model, batch=BATCH, input_kind=unit, compiled=False, threads=1)
            engines.append(engine)
            guarded(engine, model, asked)
        else:
            engine = make_engine(model, kind=kind, batch=BATCH, input_kind=unit, probes=asked, threads=2)
            engines.append(engine)
        return engine  # type: ignore[no-any-return]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("sigma", [0.5, 0.12])
@pytest.mark.parametrize("network", [*COMPANIONS, *ROWS])
def test_torch_refuses_a_network_that_looks_at_its_batch(run: Run, network: type[nn.Module], sigma: float) -> None:
    with pytest.raises(
        NotOneFunction, match=r"is not one fixed function of one image: .*votes would depend on each other"
    ):
        run(classifier(network), sigma=sigma)


@pytest.mark.parametrize("network", MEMORY)
def test_torch_refuses_a_network_with_a_memory(run: Run, network: type[nn.Module]) -> None:
    with pytest.raises(NotOneFunction, match="from call to call"):
        run(classifier(network))


@pytest.mark.parametrize("network", [*COMPANIONS, *ROWS, *MEMORY, odd.OneCoin, odd.OneCoinAndOneEach])
def test_openvino_refuses_them_too(run: Run, network: type[nn.Module]) -> None:
    with pytest.raises(InputError, match=network.__name__):
        run(classifier(network), "openvino")


@pytest.mark.parametrize(
    "network", [odd.Capacity, odd.AttendsAcross, odd.RescaledByTheLargest, odd.HonestAtFirstByBuffer]
)
def test_onnxruntime_refuses_them_too(run: Run, network: type[nn.Module]) -> None:
    with pytest.raises(InputError, match=network.__name__):
        run(classifier(network), "onnxruntime")


@pytest.mark.parametrize("network", [odd.Capacity, odd.HonestAtFirst])
def test_compiled_torch_refuses_them_too(run: Run, network: type[nn.Module]) -> None:
    with pytest.raises(NotOneFunction, match="is not one fixed function of one image"):
        run(classifier(network), "torch")


@pytest.mark.parametrize("kind", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("network", [odd.Capacity, odd.AttendsAcross, odd.FirstRowRules])
def test_an_exported_file_that_looks_at_its_batch_is_refused(
    run: Run, network: type[nn.Module], kind: str, tmp_path: Path
) -> None:
    file = load_file_classifier(export_model(classifier(network), tmp_path / "model.onnx").path)
    with pytest.raises(NotOneFunction, match=f"{kind} answers otherwise for the same image at other rows"):
        run(file, kind)


@pytest.mark.parametrize("kind", ["openvino", "onnxruntime"])
def test_an_honest_file_passes(run: Run, kind: str, tmp_path: Path) -> None:
    file = load_file_classifier(export_model(classifier(odd.TopPixels), tmp_path / "model.onnx").path)
    engine = run(file, kind)
    assert engine.guard is not None
    engine.guard.end()


@pytest.mark.parametrize("network", [*HONEST, *RANDOM, odd.Squeezed])
@pytest.mark.parametrize("noise", ["grid", "gaussian"])
def test_unusual_networks_pass_in_torch(run: Run, network: type[nn.Module], noise: str) -> None:
    engine = run(classifier(network), noise=noise)
    assert engine.guard is not None
    engine.guard.end()


@pytest.mark.parametrize("network", [odd.Where, odd.Normalised, odd.LeavesItsFeatures, odd.TopPixels, odd.Signs])
def test_unusual_networks_pass_in_openvino(run: Run, network: type[nn.Module]) -> None:
    engine = run(classifier(network), "openvino")
    assert engine.guard is not None
    engine.guard.end()


def test_a_compiled_network_passes(run: Run) -> None:
    engine = run(classifier(odd.LeavesItsFeatures), "torch")
    assert engine.guard is not None
    engine.guard.end()


@pytest.mark.parametrize("kind", ["eager", "openvino", "onnxruntime"])
def test_a_quantized_network_passes(run: Run, kind: str) -> None:
    engine = run(quantized(odd.Plain), kind)
    assert engine.guard is not None
    engine.guard.end()


@pytest.mark.parametrize("kind", ["eager", "openvino"])
@pytest.mark.parametrize("network", [odd.Capacity, odd.LastRowsMasked, odd.AttendsAcross])
def test_a_quantized_network_that_looks_at_its_batch_is_refused(run: Run, network: type[nn.Module], kind: str) -> None:
    with pytest.raises(InputError, match=network.__name__):
        run(quantized(network), kind)


@pytest.mark.parametrize("network", [odd.OneCoin, odd.OneCoinAndOneEach])
def test_draws_that_a_batch_shares_are_refused(run: Run, network: type[nn.Module]) -> None:
    with pytest.raises(NotOneFunction, match="draws at random for a whole batch"):
        run(classifier(network))


class Centred(nn.Module):
    """Random for each image, and centred by its companions."""

    def forward(self, x: Tensor) -> Tensor:
        logits = 9 * (x - x.mean(0)).mean((2, 3)) if len(x) > 1 else 9 * x.mean((2, 3))
        return logits + torch.randn(len(x), 3)


def test_a_random_network_that_looks_at_its_batch_is_refused(run: Run) -> None:
    with pytest.raises(NotOneFunction, match="random answers whose mean is not that for the image alone"):
        run(Classifier(Centred(), num_classes=3, input_shape=odd.SHAPE))


class Switched(odd.Plain):
    """Changes with something outside that nobody can follow."""

    def forward(self, x: Tensor) -> Tensor:
        return odd.constant(x) if "ARQUANT_TEST_SWITCH" in os.environ else self.logits(x)


@pytest.mark.parametrize("kind", ["eager", "openvino"])
def test_the_end_notices_what_the_beginning_could_not(run: Run, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = run(classifier(Switched), kind)
    assert engine.guard is not None
    engine.guard.end()
    monkeypatch.setenv("ARQUANT_TEST_SWITCH", "1")
    for _ in range(2):  # an engine that was refused stays so
        with pytest.raises(NotOneFunction, match="answers otherwise when it is called again"):
            engine.guard.end()


def test_a_votes_path_that_changes_alone_is_noticed_at_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = run(classifier(odd.Plain))
    right = engine.logits_of
    monkeypatch.setattr(engine, "logits_of", lambda batch: right(batch)[::-1])
    assert engine.guard is not None
    with pytest.raises(NotOneFunction, match="torch no longer answers as in the beginning"):
        engine.guard.end()


def votes(engine: GraphEngine, model: Classifier, which: range = range(8)) -> Iterator[None]:
    """Count some votes, image by image."""
    source = NoiseSource(Noise("grid", odd.SIGMA), noise_key(0, "certify", model.fingerprint()), odd.SHAPE)
    for index in which:
        image = images().images[index]
        run_votes(engine, FixedWork(segments_of(0, image, index, source, 0, 10 * BATCH), lambda segment, labels: None))
        yield


@pytest.mark.parametrize("network", [SociableWithoutTwins, ConstantInBetween])
def test_the_end_asks_again_for_votes_of_the_run(
    run: Run, network: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier(network)
    engine = run(model)
    for batch, _ in enumerate(votes(engine, model)):
        monkeypatch.setattr(ConstantInBetween, "clock", lambda batch=batch: batch in (2, 3))
    monkeypatch.undo()
    assert engine.guard is not None
    with pytest.raises(NotOneFunction, match="votes drawn from the run, all clear, are not what the network answers"):
        engine.guard.end()


@pytest.mark.parametrize("network", [*HONEST, *RANDOM])
def test_votes_of_an_honest_run_are_found_again(run: Run, network: type[nn.Module]) -> None:
    model = classifier(network)
    engine = run(model)
    assert len(list(votes(engine, model))) == 8
    assert engine.guard is not None
    engine.guard.end()


def test_a_branch_that_no_probe_takes_is_found_when_its_graph_has_lost_it() -> None:
    pattern = torch.from_numpy(images().images[9] / 255.0).float()
    pattern -= pattern.mean()

    class Recognises(odd.Plain):
        def forward(self, x: Tensor) -> Tensor:
            likeness = torch.nn.functional.cosine_similarity(x[0].flatten(), pattern.flatten(), 0)
            return self.logits(-x if likeness > 0.3 else x)

    model = classifier(Recognises)
    others = make_probes(images().take(range(8)), Noise("grid", odd.SIGMA), seed=0)
    engine: Any = make_engine(model, kind="openvino", batch=BATCH, input_kind="levels", probes=others, threads=1)
    list(votes(engine, model, range(2, 10)))
    with pytest.raises(NotOneFunction, match="votes drawn from the run"):
        engine.guard.end()
    engine.close()


def test_labels_that_are_not_those_of_the_logits_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TorchEngine.labels_of
    monkeypatch.setattr(TorchEngine, "labels_of", lambda self, batch: (right(self, batch) + 1) % odd.CLASSES)
    with pytest.raises(NotOneFunction, match="votes otherwise than by its logits"):
        run(classifier(odd.Plain))


class ForTwoOnly(odd.Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x[:2].reshape(2, *odd.SHAPE))


def test_a_network_that_fails_at_the_batch_is_bad_input(run: Run) -> None:
    with pytest.raises(InputError, match=r"gives logits of shape \(2, 5\)"):
        run(classifier(ForTwoOnly))


def test_an_engine_for_another_kind_of_noise_or_image_is_refused(run: Run) -> None:
    engine, model = run(classifier(odd.Plain)), classifier(odd.Plain)
    with pytest.raises(InputError, match="an engine for images as levels cannot vote under gaussian noise"):
        guarded(engine, model, probes(noise="gaussian"))
    small = ImageSet(np.zeros((2, 3, 4, 4), np.uint8), np.zeros(2, np.int64), np.arange(2), "small", 5)
    with pytest.raises(InputError, match=r"images of shape \(3, 4, 4\) do not fit the model's input \(3, 8, 8\)"):
        guarded(engine, model, make_probes(small, Noise("grid", 0.5), seed=0))


@pytest.mark.parametrize("batch", [1, 2, 7, 16, 128])
def test_layouts_show_every_probe_and_move_it(batch: int) -> None:
    count = len(probes())
    all_layouts = layouts(count, batch)
    assert {layout.shape for layout in all_layouts} == {(batch,)}
    shown = np.concatenate(all_layouts[: -(-count // batch)])
    assert set(shown.tolist()) == set(range(count))
    if batch > 2:
        rows = {row for layout in all_layouts for row in np.flatnonzero(layout == 2).tolist()}
        assert {0, batch // 2, batch - 1} <= rows


@pytest.mark.parametrize("noise", ["grid", "gaussian", "uniform", "laplace"])
def test_probes_carry_the_noise_of_the_run(noise: str) -> None:
    for sigma in (0.25, 1.0):
        made, pixels = probes(sigma, noise), images().images
        unit = made.images.astype(float) / (255 if noise == "grid" else 1)
        chosen = pixels[np.linspace(0, len(pixels) - 1, ORDINARY).round().astype(int)] / 255
        assert np.std(unit[:ORDINARY] - chosen) == pytest.approx(sigma, rel=0.1)
        assert np.array_equal(unit[ORDINARY + 1 : ORDINARY + 3].reshape(2, -1).mean(1), [0, 1])
        assert np.std(unit[-1]) == pytest.approx(4 * sigma, rel=0.15)
