import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

import arquant
from arquant.base.lazy import lazy_names

FACES = [name for name in (module.name for module in iter_modules(arquant.__path__)) if name not in ("__main__", "cli")]
LIGHT = ["base", "certificates", "noise"]


def test_a_name_is_found_in_its_module_and_others_are_not() -> None:
    find, listed, public = lazy_names("arquant.noise", {"keys": ["noise_key"], "source": ["Noise"]})
    assert find("Noise") is import_module("arquant.noise.source").Noise
    assert listed() == public == ["Noise", "noise_key"]
    with pytest.raises(AttributeError, match=r"'arquant\.noise' has no attribute 'key'"):
        find("key")


@pytest.mark.parametrize("package", FACES)
def test_every_public_name_of_a_package_is_there_and_no_module_hides_it(package: str) -> None:
    face = import_module(f"arquant.{package}")
    names = face.__all__
    assert 4 < len(names) < 17
    assert not {module.name for module in iter_modules(face.__path__)} & set(names)
    for name in names:
        assert getattr(face, name) is not None
    assert names == sorted(set(names))


def test_a_package_is_imported_without_its_modules_and_the_light_ones_never_need_torch() -> None:
    program = (
        "import sys\n"
        f"for package in {FACES!r}:\n"
        "    __import__(f'arquant.{package}')\n"
        "assert not {'numpy', 'torch'} & set(sys.modules), 'a face imports more than itself'\n"
        f"for package in {LIGHT!r}:\n"
        "    face = __import__(f'arquant.{package}', fromlist=['x'])\n"
        "    [getattr(face, name) for name in face.__all__]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
