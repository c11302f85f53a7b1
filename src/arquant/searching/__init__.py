"""From a budget to a certified model: strategies, scores, the loop, the release."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "context": ["SearchContext"],
        "method": ["Method", "find_method", "register_method"],
        "score": ["Score", "register_reward"],
        "space": ["Space"],
        "strategy": ["Proposal", "Strategy", "register"],
        "study": ["Study"],
    },
)
