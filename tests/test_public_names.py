"""What `import arquant` offers: every command is a function, whatever else has been imported before."""

import pkgutil

import arquant
from arquant.commands.main import COMMANDS


def test_no_module_hides_a_public_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(arquant.__path__)}
    assert not modules & set(arquant.__all__), "importing such a module would replace the function"


def test_every_command_is_a_function() -> None:
    assert set(COMMANDS) <= set(arquant.__all__)
    for _ in range(2):  # getting one imports its module
        assert all(callable(getattr(arquant, name)) for name in COMMANDS)
