"""Hypothesis for all tests: no deadlines, since machines differ; ARQUANT_FUZZ=N sets the number of examples."""

import os

from hypothesis import HealthCheck, settings

from tests.damage import EXAMPLES

settings.register_profile("arquant", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", settings.get_profile("arquant"), max_examples=EXAMPLES)
settings.load_profile("fuzz" if "ARQUANT_FUZZ" in os.environ else "arquant")
