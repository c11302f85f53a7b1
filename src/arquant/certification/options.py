"""The options that say what a certificate claims, how many votes it rests on, and where they are cast."""

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


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Cluster"""

    cluster: str | None = None
    """let the workers of a Ray cluster do the work: local (this machine), auto (RAY_ADDRESS, or the Ray that runs here) or
    HOST:PORT; the result is the same; this process alone if not given"""
    workers: int | None = None
    """processes, with --threads cores each (1 if not given); as many as the cluster has cores for if not given"""
