"""Measuring what each layer loses at each width, all other layers at many bits.

An estimate for people and for the strategy `ilp`. Without fine-tuning it misleads: weights look far more sensitive than
activations, and after fine-tuning the reverse holds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from arquant.base.journal import Journal, Record
from arquant.base.progress import Report, Status, silent
from arquant.certificates.bounds import FloatArray
from arquant.quantization.policy import Bits, Policy
from arquant.searching.score import Score, standard_error
from arquant.searching.sensitivity_table import KINDS, SensitivityTable


@dataclass(frozen=True)
class Change:
    """One layer with fewer bits in its weights (`w`) or its input (`a`)."""

    layer: str
    kind: str
    bits: int

    def of(self, base: Policy) -> Policy:
        """`base` with this change."""
        there = base[self.layer]
        return base.with_({self.layer: Bits(self.bits, there.a) if self.kind == "w" else Bits(there.w, self.bits)})


def changes(base: Policy, layers: Sequence[str], min_bits: int) -> Iterator[Change]:
    """Every width below the base's, of every layer."""
    for layer in layers:
        for kind in KINDS:
            for bits in range(min_bits, getattr(base[layer], kind)):
                yield Change(layer, kind, bits)


def measure_sensitivities(
    evaluate: Callable[[Policy], Score],
    base: Policy,
    layers: Sequence[str],
    journal: Journal,
    *,
    min_bits: int = 2,
    report: Report = silent,
) -> SensitivityTable:
    """The base's score minus that of each single change, paired by image. What the journal holds is not measured again.

    Args:
        evaluate: scores a policy; the same images and noise every time.
        base: widths of the layers that are not changed.
        layers: which to change.
    """
    todo = list(changes(base, layers, min_bits))
    score = _base_score(evaluate, base, journal)
    known = {(row["layer"], row["kind"], row["bits"]): row for row in journal.records if "layer" in row}
    for number, change in enumerate(todo):
        place = (change.layer, change.kind, change.bits)
        if place not in known:
            known[place] = _measured(evaluate(change.of(base)), score, change, journal)
        details = {"now": f"{change.layer} {change.kind}{change.bits}"}
        report(Status("sensitivity", number + 1, len(todo), "policies", details))
    values: dict[str, dict[str, dict[int, float]]] = {}
    errors: dict[str, dict[str, dict[int, float]]] = {}
    for layer in layers:
        for kind in KINDS:
            top = getattr(base[layer], kind)
            rows = {bits: known[layer, kind, bits] for bits in range(min_bits, top)}
            values.setdefault(layer, {})[kind] = {**{b: r["damage"] for b, r in rows.items()}, top: 0.0}
            errors.setdefault(layer, {})[kind] = {**{b: r["standard_error"] for b, r in rows.items()}, top: 0.0}
    return SensitivityTable(values, errors, {"base_score": float(score.mean())})


def _base_score(evaluate: Callable[[Policy], Score], base: Policy, journal: Journal) -> FloatArray:
    rows = [row for row in journal.records if "base" in row]
    if not rows:
        journal.append({"base": [float(value) for value in evaluate(base).per_image]})
        rows = journal.records[-1:]
    return np.array(rows[0]["base"], dtype=np.float64)


def _measured(score: Score, base: FloatArray, change: Change, journal: Journal) -> Record:
    gap = base - score.per_image
    facts = {"layer": change.layer, "kind": change.kind, "bits": change.bits}
    journal.append({**facts, "damage": float(gap.mean()), "standard_error": standard_error(gap)})
    return journal.records[-1]
