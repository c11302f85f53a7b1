"""Record where a result comes from: versions, machine, commit, command."""

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("arquant", "torch", "numpy", "scipy", "openvino", "onnx", "onnxruntime", "timm")


def provenance() -> dict[str, Any]:
    """Return versions, processor, commit (where run from a checkout), command and time of this process."""
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
    """Return the command that started this process, without the folder of the program; `python -m NAME` is `NAME`."""
    path = Path(sys.argv[0] if sys.argv else "")
    program = path.parent.name if path.name == "__main__.py" else path.name
    return shlex.join([program, *sys.argv[1:]]) if program else ""


def processor() -> str:
    """Return the name of the processor."""
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


def commit() -> str | None:
    """Return the commit of the checkout this package runs from, with "+changes" if files differ; None for an installed package,
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
