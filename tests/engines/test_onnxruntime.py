from typing import Any

import numpy as np
import pytest

from arquant.base.errors import MissingExtraError
from arquant.engines.choice import make_engine
from arquant.engines.onnxruntime import OnnxRuntimeEngine
from tests.support.networks_to_lower import BATCH, float_classifier, noisy, quantized, reference


@pytest.mark.parametrize("kind", ["levels", "unit"])
def test_float_network_agrees_with_torch(kind: Any) -> None:
    classifier = float_classifier("mobile", bounds=(-1.0, 1.0))
    engine: Any = make_engine(classifier, kind="onnxruntime", batch=BATCH, input_kind=kind, threads=2)
    batch = noisy() if kind == "levels" else (noisy() / 255).astype(np.float32)
    expected = reference(classifier, noisy())
    np.testing.assert_allclose(engine.logits_of(batch), expected, atol=1e-4)
    np.testing.assert_array_equal(engine.labels_of(batch), expected.argmax(1))
    facts = engine.describe()
    assert (facts["engine"], facts["precision"], facts["threads"]) == ("onnxruntime", "float32", 2)
    engine.close()


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_quantized_network_agrees_with_torch(name: str) -> None:
    classifier = quantized(name, True)
    engine = OnnxRuntimeEngine(classifier, batch=BATCH, input_kind="levels", threads=1)
    expected = reference(classifier, noisy())
    error = np.abs(engine.logits_of(noisy()) - expected).max(1) / expected.std()
    assert np.mean(error > 1e-4) <= 0.25
    assert error.max() < 0.5
    assert engine.describe()["precision"] in ("float32", "mixed", "int8")
    engine.close()


def test_the_description_counts_integer_products() -> None:
    engine = OnnxRuntimeEngine(quantized("vit", True), batch=2, input_kind="levels", threads=1)
    assert engine.describe()["kernels"].get("MatMulIntegerToFloat", 0) > 0
    assert engine.describe()["precision"] == "mixed"
    engine.close()


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="onnxruntime"):
        OnnxRuntimeEngine(float_classifier("mobile"), batch=2, input_kind="levels")
