"""Make the shipped sample from the full CIFAR-10: `arquant data cifar10 && python scripts/make_sample.py`.

calibrate: of each class of the training set, every 25th image in dataset order (200 of 5,000), sorted by dataset index.
search and certify: the test images of those roles of `cifar10` (indices 10 mod 20 and 0 mod 20).
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from arquant.base.files import envelope
from arquant.images.cifar10 import cifar10_directory, load_cifar10
from arquant.images.imageset import ImageSet
from arquant.images.sample import FOLDER, ROLES, SCHEMA, VERSION, load_sample, tile

STEP = 25


def choose(role: str, directory: Path) -> ImageSet:
    """Return the images of one role of the sample, out of the full data set."""
    full = load_cifar10(role, directory)
    if role != "calibrate":
        return full
    per_class = [np.flatnonzero(full.labels == label)[::STEP] for label in range(full.num_classes)]
    return full.take(np.sort(np.concatenate(per_class)))


def main() -> None:
    """Write the pictures and `sample.json`, then read them back and compare every pixel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar10", type=Path, default=cifar10_directory(), help="folder of the six .bin files")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write into")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    chosen = {role: choose(role, arguments.cifar10) for role in ROLES}
    entries = {}
    for role, images in chosen.items():
        picture = Image.fromarray(tile(images.images.astype(np.uint8, copy=False)))
        picture.save(arguments.out / f"{role}.webp", lossless=True, quality=100, method=6, exact=True)
        entries[role] = {
            "fingerprint": images.fingerprint(),
            "labels": images.labels.tolist(),
            "indices": images.indices.tolist(),
        }
    content = envelope(SCHEMA, VERSION, {"roles": entries})
    (arguments.out / "sample.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")
    for role, images in chosen.items():
        back = load_sample(role, arguments.out)
        if not (np.array_equal(back.images, images.images) and np.array_equal(back.labels, images.labels)):
            raise SystemExit(f"{role}: what was read back differs from what was written")
        print(f"{role}: {len(back)} images, {(arguments.out / f'{role}.webp').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
