"""The commands as Python functions: `arquant.certify` and `arquant certify` are the same thing."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "command": ["Command", "Watched"],
        "console": ["Console"],
        "main": ["COMMANDS", "find_command", "help_of", "overview", "read_options"],
    },
)
