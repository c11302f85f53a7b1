import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.base.processor import has_bfloat16
from arquant.engines.openvino import OpenVinoEngine, _fused_products, product_precisions
from arquant.engines.torch import LabelsFromPixels
from arquant.models.architectures.resnet_cifar import CifarResNet
from arquant.models.classifier import Classifier
from tests.support.networks_to_lower import float_classifier

SHAPE = (3, 8, 8)


def small(bounds: tuple[float, float] = (0.0, 1.0)) -> Classifier:
    torch.manual_seed(0)
    network = CifarResNet(8, num_classes=5)
    return Classifier(network, num_classes=5, input_shape=SHAPE, mean=[0.5], std=[0.2], bounds=bounds).eval()


def batch_of(kind: str, count: int = 16) -> np.ndarray:
    levels = np.random.default_rng(1).integers(-300, 500, (count, *SHAPE))
    return levels.astype(np.int16) if kind == "levels" else (levels / 255).astype(np.float32)


@pytest.mark.parametrize("kind", ["levels", "unit"])
def test_float_network_agrees_with_torch(kind: str) -> None:
    classifier = small(bounds=(-1.0, 1.0))
    engine = OpenVinoEngine(classifier, batch=16, input_kind=kind, threads=2)
    batch = batch_of(kind)
    reference = LabelsFromPixels(classifier, kind)
    with torch.no_grad():
        logits = reference.logits(torch.from_numpy(batch)).numpy()
    np.testing.assert_allclose(engine.logits_of(batch), logits, atol=1e-5)
    np.testing.assert_array_equal(engine.labels_of(batch), logits.argmax(1))
    engine.close()


def test_floats_are_float32_unless_asked() -> None:
    engine = OpenVinoEngine(small(), batch=4, input_kind="levels")
    facts = engine.describe()
    assert (facts["precision"], facts["float_precision"], facts["kernels"]) == ("float32", "f32", {"f32": 10})
    assert product_precisions(engine.compiled) == ["f32"] * 10
    engine.close()


def test_bfloat16_is_refused_where_the_processor_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_vnni": True})
    with pytest.raises(InputError, match="no bfloat16 arithmetic"):
        OpenVinoEngine(small(), batch=4, input_kind="levels", precision="bfloat16")


@pytest.mark.skipif(not has_bfloat16(), reason="this processor has no bfloat16 arithmetic")
def test_bfloat16_is_computed_and_recorded_when_asked_for() -> None:
    exact, coarse = (
        OpenVinoEngine(small(), batch=16, input_kind="levels", precision=precision)
        for precision in ("float32", "bfloat16")
    )
    facts = coarse.describe()
    assert (facts["precision"], facts["kernels"]) == ("bfloat16", {"bf16": 10})
    gap = np.abs(exact.logits_of(batch_of("levels")) - coarse.logits_of(batch_of("levels"))).max()
    assert 1e-5 < gap < 0.5
    exact.close()
    coarse.close()


def test_fused_attention_counts_as_two_products() -> None:
    engine = OpenVinoEngine(float_classifier("vit"), batch=2, input_kind="levels", threads=1)
    assert engine.describe()["kernels"] == {"f32": 8}
    engine.close()


def test_scales_named_after_a_product_are_no_products() -> None:
    merged = "aten::matmul/MatMul_4,aten::matmul/MatMul_4/DequantizationMultiply,Softmax_2,aten::matmul/MatMul"
    assert _fused_products(merged) == 2
    assert _fused_products("aten::add/Add_9,aten::matmul/MatMul_2/DequantizationMultiply_0") == 0


class Ties(nn.Module):
    """Equal logits in all classes but the first, which is lower."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3)).unsqueeze(1)
        return torch.cat((mean - 1, mean, mean, mean), 1)


def test_of_equal_logits_the_first_wins_as_in_torch() -> None:
    engine = OpenVinoEngine(Classifier(Ties(), num_classes=4, input_shape=SHAPE), batch=16, input_kind="levels")
    assert set(engine.labels_of(batch_of("levels"))) == {1}
    engine.close()


def test_batches_in_flight_come_back_in_order() -> None:
    classifier = small()
    engine = OpenVinoEngine(classifier, batch=4, input_kind="levels", threads=2)
    batches = [batch_of("levels")[4 * i : 4 * i + 4] for i in range(4)]
    expected = [engine.labels_of(b).tolist() for b in batches]
    got = []
    for batch in batches:
        buffer = engine.buffer()
        buffer[:] = batch
        engine.submit(buffer)
        if engine.in_flight == engine.depth:
            got.append(engine.collect().tolist())
    while engine.in_flight:
        got.append(engine.collect().tolist())
    assert got == expected
    engine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads and their cores are listed by Linux only")
def test_threads_are_bound_to_no_core_so_that_two_runs_do_not_share_one() -> None:
    def threads() -> set[int]:
        return {int(task.name) for task in Path("/proc/self/task").iterdir()}

    before, seen = threads(), set()
    engine = OpenVinoEngine(small(), batch=16, input_kind="levels", threads=1)
    with ThreadPoolExecutor(1) as pool:
        work = [pool.submit(engine.labels_of, batch_of("levels")) for _ in range(200)]
        while not work[-1].done():
            for thread in threads() - before:
                with suppress(ProcessLookupError):  # it has ended
                    seen.add(frozenset(os.sched_getaffinity(thread)))
    engine.close()
    assert seen == {frozenset(os.sched_getaffinity(0))}


def test_training_mode_is_restored_and_not_used() -> None:
    classifier = small().train()
    engine = OpenVinoEngine(classifier, batch=4, input_kind="levels")
    assert classifier.training
    with torch.no_grad():
        expected = LabelsFromPixels(classifier.eval(), "levels")(torch.from_numpy(batch_of("levels", 4)))
    np.testing.assert_array_equal(engine.labels_of(batch_of("levels", 4)), expected.numpy())
    engine.close()


def test_a_network_that_cannot_be_traced_is_refused_with_the_way_out() -> None:
    class Opaque(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("no such operation")

    classifier = Classifier(Opaque(), num_classes=3, input_shape=SHAPE, name="opaque")
    with pytest.raises(InputError, match=r"opaque.*--engine torch"):
        OpenVinoEngine(classifier, batch=2, input_kind="levels")


def test_weights_that_change_later_are_not_those_that_vote() -> None:
    classifier = small()
    engine = OpenVinoEngine(classifier, batch=16, input_kind="levels")
    before = engine.labels_of(batch_of("levels"))
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(engine.labels_of(batch_of("levels")), before)
    engine.close()


def test_what_cannot_be_compiled_is_refused_with_the_way_out() -> None:
    class WithoutKernels(OpenVinoEngine):
        def _compile(self, *_: object) -> NoReturn:
            raise RuntimeError("Check 'is_static()' failed\nno such kernel")

    with pytest.raises(InputError, match=r"cannot compile model 'CifarResNet': no such kernel; use --engine torch"):
        WithoutKernels(small(), batch=2, input_kind="levels")
