"""The options that say what a certificate claims and how many votes it rests on."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CertificateOptions:
    """Certificates"""

    n0: int = 100
    """noisy votes per image that select the class"""
    n: int = 10_000
    """noisy votes per image that bound its probability"""
    alpha: float = 0.001
    """probability that a certificate may be wrong, per image"""
    label_directed: bool = False
    """bound the label's probability, for evaluation only"""
    multiclass: bool = False
    """bound the runner-up too"""
    family_wise: bool = False
    """all certificates hold together with probability 1 - alpha"""
    adaptive: bool = False
    """stop early where the outcome is clear"""
    tolerance: float | None = None
    """radius, in units of sigma, that --adaptive may give away"""
