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


@dataclass(frozen=True, kw_only=True)
class OwnNoiseOptions:
    """Noise (defaults: what the model is for)"""

    sigma: float | None = None
    """standard deviation of the noise, 1.0 is black to white; that of the model, if known"""
    noise: NoiseName | None = None
    """grid (Gaussian on the pixel grid) and gaussian prove l2 radii, uniform and laplace l1; the run's, else grid"""
