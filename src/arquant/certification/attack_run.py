"""Attack a model on images, and hold its certificates against the result: what breaks, and how far away nothing can.

Who judges is part of every result: PREDICT of the smoothed classifier, which may abstain, or the plain network without noise.
Certificates are of the smoothed classifier; a plain network that breaks within their radius contradicts nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from arquant.base.errors import InputError, MismatchError
from arquant.base.progress import Report, Status, silent
from arquant.certificates.bounds import FloatArray, IntArray
from arquant.certificates.certificate import ABSTAIN, CertificateSet
from arquant.certificates.files import TSV_NAME, certified_model, read_certificates
from arquant.certification.smoothing import Smoothed
from arquant.certification.subject import Subject
from arquant.images.imageset import ImageSet
from arquant.training.attacks import Attack, moved

JudgeName = Literal["smoothed", "plain"]
_BATCH = 64


class Judge(Protocol):
    """Says the class of images, or ABSTAIN."""

    def __call__(self, images: ImageSet) -> IntArray:
        """Return one class per image."""


@dataclass(frozen=True)
class Struck:
    """What an attack made of one image.

    Attributes:
        clean, attacked: what the judge says of the image and of the attacked one; ABSTAIN is -1.
        distance: how far it was moved, in the norm of the certificates (l2 without any).
        reach: how far the attack may move any image, in the same norm.
        radius: certified, for the class `certified`; None where there is no certificate.
    """

    epsilon: float
    idx: int
    label: int
    clean: int
    attacked: int
    distance: float
    reach: float
    certified: int | None
    radius: float | None

    @property
    def succeeded(self) -> bool:
        """Tell whether the image was right and is so no longer."""
        return self.clean == self.label != self.attacked

    @property
    def inside(self) -> bool:
        """Tell whether the attacked image lies within the certified radius."""
        return self.radius is not None and self.distance < self.radius

    @property
    def contradicts(self) -> bool:
        """Tell whether another class than the certified one is said within its radius; an abstention says none."""
        return self.inside and self.attacked not in (ABSTAIN, self.certified)


def certificates_for(
    subject: Subject, given: str | Path | None, everything: Callable[[], ImageSet], note: Callable[[str], None]
) -> CertificateSet | None:
    """Return the certificates of this model and these images: the given ones, or those of its run; None if it has none.

    Args:
        everything: returns all images that those of the subject were selected from.
        note: is told if the run has certificates, but of other images, or not of all.

    Raises:
        MismatchError: they are of another model, sigma or noise, or the given ones are of other images.
    """
    place = given if given is not None else None if subject.run is None else subject.run / TSV_NAME
    if place is None or (given is None and not Path(place).exists()):
        return None
    found = read_certificates(place)
    theirs = certified_model(found.provenance)
    if theirs is not None and theirs != subject.classifier.fingerprint():
        raise MismatchError(f"{place} certifies another model than {subject.classifier.name}")
    if found.settings is not None and found.settings.sigma != subject.sigma:
        raise MismatchError(f"{place} is for sigma {found.settings.sigma:g}, the attack for {subject.sigma:g}")
    if found.settings is not None and found.settings.noise != subject.noise:
        raise MismatchError(f"{place} is for noise {found.settings.noise}, the attack for {subject.noise}")
    if _holds(subject.images, found) or _holds(everything(), found):
        if without := len(set(subject.images.indices.tolist()) - set(found.idx.tolist())):
            note(
                f"{without} of {len(subject.images)} images have no certificate in {place}: they count as not certified"
            )
        return found
    problem = f"{place} certifies other images than those of {subject.images.name}"
    if given is not None:
        raise MismatchError(problem)
    note(f"{problem}: the attack has no certificates beside it")
    return None


def _holds(images: ImageSet, found: CertificateSet) -> bool:
    """Tell whether the certified images are among these; by their labels alone where the certificates have no hash."""
    places = {int(index): place for place, index in enumerate(images.indices)}
    if found.images_sha256 is None:
        return all(images.labels[places[each.idx]] == each.label for each in found.certificates if each.idx in places)
    known = [places[each.idx] for each in found.certificates if each.idx in places]
    return len(known) == len(found) and images.take(np.sort(known)).fingerprint() == found.images_sha256


def plain_judge(subject: Subject, device: str = "cpu") -> Judge:
    """Return the network itself, without noise."""
    network = subject.classifier.eval().to(device)

    @torch.no_grad()
    def judge(images: ImageSet) -> IntArray:
        parts = [unit_images(images, slice(at, at + _BATCH)).to(device) for at in range(0, len(images), _BATCH)]
        return torch.cat([network(network.from_unit(part)).argmax(1).cpu() for part in parts]).numpy()

    return judge


def smoothed_judge(smoothed: Smoothed, *, n: int, alpha: float, seed: int) -> Judge:
    """Return PREDICT: with probability at least 1 - alpha per image its class is the smoothed classifier's."""

    def judge(images: ImageSet) -> IntArray:
        return np.array([each.predict for each in smoothed.predict(images, n=n, alpha=alpha, seed=seed)])

    return judge


def strike(
    subject: Subject, attacks: Sequence[Attack], judge: Judge, certificates: CertificateSet | None, *, seed: int = 0,
    device: str = "cpu", report: Report = silent,
) -> list[Struck]:  # fmt: skip
    """Attack every image with each of the attacks, against its label, and let the judge say what became of it."""
    images, found, clean = subject.images, [], judge(subject.images)
    norm = "l2" if certificates is None or certificates.settings is None else certificates.settings.norm
    known = {} if certificates is None else _by_index(certificates)
    network = subject.classifier.to(device)
    for turn, attack in enumerate(attacks):
        parts = []
        for at in range(0, len(images), _BATCH):
            report(Status("attack", turn * len(images) + at, len(attacks) * len(images), "images"))
            target = torch.from_numpy(images.labels[at : at + _BATCH]).to(device)
            generator = torch.Generator().manual_seed(seed + at)
            part = unit_images(images, slice(at, at + _BATCH)).to(device)
            parts.append(_differentiably(network, part, target, attack, generator))
        there = torch.cat(parts).numpy()
        answers = judge(replace(images, images=there, name=f"{images.name}, attacked", role=None))
        distances = _distances(there - unit_images(images, slice(None)).numpy(), norm)
        found += [
            Struck(
                attack.epsilon, int(images.indices[i]), int(images.labels[i]), int(clean[i]), int(answers[i]),
                float(distances[i]), _reach(attack, there[0].size, norm), *known.get(int(images.indices[i]), (None, None)),
            )
            for i in range(len(images))
        ]  # fmt: skip
    report(Status("attack", len(attacks) * len(images), len(attacks) * len(images), "images"))
    return found


def summary_of(struck: Sequence[Struck], judge: JudgeName) -> list[dict[str, Any]]:
    """Return, for each epsilon, the shares of images that are right, still right, certified as far as the attack reaches."""
    rows = []
    for epsilon in dict.fromkeys(each.epsilon for each in struck):
        these = [each for each in struck if each.epsilon == epsilon]
        right = sum(each.clean == each.label for each in these)
        broken = sum(each.succeeded for each in these)
        known = [(each, each.radius) for each in these if each.radius is not None]
        certified = sum(each.certified == each.label and radius >= each.reach for each, radius in known)
        rows.append({
            "epsilon": epsilon, "images": len(these), "clean_accuracy": right / len(these),
            "attacked_accuracy": sum(each.attacked == each.label for each in these) / len(these),
            "success": broken / right if right else None,
            "certified_accuracy": certified / len(these) if known else None,
            "contradictions": sum(each.contradicts for each in these) if judge == "smoothed" and known else None,
        })  # fmt: skip
    return rows


def unit_images(images: ImageSet, part: slice) -> torch.Tensor:
    """Return some of the images as float32 in units of the pixel range."""
    found = np.asarray(images.images[part])
    return torch.from_numpy(found).float() / (255 if found.dtype == np.uint8 else 1)


def _differentiably(
    network: Any, part: torch.Tensor, target: torch.Tensor, attack: Attack, generator: torch.Generator
) -> torch.Tensor:
    try:
        return moved(network, part, target, attack, generator=generator).cpu()
    except RuntimeError as error:
        if "grad" not in str(error):
            raise
        raise InputError(
            f"model {network.name!r} has no gradients, which the attack follows: give the network itself, not an exported file"
        ) from error


def _by_index(certificates: CertificateSet) -> dict[int, tuple[int, float]]:
    """Return the certified class and radius of every image that has a claim."""
    return {each.idx: (each.predict, each.radius) for each in certificates.certificates if not each.abstained}


def _reach(attack: Attack, pixels: int, norm: str) -> float:
    """Return how far, in a norm, an attack on so many numbers may get at most."""
    in_l2 = attack.epsilon * (pixels**0.5 if attack.norm == "linf" else 1.0)
    return in_l2 * pixels**0.5 if norm == "l1" else in_l2


def _distances(moves: FloatArray, norm: str) -> FloatArray:
    flat = moves.reshape(len(moves), -1).astype(np.float64)
    found: FloatArray = np.linalg.norm(flat, ord=1 if norm == "l1" else 2, axis=1)
    return found
