"""The content of a report, as plain frozen data. A certificate is evidence, a candidate's estimate is not; they never mix."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from arquant.base.files import envelope
from arquant.certificates.certificate import Certificate, CertificateSet
from arquant.certificates.files import settings_json
from arquant.certificates.metrics import DEFAULT_RADII, metrics_json
from arquant.certificates.resampling import MINIMUM_IMAGES, Interval, shown, verdict
from arquant.reporting.search_content import Search, spelled_widths
from arquant.searching.sensitivity_table import SensitivityTable

SCHEMA, VERSION = "arquant.report", 1
SMALL_RADIUS = 0.25
SEVERAL = 0.03
"""share of images from which on a radius is said to be reached"""
NORMS = {"l2": "ℓ₂", "l1": "ℓ₁"}


@dataclass(frozen=True)
class LayerBits:
    """Widths of one layer, in order of execution; its share of the policy's bit operations and of its bytes, if known."""

    name: str
    w: int
    a: int
    bops_share: float | None
    bytes_share: float | None


@dataclass(frozen=True)
class Costs:
    """The costs of a model; None where the files do not tell.

    Attributes:
        bops: bit operations per image, exact convention.
        percent: of the same network at 32 x 32 bits.
        weight_bytes: of the quantized weights at their true widths.
        file_bytes: of `model.safetensors`.
        ms_per_vote: measured while certifying: the run's time divided by its votes, noise included.
    """

    bops: float | None = None
    percent: float | None = None
    weight_bytes: float | None = None
    file_bytes: int | None = None
    ms_per_vote: float | None = None


@dataclass(frozen=True, eq=False)
class Entry:
    """One model of the report.

    Attributes:
        name: in words that a stranger understands, unique within the report.
        role: "result", or a control: "float", "tuned" (the float network, trained on), "uniform" (of a search).
        folder: where it was read from, relative to what the user named.
        certificates: None if it has none (yet).
        refused: why its certificates, which do not follow from their votes, are none; empty if nothing is wrong with them.
        layers: the policy; empty for a float model or where unknown.
        config: of the run folder; empty if it has none.
        search: whose journal is in the run folder that the entry belongs to; None if there is none.
        shape: channels, height and width of its images; None where the files do not tell.
        colour: its number in the palette, the same in every figure.
    """

    name: str
    role: str
    folder: str
    certificates: CertificateSet | None = None
    refused: str = ""
    layers: tuple[LayerBits, ...] = ()
    costs: Costs = field(default_factory=Costs)
    config: Mapping[str, Any] = field(default_factory=dict)
    search: Search | None = None
    shape: tuple[int, ...] | None = None
    colour: int = 0

    @property
    def model_name(self) -> str:
        """Return the name of the model before quantization, as its configuration or its certificates have it."""
        recorded = self.provenance.get("model")
        known = recorded.get("name") if isinstance(recorded, Mapping) else recorded
        return str(self.config.get("model") or known or "unknown")

    @property
    def described(self) -> str:
        """Name the model and its widths, where known."""
        return f"{self.model_name}, {self.widths}" if self.widths else self.model_name

    @cached_property
    def acr(self) -> Interval | None:
        """Return ACR with its interval over images."""
        return self.certificates.bootstrap() if self.certificates is not None else None

    @cached_property
    def clean(self) -> Interval | None:
        """Return the share of images that are right, at any radius, with its interval over images."""
        return self.certificates.bootstrap(0.0) if self.certificates is not None else None

    @property
    def conditions(self) -> str:
        """Return the settings of its certificates; figures under other conditions must not be compared with its own."""
        settings = self.certificates.settings if self.certificates is not None else None
        if settings is None:
            return "unknown settings"
        alpha = f"α = {settings.alpha:g}" + (
            f" for all {settings.family_wise:,} images" if settings.family_wise else ""
        )
        more = ["multiclass"] * (settings.certificate == "multiclass") + ["of the label"] * (settings.mode == "label")
        more += ["adaptive"] * (settings.adaptive is not None)
        noise = f"{settings.noise} noise of σ = {settings.sigma:g} ({NORMS[settings.norm]} radii)"
        return ", ".join([noise, f"n = {settings.n:,}", alpha, *more])

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Return the certification run's record of itself."""
        return self.certificates.provenance if self.certificates is not None else {}

    @property
    def widths(self) -> str:
        """Return `float32`, `w4a4`, or `mixed w2-8, a3-8`; empty if unknown. First and last layers are left out."""
        if not self.layers:
            return "float32" if self.role in ("float", "tuned") else ""
        return spelled_widths([(layer.w, layer.a) for layer in self.layers])

    @property
    def is_mixed(self) -> bool:
        """Tell whether its layers have different widths, the first and the last one aside."""
        return self.widths.startswith("mixed")

    @property
    def limit(self) -> float | None:
        """Return the largest radius that its n votes can prove; None if its settings are unknown."""
        settings = None if self.certificates is None else self.certificates.settings
        return None if settings is None else settings.largest_radius

    def unprovable(self, radius: float) -> bool:
        """Tell whether no image could have been certified at this radius, whatever the model."""
        return self.limit is not None and radius > self.limit


@dataclass(frozen=True)
class Difference:
    """ACR and certified accuracy of `second` minus `first`, paired by image; or why they cannot be compared."""

    first: str
    second: str
    acr: Interval | None
    images: int = 0
    notes: tuple[str, ...] = ()
    certified_accuracy: Mapping[float, Interval] = field(default_factory=dict)
    """the difference at each radius"""

    @property
    def clean(self) -> Interval | None:
        """Return the difference of the shares that are right, at any radius."""
        return self.certified_accuracy.get(0.0)

    @property
    def verdict(self) -> str:
        """Say in words what the difference of ACR shows."""
        return "not comparable" if self.acr is None else verdict(self.acr, self.images)


@dataclass(frozen=True)
class Picture:
    """An image of the gallery: a PNG as a data URI, its certificate, and names of its classes; `tried` had the votes."""

    uri: str
    certificate: Certificate
    label: str
    predict: str
    tried: str


@dataclass(frozen=True, eq=False)
class Report:
    """Everything a report shows.

    Attributes:
        entries: the models, controls after the results of their run.
        differences: paired comparisons between them.
        searches: those of the runs that have a journal.
        gallery: title of each row and its pictures; of the first entry with certificates.
        gallery_note: why there are no pictures, or which entry's they are.
        notes: warnings of the readers, and what could not be shown.
        sensitivity: what each layer loses at each width, if that was measured.
    """

    entries: tuple[Entry, ...]
    differences: tuple[Difference, ...] = ()
    searches: tuple[Search, ...] = ()
    gallery: tuple[tuple[str, tuple[Picture, ...]], ...] = ()
    gallery_note: str = ""
    notes: tuple[str, ...] = ()
    sensitivity: SensitivityTable | None = None

    @property
    def certified(self) -> tuple[Entry, ...]:
        """Return the entries with certificates."""
        return tuple(entry for entry in self.entries if entry.certificates is not None)

    @property
    def judged(self) -> tuple[Entry, ...]:
        """Return the entries with certificates, and those whose certificates are refused."""
        return tuple(entry for entry in self.entries if entry.certificates is not None or entry.refused)

    @property
    def main(self) -> Entry | None:
        """Return the entry that headlines speak of: the first certified result, else whatever there is."""
        ranked = sorted(self.entries, key=lambda entry: (entry.certificates is None, entry.role != "result"))
        return ranked[0] if ranked else None

    @property
    def radii(self) -> tuple[float, ...]:
        """Return the field's radii, up to the first that no model reaches or that its n votes cannot prove."""
        largest = max((c.radius for e in self.certified for c in _rows(e) if c.correct), default=0.0)
        reached = [r for r in DEFAULT_RADII if r <= largest]
        more = [r for r in DEFAULT_RADII[len(reached) :][:1] if not all(e.unprovable(r) for e in self.certified)]
        return (*reached, *more) or DEFAULT_RADII[:1]

    @property
    def large_radius(self) -> float:
        """Return the radius of large changes: the largest that some model reaches for several images in a hundred."""
        sets = [entry.certificates for entry in self.certified if entry.certificates is not None]
        reached = [r for r in self.radii if any(found.certified_accuracy(r) >= SEVERAL for found in sets)]
        return max([*reached, 2 * SMALL_RADIUS])

    @property
    def split_radius(self) -> float:
        """Return the radius that divides small certificates from large ones: 0.5, or less where n votes cannot prove it."""
        limits = [entry.limit for entry in self.certified if entry.limit is not None]
        return 0.5 if not limits or min(limits) >= 0.5 else SMALL_RADIUS

    @cached_property
    def acr_digits(self) -> int:
        """Return how many decimals of an ACR mean something: those that its intervals leave."""
        found = [d.acr for d in self.differences if d.acr is not None and d.images >= MINIMUM_IMAGES]
        found += [e.acr for e in self.certified if e.acr is not None and len(e.certificates or ()) >= MINIMUM_IMAGES]
        halves = [(interval.high - interval.low) / 2 for interval in found if interval.high > interval.low]
        return min(max(math.ceil(-math.log10(min(halves))), 2), 4) if halves else 3

    def acr_text(self, interval: Interval, images: int, *, signed: bool = False) -> str:
        """Return an ACR, or a difference of two, with its interval over images."""
        return shown(interval, images, f"{{:{'+' if signed else ''}.{self.acr_digits}f}}")

    def entry(self, name: str) -> Entry:
        """Return the entry of this name."""
        return next(entry for entry in self.entries if entry.name == name)


def to_json(report: Report) -> dict[str, Any]:
    """Return the content of `report.json`: the report without pictures, with the candidates of the first search."""
    first = report.searches[0] if report.searches else Search("")
    data = {
        "models": [_entry_json(entry) for entry in report.entries],
        "differences": [difference_json(difference) for difference in report.differences],
        "candidates": [vars(candidate) for candidate in first.candidates],
        "search": dict(first.facts),
        "searches": [
            {"folder": each.folder, "search": dict(each.facts), "candidates": [vars(c) for c in each.candidates],
             "winners": [vars(winner) for winner in each.winners]}
            for each in report.searches
        ],
        "gallery": [{"title": title, "idx": [p.certificate.idx for p in row]} for title, row in report.gallery],
        "sensitivity": None if report.sensitivity is None else report.sensitivity.to_json(),
        "notes": list(report.notes),
    }  # fmt: skip
    return envelope(SCHEMA, VERSION, data)


def difference_json(difference: Difference) -> dict[str, Any]:
    """Return a difference as plain data, radii as text."""
    return {
        "first": difference.first, "second": difference.second, "images": difference.images, "verdict": difference.verdict,
        "acr": None if difference.acr is None else difference.acr._asdict(),
        "certified_accuracy": {str(r): interval._asdict() for r, interval in difference.certified_accuracy.items()},
        "notes": list(difference.notes),
    }  # fmt: skip


def _entry_json(entry: Entry) -> dict[str, Any]:
    found = entry.certificates
    data: dict[str, Any] = {
        "name": entry.name, "role": entry.role, "folder": entry.folder, "model": entry.model_name,
        "costs": vars(entry.costs), "policy": [vars(layer) for layer in entry.layers], "config": dict(entry.config),
        "refused": entry.refused, "certificates": None,
    }  # fmt: skip
    if found is not None:
        data["metrics"] = metrics_json(found)
        data["settings"] = settings_json(found.settings) if found.settings is not None else None
        data["images_sha256"] = found.images_sha256
        data["provenance"] = dict(found.provenance)
        data["certificates"] = [
            {"idx": c.idx, "label": c.label, "predict": c.predict, "radius": c.radius, "votes": c.votes, "n": c.n,
             "p_lower": c.p_lower}
            for c in found.certificates
        ]  # fmt: skip
    return data


def _rows(entry: Entry) -> tuple[Certificate, ...]:
    return tuple(entry.certificates.certificates) if entry.certificates is not None else ()
