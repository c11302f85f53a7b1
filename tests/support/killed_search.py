"""A small search in a process of its own, to be killed: `python -m tests.support.killed_search FOLDER`."""

import sys
from pathlib import Path

from arquant.commands.search import search
from tests.support.small_search import SIGMA, image_set, small_classifier

if __name__ == "__main__":
    search(
        small_classifier(),
        image_set(20, 1, "search"),
        calibrate=image_set(96, 2, "calibrate"),
        certify=image_set(12, 3, "certify"),
        sigma=SIGMA,
        budget=["bops<=3bit", "bops<=4bit"],
        out=Path(sys.argv[1]),
        strategy="arq",
        trials=10,
        search_n=48,
        reference_n=160,
        n0=16,
        n=120,
        steps=12,
        final_steps=24,
        train_batch=32,
        controls=(),
        compiled=False,
    )
