"""Turn votes into evidence: bounds, stopping rules, certificates, their files and metrics. NumPy and SciPy only.

A certified radius is computed here, in `bounds`.
"""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "adaptive": ["Adaptive"],
        "bounds": ["certified_radius", "clopper_pearson_lower", "clopper_pearson_upper"],
        "certificate": ["ABSTAIN", "Certificate", "CertificateSet", "Settings"],
        "claims": ["claim"],
        "files": ["CertificateWriter", "read_certificates"],
        "metrics": ["compare"],
        "recomputation": ["recompute"],
        "verdict": ["judge"],
    },
)
