"""What is said of the processor's abilities."""

import logging

import pytest
import torch

from arquant.base.processor import compile_alone


def test_compiling_is_announced(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("arquant.base.processor"), "disabled", False)
    with caplog.at_level(logging.INFO, "arquant"):
        compile_alone(torch.neg)
    assert "PyTorch compiles the network before the first step" in caplog.text
