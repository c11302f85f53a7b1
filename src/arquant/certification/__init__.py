"""From a classifier and images to certificates: votes, smoothing, a resumable run."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "certifier": ["Certifier"],
        "checking": ["check_run"],
        "noiseless": ["NoiselessCertifier"],
        "run": ["certify"],
        "settings": ["settings_of"],
        "smoothing": ["Prediction", "Smoothed"],
        "smoothing_certifier": ["Smoothing"],
        "vote_cache": ["VoteCache", "reference_votes"],
    },
)
