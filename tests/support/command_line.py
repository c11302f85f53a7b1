"""The command line under test: a folder with a small network and images of it, and a way to run commands there."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from arquant.commands.main import main

NETWORK = '''
import os
import time

import torch
from torch import nn

import arquant.certification.run
from arquant import Classifier

if "TOY_PARTIAL" in os.environ:
    arquant.certification.run.PARTIAL_SECONDS = float(os.environ["TOY_PARTIAL"])


class Brightest(nn.Module):
    """The logits are the mean of each channel, so the class is the brightest colour."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.scale * x.mean((2, 3))


class Slow(Brightest):
    """The same function, as slow as the environment says: always, or once the table that it names has two rows."""

    def forward(self, x):
        time.sleep(float(os.environ.get("TOY_DELAY", "0")))
        if "TOY_TABLE" in os.environ and has_two_rows(os.environ["TOY_TABLE"]):
            time.sleep(2)
        return super().forward(x)


def has_two_rows(table):
    if not os.path.exists(table):
        return False
    with open(table) as file:
        return file.read().count("\\n") > 2


def wrap(module, classes=3):
    return Classifier(module, num_classes=classes, input_shape=(3, 4, 4), name="toy")


def colours():
    return wrap(Brightest())


def slow():
    return wrap(Slow())


def talkative():
    print("loading, please wait")
    return colours()


def bare():
    return Brightest()


def nan_weights():
    module = Brightest()
    module.scale.data[1] = float("nan")
    return wrap(module)


def wrong_shape():
    return wrap(Brightest(), classes=5)


def broken():
    raise OSError("the disk is on fire\\nand so is the second line")
'''


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


class Project:
    """A working folder with `toy.py` and `data.npz` (6 images: 2 of each colour, from clear to doubtful)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "toy.py").write_text(NETWORK)
        self.save("data", *images())

    def save(self, name: str, pixels: np.ndarray, labels: np.ndarray) -> str:
        """Write an npz file; its DATA spelling."""
        np.savez(self.folder / f"{name}.npz", images=pixels, labels=labels)
        return f"npz:{name}.npz"

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """`python -m arquant` in a process of its own."""
        # an ignored SIGINT, as background jobs of some shells inherit it, is taken back
        program = "import signal, arquant.__main__ as it; signal.signal(2, signal.default_int_handler); it.entry()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> Answer:
        """Run to the end in a process of its own, as a user does."""
        command = [sys.executable, "-m", "arquant", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=600
        )
        return Answer(done.returncode, done.stdout, done.stderr)


def images() -> tuple[np.ndarray, np.ndarray]:
    """Six images 3 x 4 x 4: of each colour one that is clear and one that is not."""
    pixels = np.full((6, 3, 4, 4), 90, np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2], np.int64)
    for row, label in enumerate(labels):
        pixels[row, label] = 250 if row < 3 else 130
    return pixels, labels


class InProcess:
    """Runs commands inside this process: quicker, and patches apply."""

    def __init__(self, project: Project, capture: pytest.CaptureFixture[str]) -> None:
        self.project = project
        self.capture = capture

    def __call__(self, *arguments: str) -> Answer:
        self.capture.readouterr()
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = self.capture.readouterr()
        return Answer(code, out, err)
