"""Report one or several runs: the question, the result, the claims and the evidence."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "gathering": ["gather", "gather_comparison"],
        "html": ["to_html"],
        "model": ["Entry", "Report", "to_json"],
        "paper_figures": ["save_figures"],
        "tables": ["to_csv", "to_latex", "to_markdown", "to_text"],
    },
)
