"""Compute votes: engines, the choice among them, the test that they compute one function, export."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "base": ["Engine", "GraphEngine", "InputKind"],
        "choice": ["EngineOptions", "make_engine", "register_engine"],
        "exporting": ["export_model"],
        "files": ["FileClassifier", "load_file_classifier"],
        "guard": ["Guard", "NotOneFunction"],
    },
)
