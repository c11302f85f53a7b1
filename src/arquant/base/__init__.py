"""The floor that all packages stand on: errors, options, files, journals, run folders, provenance."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "errors": [
            "ArquantError",
            "FileFormatError",
            "InputError",
            "MismatchError",
            "MissingExtraError",
            "RequirementError",
        ],
        "files": ["envelope", "in_one_move", "opened", "read_json", "write_json"],
        "identity": ["check_same"],
        "journal": ["Journal", "read_journal"],
        "options": ["Option"],
        "progress": ["Status"],
    },
)
