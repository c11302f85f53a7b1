"""Noise that is hardly meant is warned of."""

import pytest
from torch import nn

from arquant.base.errors import InputError
from arquant.loading.plausibility import warn_of_sigma
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise


def test_other_noise_than_the_models_and_other_units_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    classifier = Classifier(network, num_classes=4, input_shape=(3, 2, 2), name="mine")
    warn_of_sigma(classifier, 1.0)
    classifier.sigma = 0.25
    warn_of_sigma(classifier, 0.25)
    assert not caplog.records
    warn_of_sigma(classifier, 0.5)
    assert "mine was made for sigma 0.25, not 0.5" in caplog.text
    caplog.clear()
    warn_of_sigma(classifier, 12.75)
    assert "if it is in grey levels, state 0.05" in caplog.text
    with pytest.raises(InputError, match=r"check its units first \(127.5 grey levels are sigma 0.5\)"):
        Noise("grid", 127.5)
