"""Measure what each layer loses at each width, all other layers at many bits.

An estimate for people and for the strategy `ilp`. Without fine-tuning it misleads: weights look far more sensitive than
activations, and after fine-tuning the reverse holds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from arquant.base.journal import Record, TypedJournal
from arquant.base.progress import Report, Status, silent
from arquant.base.records import read_record
from arquant.certificates.bounds import FloatArray
from arquant.quantization.policy import Bits, Policy
from arquant.searching.journal_lines import Line, ReferenceVotes
from arquant.searching.score import Score, standard_error
from arquant.searching.sensitivity_table import KINDS, SensitivityTable


@dataclass(frozen=True, kw_only=True)
class BaseScore(Line):
    """The score of the base policy, image by image."""

    base: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Damage(Line):
    """What one change costs: the base's score minus its own."""

    layer: str
    kind: str
    bits: int
    damage: float
    standard_error: float


def read_measured_line(data: Record, where: str) -> Line:
    """Return a line of the journal of a measurement."""
    if data.get("kind") == ReferenceVotes.tag:
        return read_record(ReferenceVotes, data, where)
    return read_record(BaseScore if "base" in data else Damage, data, where)


@dataclass(frozen=True)
class Change:
    """One layer with fewer bits in its weights (`w`) or its input (`a`)."""

    layer: str
    kind: str
    bits: int

    def of(self, base: Policy) -> Policy:
        """Return `base` with this change."""
        there = base[self.layer]
        return base.with_({self.layer: Bits(self.bits, there.a) if self.kind == "w" else Bits(there.w, self.bits)})


def changes(base: Policy, layers: Sequence[str], min_bits: int) -> Iterator[Change]:
    """Yield every width below the base's, of every layer."""
    for layer in layers:
        for kind in KINDS:
            for bits in range(min_bits, getattr(base[layer], kind)):
                yield Change(layer, kind, bits)


def measure_sensitivities(
    evaluate: Callable[[Policy], Score],
    base: Policy,
    layers: Sequence[str],
    journal: TypedJournal[Line],
    *,
    min_bits: int = 2,
    report: Report = silent,
) -> SensitivityTable:
    """Return the base's score minus that of each single change, paired by image. What the journal holds is not measured again.

    Args:
        evaluate: scores a policy; the same images and noise every time.
        base: widths of the layers that are not changed.
        layers: which to change.
    """
    todo = list(changes(base, layers, min_bits))
    score = _base_score(evaluate, base, journal)
    known = {(line.layer, line.kind, line.bits): line for line in journal.lines if isinstance(line, Damage)}
    for number, change in enumerate(todo):
        place = (change.layer, change.kind, change.bits)
        if place not in known:
            known[place] = _measured(evaluate(change.of(base)), score, change)
            journal.add(known[place])
        details = {"now": f"{change.layer} {change.kind}{change.bits}"}
        report(Status("sensitivity", number + 1, len(todo), "policies", details))
    values: dict[str, dict[str, dict[int, float]]] = {}
    errors: dict[str, dict[str, dict[int, float]]] = {}
    for layer in layers:
        for kind in KINDS:
            top = getattr(base[layer], kind)
            lines = {bits: known[layer, kind, bits] for bits in range(min_bits, top)}
            values.setdefault(layer, {})[kind] = {**{bits: line.damage for bits, line in lines.items()}, top: 0.0}
            errors.setdefault(layer, {})[kind] = {
                **{bits: line.standard_error for bits, line in lines.items()},
                top: 0.0,
            }
    return SensitivityTable(values, errors, {"base_score": float(score.mean())})


def _base_score(evaluate: Callable[[Policy], Score], base: Policy, journal: TypedJournal[Line]) -> FloatArray:
    known = [line for line in journal.lines if isinstance(line, BaseScore)]
    if not known:
        known = [BaseScore(base=tuple(float(value) for value in evaluate(base).per_image))]
        journal.add(known[0])
    return np.array(known[0].base, dtype=np.float64)


def _measured(score: Score, base: FloatArray, change: Change) -> Damage:
    gap = base - score.per_image
    return Damage(
        layer=change.layer,
        kind=change.kind,
        bits=change.bits,
        damage=float(gap.mean()),
        standard_error=standard_error(gap),
    )
