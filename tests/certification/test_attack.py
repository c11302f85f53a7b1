"""Attacks on the smoothed classifier: none may succeed inside a certified radius.

The attack is PGD on the mean cross-entropy over noisy copies, which are rounded to the pixel grid as the base classifier
does it; the gradient passes the rounding unchanged. It succeeds where PREDICT returns another class than the certified
one, which PREDICT does by mistake with probability at most 1e-4. To show that the attack is a real one, it must succeed
at four times the radius.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from arquant.base.allocator import keep_freed_memory
from arquant.certificates.certificate import ABSTAIN, Certificate, Settings
from arquant.certification.smoothing import Smoothed
from arquant.images.imageset import ImageSet
from arquant.loading.datasets import load_data
from arquant.loading.models import load_model
from arquant.models.classifier import Classifier
from arquant.training.attacks import Attack, moved

MODEL, SIGMA = "resnet20:sigma=0.5", 0.5
STEPS, DRAWS = 20, 32
ALPHA = 1e-4
INSIDE = 1 - 1e-5
"""of the radius, so that rounding to float32 does not lead out of the ball"""


@pytest.fixture(scope="module")
def smoothed() -> Iterator[Smoothed]:
    keep_freed_memory()
    model = Smoothed(load_model(MODEL), SIGMA)
    yield model
    model.close()


def pgd(classifier: Classifier, image: Tensor, klass: int, radius: float, *, seed: int = 0) -> Tensor:
    """The image moved by at most `radius` (l2, in units of the pixel range) against `klass` under noise."""
    attack = Attack(radius, "l2", STEPS, sigma=SIGMA, draws=DRAWS, grid=True, clip=False)
    generator = torch.Generator().manual_seed(seed)
    return moved(classifier, image[None], torch.tensor([klass]), attack, generator=generator)[0]


def attack(smoothed: Smoothed, images: ImageSet, certificates: Sequence[Certificate], scale: float) -> ImageSet:
    """Every certified image, attacked at `scale` times its radius."""
    rows = [int(np.flatnonzero(images.indices == certificate.idx)[0]) for certificate in certificates]
    clean = images.images[rows].astype(np.float64) / 255
    moved = [
        pgd(smoothed.classifier, torch.from_numpy(image).float(), c.predict, scale * INSIDE * c.radius).numpy()
        for image, c in zip(clean, certificates, strict=True)
    ]
    for image, original, c in zip(moved, clean, certificates, strict=True):
        assert np.linalg.norm(image.astype(np.float64) - original) < scale * c.radius
    return ImageSet(np.stack(moved), images.labels[rows], images.indices[rows], "attacked", images.num_classes)


def successes(smoothed: Smoothed, attacked: ImageSet, certificates: Sequence[Certificate], n: int) -> list[int]:
    """The images for which PREDICT returns another class than the certified one."""
    predictions = smoothed.predict(attacked, n=n, alpha=ALPHA, seed=1)
    pairs = zip(predictions, certificates, strict=True)
    return [p.idx for p, c in pairs if p.predict not in (ABSTAIN, c.predict)]


def certified(smoothed: Smoothed, images: ImageSet, n: int, count: int) -> list[Certificate]:
    """The first `count` certificates that claim something."""
    found = smoothed.certify(images, Settings(sigma=SIGMA, n=n))
    claims = list(islice((c for c in found if not c.abstained), count))
    assert len(claims) == count
    return claims


def check(smoothed: Smoothed, *, images: int, candidates: int, n: int, controls: int) -> None:
    data = load_data("sample", "certify", images=f"first:{candidates}")
    claims = certified(smoothed, data, n, images)
    assert successes(smoothed, attack(smoothed, data, claims, 1.0), claims, n) == []
    widest = sorted(claims, key=lambda c: c.radius)[-controls:]
    assert successes(smoothed, attack(smoothed, data, widest, 4.0), widest, n), (
        "the attack is too weak to prove anything"
    )


def test_two_images_withstand_attacks_inside_their_radii(smoothed: Smoothed) -> None:
    check(smoothed, images=2, candidates=4, n=1000, controls=1)


@pytest.mark.slow
def test_twenty_images_withstand_attacks_inside_their_radii(smoothed: Smoothed) -> None:
    check(smoothed, images=20, candidates=30, n=10_000, controls=5)
