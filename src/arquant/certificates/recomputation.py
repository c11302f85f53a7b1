"""Distrust a certificate set: derive its bounds and radii again from the votes, and list what does not follow."""

import math
from typing import NamedTuple

import numpy as np

from arquant.base.errors import FileFormatError, InputError
from arquant.certificates.adaptive import level_at
from arquant.certificates.bounds import looks
from arquant.certificates.certificate import ABSTAIN, Certificate, CertificateSet, Settings
from arquant.certificates.claims import claim
from arquant.certificates.files import labels_digest
from arquant.certificates.verdict import judge

_TOLERANCE = 1e-9
"""what another version of scipy, or the 8 decimals of a file, may move"""
_FILE_STEPS = (1e-8, 1e-3)
"""radii in files are truncated to 8 decimals, or to 3 in compatibility mode"""


class Disagreement(NamedTuple):
    """A recorded value that does not follow from the votes and the settings."""

    idx: int
    field: str
    recorded: object
    recomputed: object


def recompute(certificates: CertificateSet) -> list[Disagreement]:
    """List every recorded value that does not follow from the votes under the set's settings.

    Checked per image: that the class was selected by n0 votes of which it has some, or is the label, as the mode wants; that
    the counts add up to n and contain the votes; that n is a number of samples at which the
    stopping rule may claim; p_lower, p_upper and the radius; and that a class is claimed exactly where a positive
    radius follows. Radii may be truncated as files truncate them, never larger than what follows.
    """
    settings = certificates.settings
    if settings is None:
        raise InputError("settings unknown: these certificates have no sidecar, so nothing can be recomputed from them")
    return [found for each in certificates.certificates for found in _check(each, settings)]


def check_follows(certificates: CertificateSet, where: str) -> None:
    """Distrust a set that was read from `where`: a file that was changed or damaged is no evidence.

    Raises:
        FileFormatError: a value does not follow from the votes (the first image is named), or the rows are not those of the
            images and labels that were certified, where the sidecar tells; earlier versions did not record them.
    """
    found = recompute(certificates)
    if found:
        idx, field, recorded, derived = found[0]
        more = f"; {len(found) - 1} more values do not follow" if len(found) > 1 else ""
        raise FileFormatError(
            f"{where} is damaged: the {field} of image {idx} is {recorded} where the votes make it {derived}{more}"
        )
    labels = certificates.provenance.get("labels_sha256")
    if labels is not None and labels != labels_digest((c.idx, c.label) for c in certificates.certificates):
        raise FileFormatError(
            f"{where} is damaged: rows are missing, or labels or indices are not those that were certified"
        )


def check_stops(certificates: CertificateSet, where: str) -> None:
    """Refuse a row that did not stop as the stopping rule does with its votes.

    A claim at any look is sound (`recompute`), but a run stops where its rule says: other rows were made by another one.
    """
    settings = certificates.settings
    if settings is None:
        raise InputError(f"{where}: settings unknown, so nothing can be recomputed")
    for row in certificates.certificates:
        of_votes = (klass for klass, votes in row.counts if votes == row.votes)
        tried = row.predict if not row.abstained else next(of_votes, ABSTAIN)
        verdict = judge(dict(row.counts), tried, row.n, settings)
        if verdict is None or verdict.stop != row.stop:
            wanted = "go on" if verdict is None else f"be {verdict.stop!r}"
            raise FileFormatError(
                f"{where} is damaged: image {row.idx} stopped at {row.n} votes by {row.stop!r}, where the rule would {wanted}"
            )


def check_where_known(certificates: CertificateSet, where: str) -> None:
    """Call `check_follows` if the settings are known; without a sidecar nothing can be checked."""
    if certificates.settings is not None:
        check_follows(certificates, where)


def _check(certificate: Certificate, settings: Settings) -> list[Disagreement]:
    found = [*_check_selection(certificate, settings), *_check_votes(certificate)]
    allowed = [int(t) for t in looks(settings.n)] if settings.adaptive is not None else [settings.n]
    if certificate.n not in allowed or (certificate.stop == "fixed" and certificate.n != settings.n):
        found.append(Disagreement(certificate.idx, "n", certificate.n, f"one of {allowed}"))
    if found:
        return found
    if certificate.given_up:
        return (
            [] if certificate.abstained else [Disagreement(certificate.idx, "predict", certificate.predict, "ABSTAIN")]
        )
    try:
        level = level_at(certificate.n, settings.n, settings.effective_alpha, settings.adaptive)
    except InputError as error:
        return [Disagreement(certificate.idx, "stop", certificate.stop, str(error))]
    return _check_claim(certificate, settings, level)


def _check_selection(certificate: Certificate, settings: Settings) -> list[Disagreement]:
    selecting, idx = settings.mode == "select", certificate.idx
    found = []
    if certificate.n0 != (settings.n0 if selecting else 0):
        found.append(Disagreement(idx, "n0", certificate.n0, settings.n0 if selecting else 0))
    elif selecting and not certificate.select_votes:
        found.append(Disagreement(idx, "select_votes", 0, "at least 1"))
    if not selecting and certificate.predict not in (certificate.label, ABSTAIN):
        found.append(Disagreement(idx, "predict", certificate.predict, certificate.label))
    return found


def _check_votes(certificate: Certificate) -> list[Disagreement]:
    found = []
    total = sum(votes for _, votes in certificate.counts)
    if total != certificate.n:
        found.append(Disagreement(certificate.idx, "counts", total, certificate.n))
    counts = dict(certificate.counts)
    if len(counts) < len(certificate.counts):
        found.append(Disagreement(certificate.idx, "counts", "a class twice", "each class once"))
    known = counts.get(certificate.predict, 0) if not certificate.abstained else certificate.votes
    if known != certificate.votes or (known and known not in counts.values()):
        found.append(Disagreement(certificate.idx, "votes", certificate.votes, known))
    return found


def _check_claim(certificate: Certificate, settings: Settings, level: float) -> list[Disagreement]:
    others = [votes for _, votes in certificate.counts]
    if certificate.votes:
        others.remove(certificate.votes)  # whichever class it was: the rest is what the runner-up comes from
    runner_up = max(others, default=0) if settings.certificate == "multiclass" else None
    proved = claim(
        certificate.votes, certificate.n, level, settings.sigma, noise_kind=settings.noise, runner_up=runner_up
    )
    p_lower, radius = float(proved.p_lower[0]), float(proved.radius[0])
    p_upper = None if proved.p_upper is None else float(proved.p_upper[0])
    found = []
    for name, recorded, derived in [
        ("p_lower", certificate.p_lower, p_lower),
        ("p_upper", certificate.p_upper, p_upper),
    ]:
        if (recorded is None) != (derived is None) or not np.isclose(recorded or 0, derived or 0, 0, _TOLERANCE):
            found.append(Disagreement(certificate.idx, name, recorded, derived))
    if not any(_truncation(certificate.radius, radius, step) for step in _FILE_STEPS):
        found.append(Disagreement(certificate.idx, "radius", certificate.radius, radius))
    if certificate.abstained != (radius == 0):
        found.append(Disagreement(certificate.idx, "predict", certificate.predict, f"radius {radius}"))
    return found


def _truncation(recorded: float, derived: float, step: float) -> bool:
    """Tell whether the recorded radius is the derived one, or that one truncated to a multiple of `step`."""
    if math.isclose(recorded, derived, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        return True
    if not 0 <= derived - recorded < step * (1 + 1e-4):
        return False
    return abs(recorded / step - round(recorded / step)) < 1e-4
