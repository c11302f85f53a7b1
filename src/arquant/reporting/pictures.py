"""The gallery: certified images again from their data set, checked against the hash in the sidecar."""

import base64
import re
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from arquant.base.errors import ArquantError
from arquant.certificates.certificate import Certificate, CertificateSet
from arquant.images.imageset import Images, ImageSet
from arquant.reporting.model import Entry, Picture

PER_ROW = 6
LARGEST = 96
"""pixels per side of an embedded picture"""

_READABLE = re.compile(r"sample|cifar10(:.+)?|folder:.+|npz:.+")
"""data that are only read; a factory would run code that a file names"""

Gallery = tuple[tuple[str, tuple[Picture, ...]], ...]


def gallery(entry: Entry) -> tuple[Gallery, str]:
    """Return rows of pictures of an entry's certificates, and a note; no rows if the images cannot be had again."""
    certificates = entry.certificates
    if certificates is None:
        return (), "There are no certificates yet."
    found = certificates.provenance.get("data")
    recorded = found if isinstance(found, dict) else {}
    name = str(recorded.get("name", ""))
    spec = name.removesuffix(" (certify)")
    if not _READABLE.fullmatch(spec):
        return (), f"Pictures are left out: the certificates' data {name or 'unknown'!r} cannot be read again by name."
    try:
        images = _images_of(certificates, spec, recorded)
    except (ArquantError, OSError, TypeError, ValueError) as error:
        return (), f"Pictures are left out: {error}"
    if images is None and spec.startswith("folder:") and "shape" not in recorded:
        return (), (
            f"Pictures are left out: these certificates do not record what photos of {spec!r} were resized to, as those of "
            "later versions do; or the photos found here are others."
        )
    if images is None:
        return (), f"Pictures are left out: the images of {spec!r} found here are not those that were certified."
    where = {int(index): position for position, index in enumerate(images.indices)}
    rows = [
        (title, tuple(_picture(images, where[c.idx], c) for c in chosen))
        for title, chosen in _choices(certificates)
        if chosen
    ]
    return tuple(rows), f"Images of {name}, certificates of {entry.name}."


def _images_of(certificates: CertificateSet, spec: str, recorded: Mapping[str, Any]) -> ImageSet | None:
    """Return the certified images, if those read now as the record says have the recorded hash."""
    from arquant.loading.datasets import load_data

    shape = recorded.get("shape")
    size = None if shape is None else (int(shape[0]), int(shape[1]), int(shape[2]))
    found = load_data(spec, "certify", size=size, fit=recorded.get("fit"))
    found = found.named_as(tuple(map(str, recorded.get("class_names", ()))))
    where = {int(index): position for position, index in enumerate(found.indices)}
    if not all(c.idx in where for c in certificates.certificates):
        return None
    chosen = found.take(sorted(where[c.idx] for c in certificates.certificates))
    return chosen if chosen.fingerprint() == certificates.images_sha256 else None


def _choices(certificates: CertificateSet) -> list[tuple[str, list[Certificate]]]:
    rows = certificates.certificates
    right = sorted((c for c in rows if c.correct), key=lambda c: (-c.radius, c.idx))
    largest = right[:PER_ROW]
    smallest = right[max(len(largest), len(right) - PER_ROW) :][::-1]
    wrong = sorted((c for c in rows if not c.correct and not c.abstained), key=lambda c: (-c.radius, c.idx))
    abstained = sorted((c for c in rows if c.abstained), key=lambda c: c.idx)
    return [
        ("Largest radii", largest),
        ("Smallest radii", smallest),
        ("Certified, but the wrong class", wrong[:PER_ROW]),
        ("Abstained: nothing is claimed", abstained[:PER_ROW]),
    ]


def _picture(images: ImageSet, position: int, certificate: Certificate) -> Picture:
    names = images.class_names

    def named(klass: int) -> str:
        return names[klass] if 0 <= klass < len(names) else f"class {klass}" if klass >= 0 else "abstain"

    uri = data_uri(images.images[position])
    return Picture(uri, certificate, named(certificate.label), named(certificate.predict), named(_tried(certificate)))


def _tried(certificate: Certificate) -> int:
    """Return the class that the votes of an image were counted for, which an abstention does not state."""
    if not certificate.abstained:
        return certificate.predict
    return next((klass for klass, votes in certificate.counts if votes == certificate.votes), certificate.predict)


def data_uri(image: Images) -> str:
    """Return an image (C, H, W) as a PNG data URI; one or three channels, others show their first."""
    levels = image if image.dtype == np.uint8 else np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    pixels = levels.transpose(1, 2, 0) if levels.shape[0] == 3 else levels[0]
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((LARGEST, LARGEST))
    buffer = BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
