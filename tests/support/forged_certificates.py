"""Certificates forged with care: whatever of table and sidecar follows from the forged values is made to follow."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arquant.certificates.certificate import ABSTAIN, Certificate, Settings
from arquant.certificates.files import labels_digest, read_certificates, settings_json, write_sidecar
from arquant.certificates.table import HEADER, format_row
from arquant.certificates.verdict import judge
from arquant.noise.keys import noise_key

Rows = Sequence[Certificate]


def voted(row: Certificate, settings: Settings, counts: dict[int, int], klass: int, **changes: Any) -> Certificate:
    """The row that these votes for a class would make, with its bounds, radius and stop."""
    n = sum(counts.values())
    verdict = judge(counts, klass, n, settings)
    assert verdict is not None
    return dataclasses.replace(
        row, n=n, counts=tuple(sorted(counts.items())), votes=counts.get(klass, 0), stop=verdict.stop,
        predict=klass if verdict.radius > 0 else ABSTAIN, p_lower=verdict.p_lower, p_upper=verdict.p_upper,
        radius=verdict.radius, **changes,
    )  # fmt: skip


def tried(row: Certificate) -> int:
    """The class that a row tried, its most voted one where it abstained."""
    return row.predict if not row.abstained else max(row.counts, key=lambda pair: pair[1])[0]


def _untruncated(row: Certificate, settings: Settings) -> Certificate:
    """The row with the radius of its votes: what was read is truncated, and would be once more."""
    verdict = None if row.abstained else judge(dict(row.counts), row.predict, row.n, settings)
    return row if verdict is None else dataclasses.replace(row, radius=verdict.radius)


def forge(
    run: Path,
    rows: Callable[[Rows, Settings], Rows] = lambda rows, settings: rows,
    *,
    images: str | None = None,
    model: str | None = None,
    record: Callable[[dict[str, Any]], None] = lambda record: None,
    **settings: Any,
) -> None:
    """Rewrite the certificates of a folder; key, identity, digests and counts of the sidecar follow."""
    found = read_certificates(run)
    assert found.settings is not None
    new = dataclasses.replace(found.settings, **settings)
    forged = [_untruncated(row, new) for row in rows(found.certificates, new)]
    provenance = json.loads(json.dumps(dict(found.provenance)))
    fingerprint = model or provenance["model"]["fingerprint"]
    images = images or found.images_sha256
    provenance["identity"].update(settings=settings_json(new), images=images, model=fingerprint)
    provenance["model"]["fingerprint"] = fingerprint
    provenance["data"]["images"] = len(forged)
    provenance["labels_sha256"] = labels_digest((row.idx, row.label) for row in forged)
    provenance["noise"]["key_id"] = noise_key(new.seed, "certify", fingerprint).id
    record(provenance)
    (run / "certificates.tsv").write_text("\n".join([HEADER, *map(format_row, forged)]) + "\n")
    write_sidecar(run / "certificates.tsv", new, rows=len(forged), images_sha256=images, provenance=provenance)
