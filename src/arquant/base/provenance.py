"""Where a result comes from: versions, machine, commit, command; and files that are never half written."""

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

_PACKAGES = ("arquant", "torch", "numpy", "scipy", "openvino", "onnx", "onnxruntime", "timm")


def provenance() -> dict[str, Any]:
    """Versions, processor, commit (where run from a checkout), command and time of this process."""
    machine = {"system": platform.platform(), "processor": processor(), "features": processor_features()}
    return {
        "versions": installed(),
        "machine": {**machine, "cores": os.cpu_count()},
        "commit": commit(),
        "command": command_line(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def installed() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on, those that are installed."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def command_line() -> str:
    """The command that started this process, without the folder of the program; `python -m NAME` is `NAME`."""
    path = Path(sys.argv[0] if sys.argv else "")
    program = path.parent.name if path.name == "__main__.py" else path.name
    return shlex.join([program, *sys.argv[1:]]) if program else ""


def processor() -> str:
    """The processor's name."""
    return _cpuinfo("model name") or platform.processor()


def processor_features() -> str:
    """Return a hash of the instruction sets that the processor has, empty where the system does not tell.

    Clouds give different processors one name, and kernels are chosen by these.
    """
    flags = " ".join(sorted({*_cpuinfo("flags").split(), *_cpuinfo("Features").split()}))
    return hashlib.sha256(flags.encode()).hexdigest()[:16] if flags else ""


def _cpuinfo(name: str) -> str:
    """Return what the system says of its first processor under a name; empty if nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if re.match(rf"{name}\s*:", line)), "")


@contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """A scratch file to write, which becomes `path` when the block ends: a reader sees the old file or the new one, never
    a part, even after a crash. If the block fails, `path` is as it was and the scratch file is gone.
    """
    scratch = path.with_name(path.name + ".part")
    try:
        scratch.unlink(missing_ok=True)
        scratch.touch()
        mode = (path if path.exists() else scratch).stat().st_mode
        yield scratch
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        scratch.chmod(mode)  # some libraries that write a file keep it to its owner
        scratch.replace(path)
    except BaseException as error:
        scratch.unlink(missing_ok=True)
        if isinstance(error, SafetensorError) and (number := re.search(r"os error (\d+)", str(error))):
            raise OSError(int(number[1]), f"cannot write {path}: {error}") from error
        raise


def write_json(path: Path, data: Any) -> None:
    """Write `data` to `path` in one move."""
    with in_one_move(path) as scratch:
        scratch.write_text(json.dumps(data, indent=1, sort_keys=True, default=str) + "\n")


def commit() -> str | None:
    """The commit of the checkout this package runs from, with "+changes" if files differ; None for an installed package,
    which may lie in the checkout of something else.
    """
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return _git("describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*") or None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    folder = Path(__file__).parent
    answer = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return answer.stdout.strip()
