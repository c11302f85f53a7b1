"""The table of a benchmark: every method's figures over the seeds, and its paired difference from the first one."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np

from arquant.base.progress import duration
from arquant.certificates.bounds import FloatArray
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.resampling import MINIMUM_SEEDS, Interval, shown, two_level_bootstrap, verdict
from arquant.models.tracing.layer import Layers
from arquant.quantization.costs import Bops, Cost, LatencyTable, WeightBytes
from arquant.quantization.policy import Policy
from arquant.quantization.quantizers import QUANTIZERS
from arquant.reporting.options import TableFormat
from arquant.reporting.tables import Table, latex, markdown, text, without_empty_columns
from arquant.searching.benchmarking import Contender, final_seconds

RADII = (0.25, 0.5, 0.75, 1.0)
MORE_RADII = (*RADII, 1.25, 1.5, 1.75)
"""in the data: those of the paper's tables"""
WITHOUT_NOISE, CONSTANT = "atmc", "one answer for all"
"""the recipe beside which the constant classifier stands, since what never saw noise can fall below it; and that row's name"""
Row = dict[str, Any]
_TOO_FEW = f"fewer than {MINIMUM_SEEDS} seeds"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Contenders of one benchmark, the float network first.

    Attributes:
        first: the method that the others are compared with.
        tables: of latency or energy.
    """

    contenders: Sequence[Contender]
    first: str
    layers: Layers
    tables: Sequence[LatencyTable] = ()

    def rows(self) -> list[Row]:
        """Return the figures of every contender as plain data; unknown ones are None."""
        base = next(each for each in self.contenders if each.name == self.first)
        rows = [self._row(each, base) for each in self.contenders]
        if any(each.recipe == WITHOUT_NOISE for each in self.contenders):
            rows.append(self._constant_row(rows[0]))
        return rows

    def constant_acr(self) -> float | None:
        """Return the ACR of a classifier that always answers the most frequent label: what to hold the others against."""
        share, radius = self._constant()
        return share * radius if radius else None

    def _constant(self) -> tuple[float, float]:
        """Return the share of images that the constant classifier has right, and the radius of each; 0 if unknown."""
        found = next((each for one in self.contenders for each in one.certificates.values()), None)
        if found is None or found.settings is None:
            return 0.0, 0.0
        return float(np.bincount(found.labels).max() / len(found)), found.settings.largest_radius

    def _constant_row(self, like: Row) -> Row:
        """Return the row of the constant classifier, with the names of another row."""
        share, radius = self._constant()
        return {
            **dict.fromkeys(like), "method": CONSTANT, "quantizer": {}, "folders": {},
            "acr": _over_seeds([share * radius]), "clean_accuracy": _over_seeds([share]),
            "certified_accuracy": {str(r): _over_seeds([share * (r <= radius)]) for r in MORE_RADII},
        }  # fmt: skip

    def _row(self, one: Contender, base: Contender) -> Row:
        sets = list(one.certificates.values())
        return {
            "method": one.name,
            "policy": None if one.policy is None else one.policy.widths(),
            "quantizer": dict(one.quantizer),
            "acr": _over_seeds([each.acr for each in sets]),
            "clean_accuracy": _over_seeds([each.clean_accuracy for each in sets]),
            "certified_accuracy": {
                str(radius): _over_seeds([each.certified_accuracy(radius) for each in sets]) for radius in MORE_RADII
            },
            **self._costs(one),
            "candidates_examined": one.examined,
            "search_seconds": one.seconds,
            "search_steps": one.steps,
            "final_seconds": final_seconds(one),
            "difference": _difference(base, one),
            "folders": {str(seed): str(folder) for seed, folder in one.folders.items()},
            "failure": one.failure,
        }

    def _costs(self, one: Contender) -> Row:
        known = one.failure is None
        costs: dict[str, Cost] = {"bops": Bops(), "bops_paper": Bops("paper"), "bytes": WeightBytes()}
        found = {name: self._cost(cost, one.policy) if known else None for name, cost in costs.items()}
        if one.policy is not None and QUANTIZERS[one.quantizer["learn"]].shares_weights:
            found |= {"bops": None, "bops_paper": None}  # computed with 8 bits, whatever the file has
        # a table knows no float widths
        timed = {table.name: table.cost(one.policy, self.layers) for table in self.tables if one.policy is not None}
        return {**found, "latency": None, **timed}

    def _cost(self, cost: Cost, policy: Policy | None) -> float:
        return cost.float_cost(self.layers) if policy is None else cost.cost(policy, self.layers)


def _over_seeds(values: Sequence[float]) -> Row | None:
    """Return the mean and the sample standard deviation, and the values themselves."""
    if not values:
        return None
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "standard_deviation": deviation, "by_seed": list(map(float, values))}


def _difference(base: Contender, one: Contender) -> Row | None:
    """Return a contender minus the first one, paired by image and seed; None for the first one itself."""
    if one is base or not base.certificates or not one.certificates:
        return None
    measures: dict[str, Callable[[CertificateSet], FloatArray]] = {
        "acr": lambda found: found.credited,
        "clean_accuracy": lambda found: found.certified(0.0).astype(np.float64),
    }
    return {"to": base.name} | {
        name: _gap(_table(base, measure), _table(one, measure)) for name, measure in measures.items()
    }


def _table(one: Contender, measure: Callable[[CertificateSet], FloatArray]) -> FloatArray:
    """Return what is measured of every seed and image: (seeds, images), in the order of seeds and indices."""
    sets = (found for _, found in sorted(one.certificates.items()))
    return np.array([measure(found)[np.argsort(found.idx)] for found in sets])


def _gap(first: FloatArray, second: FloatArray) -> Row:
    if len(first) < MINIMUM_SEEDS:
        return {"value": float(second.mean() - first.mean()), "low": None, "high": None, "verdict": _TOO_FEW}
    gap = two_level_bootstrap(first, second, paired_seeds=True)
    return {**gap._asdict(), "verdict": verdict(gap, first.shape[1])}


def table_of(found: Mapping[str, Any]) -> Table:
    """Return the table of a benchmark's plain data."""
    others = _others(found)
    columns = (
        "method", "ACR", "accuracy", *(f"r = {radius:g}" for radius in RADII), "GBOPs", "GBOPs (paper)", "kB", "latency",
        *others, "search", "steps", f"ACR minus {found['first']}", "verdict",
    )  # fmt: skip
    rows = tuple(_cells(row, found["images"], others) for row in found["rows"])
    return without_empty_columns(Table("Methods", columns, rows, _caption(found)))


_FIGURES = (
    "method", "policy", "quantizer", "acr", "clean_accuracy", "certified_accuracy", "bops", "bops_paper", "bytes", "latency",
    "candidates_examined", "search_seconds", "search_steps", "final_seconds", "difference", "folders", "failure",
)  # fmt: skip
"""of every row, in the order of the CSV"""


def _others(found: Mapping[str, Any]) -> list[str]:
    """Return the names of further costs, such as energy."""
    return sorted({name for row in found["rows"] for name in row} - set(_FIGURES))


def _cells(row: Row, images: int, others: Sequence[str]) -> tuple[str, ...]:
    gap = row["difference"]
    return (
        row["method"],
        _spread(row["acr"], "{:.4f}"),
        _spread(row["clean_accuracy"], "{:.1f}", 100),
        *(_spread(row["certified_accuracy"][str(radius)], "{:.1f}", 100) for radius in RADII),
        _number(row["bops"], "{:.4g}", 1e-9),
        _number(row["bops_paper"], "{:.4g}", 1e-9),
        _number(row["bytes"], "{:,.1f}", 1e-3),
        *(_number(row.get(name), "{:.4g}") for name in ("latency", *others)),
        "–" if row["search_seconds"] is None else duration(row["search_seconds"]),
        _number(row["search_steps"], "{:,}"),
        "–" if gap is None else _shown_gap(gap["acr"], images),
        f"failed: {row['failure']}" if row["failure"] else "–" if gap is None else gap["acr"]["verdict"],
    )


def _shown_gap(gap: Row, images: int) -> str:
    if gap["low"] is None:
        return f"{gap['value']:+.4f}"
    return shown(Interval(gap["value"], gap["low"], gap["high"]), images, "{:+.4f}")


def _spread(figure: Row | None, number: str, scale: float = 1) -> str:
    if figure is None:
        return "–"
    deviation = figure["standard_deviation"]
    spread = "" if deviation is None else f" ± {number.format(scale * deviation)}"
    return number.format(scale * figure["mean"]) + spread


def _number(value: float | None, number: str, scale: float = 1) -> str:
    return "–" if value is None else number.format(value if scale == 1 else scale * value)


def _caption(found: Mapping[str, Any]) -> str:
    quantizers = "each method with its own quantizer" if found["native"] else "one quantizer for all"
    constant = found["constant_acr"]
    return (
        f"Budget {found['budget']}, which all methods keep; {quantizers}; the same fine-tuning for all, the float network too, "
        f"with seeds {', '.join(map(str, found['seeds']))}. Means and sample standard deviations over seeds; accuracies in % "
        f"of {found['images']} images, certified with {found['certified_with']}. Differences: two-level 95 % bootstrap over "
        "images and seeds, paired by both; an interval that holds 0 is a tie. Search: without the final fine-tunings; "
        "steps as if no candidate had been abandoned."
        + ("" if constant is None else f" A classifier with one answer for all images has ACR {constant:.4f}.")
    )


def as_csv(found: Mapping[str, Any]) -> str:
    """Write one row per method, unrounded; an empty field is unknown."""
    names = (*_FIGURES, *_others(found))
    plain = [_flat({name: row[name] for name in names if name in row}) for row in found["rows"]]
    buffer = StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(name for row in plain for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return buffer.getvalue()


def _flat(row: Row) -> Row:
    """Return the figures of a row by names such as acr_mean and difference_acr_low."""
    found: Row = {}
    for name, value in row.items():
        if name in ("policy", "quantizer", "folders", "by_seed"):
            continue
        if isinstance(value, Mapping):
            found |= {f"{name}_{inner}": each for inner, each in sorted(_flat(dict(value)).items())}
        else:
            found[name] = value
    return found


FORMATS: dict[TableFormat, Callable[[Mapping[str, Any]], str]] = {
    "text": lambda found: text(table_of(found)),
    "md": lambda found: markdown(table_of(found)),
    "latex": lambda found: latex(table_of(found)),
    "csv": as_csv,
}
"""how the data of a benchmark become text"""
