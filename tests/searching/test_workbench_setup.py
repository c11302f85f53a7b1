import pytest

from arquant.engines.choice import EngineOptions
from arquant.quantization.policy import Policy
from arquant.searching.options import search_options
from arquant.searching.workbench_setup import workbench_for
from tests.support.small_search import SIGMA, image_set, small_classifier, small_space


def test_a_search_at_other_noise_than_the_models_warns(caplog: pytest.LogCaptureFixture) -> None:
    classifier, space = small_classifier(), small_space()
    classifier.sigma = SIGMA
    for sigma in (SIGMA, 2 * SIGMA):
        caplog.clear()
        options = search_options(sigma=sigma, calibration_images=16)
        workbench_for(
            classifier, Policy.uniform(space.layers, 4), image_set(32, 3), options, EngineOptions(),
            layers=space.layers, compiled=False,
        )  # fmt: skip
        assert ("was made for sigma 0.25, not 0.5" in caplog.text) is (sigma != SIGMA)
