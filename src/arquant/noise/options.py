"""The options that say which noise is added to images."""

from dataclasses import dataclass
from typing import Literal

NoiseName = Literal["grid", "gaussian", "uniform", "laplace"]


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """Noise"""

    sigma: float
    """standard deviation of the noise; 1.0 is black to white"""
    noise: NoiseName = "grid"
    """grid (Gaussian on the pixel grid) and gaussian prove l2 radii, uniform and laplace l1"""
    seed: int = 0
    """of all noise and fine-tuning"""
