"""The options that say how a network is quantized, whatever its policy."""

from dataclasses import dataclass
from typing import Literal

ClipRule = Literal["auto", "mse", "kl", "max"]


@dataclass(frozen=True, kw_only=True)
class QuantizerOptions:
    """Quantization"""

    clip: ClipRule = "auto"
    """how ranges are chosen; auto: kl up to 2 bits, else mse"""
    per_channel: bool = False
    """a scale per output channel of each weight"""
    learn: str = "pact"
    """what fine-tuning learns: clips (pact), steps (lsq), values that weights share (kmeans), or what a registered one does"""
    estimate_bn: bool = False
    """re-estimate BatchNorm statistics"""
    calibration_images: int = 512
    """how many of them at most, evenly spaced"""
