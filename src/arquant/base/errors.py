"""Every error a user can cause. The message names the value, the place and the fix; the exit code follows the class."""


class ArquantError(Exception):
    """Base of all errors that arquant raises on purpose; `exit_code` is what the command line ends with."""

    exit_code = 2


class InputError(ArquantError, ValueError):
    """An argument, a shape, a value or a setting that cannot be used."""


class FileFormatError(ArquantError, ValueError):
    """A file that is truncated, corrupted, of a foreign format or of another version."""


class MismatchError(ArquantError, ValueError):
    """Two things that do not belong together: a policy and a model, two certificate sets, a run folder and a command."""


class MissingExtraError(ArquantError, ImportError):
    """An optional package that the requested feature needs and that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package!r}: pip install 'arquant[{extra}]'")


class RequirementError(ArquantError):
    """A requirement that was not met; the results are written all the same."""

    exit_code = 3


class Interrupted(ArquantError):
    """The user stopped a run; the message is the command that resumes it."""

    exit_code = 130
