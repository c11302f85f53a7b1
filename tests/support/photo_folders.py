"""Folders of photos for tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def save_photo(path: Path, width: int, height: int, *, mode: str = "RGB", seed: int = 0) -> None:
    """Write a picture of random pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path)


def photo_folder(root: Path, classes: Sequence[str], each: int, *, size: tuple[int, int], first_seed: int = 0) -> str:
    """Write a folder of PNG photos, (width, height) each, all different; its DATA spelling."""
    for label, name in enumerate(classes):
        for number in range(each):
            save_photo(root / name / f"{number:03}.png", *size, seed=first_seed + label * each + number)
    return f"folder:{root}"
