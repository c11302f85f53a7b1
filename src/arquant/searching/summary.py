"""Sum up what a search found, as plain data and as text: which numbers are estimates, and which are certificates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arquant.certificates.certificate import CertificateSet
from arquant.certificates.metrics import compare, metrics_json
from arquant.certificates.resampling import Interval, shown, verdict
from arquant.quantization.policy import Policy
from arquant.searching.history import models_made
from arquant.searching.journal_lines import Candidate, Estimate, SecondLook
from arquant.searching.options import SearchOptions
from arquant.searching.study import Study

SHOWN_RADII = ("0.0", "0.25", "0.5", "1.0")


@dataclass(frozen=True, eq=False)
class Point:
    """The result within one budget.

    Attributes:
        winner: the chosen candidate.
        shortlist: second looks at the best candidates.
        uniform: the balanced uniform policy of the budget, the control.
        is_uniform: whether the winner has the same widths in every searched layer, be it those of the control or others.
        controls: certificates of `float` and `uniform`, where they were asked for.
        missing: why a control that was asked for could not be made.
    """

    budget: str
    policy: Policy
    folder: str
    winner: Candidate
    shortlist: Sequence[SecondLook]
    certificates: CertificateSet
    uniform: Policy
    is_uniform: bool
    controls: Mapping[str, CertificateSet]
    missing: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return plain data. `estimates` are scores, all under `certified` are certificates."""
        return {
            "budget": self.budget,
            "folder": self.folder,
            "policy": self.policy.widths(),
            "uniform_policy": self.uniform.widths(),
            "is_uniform": self.is_uniform,
            "cost": dict(self.winner.cost),
            "estimates": {
                "score": _plain(self.winner.score),
                "acr": _plain(self.winner.acr),
                "shortlist": [
                    {"candidate": look.number, "seed": look.seed, **(_plain(look.score) or {})}
                    for look in self.shortlist
                ],
            },
            "certified": {
                **metrics_json(self.certificates),
                "controls": {name: _against(control, self.certificates) for name, control in self.controls.items()},
            },
            "missing_controls": dict(self.missing),
        }


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.plain()


def _against(control: CertificateSet, found: CertificateSet) -> dict[str, Any]:
    """Return the figures of a control, and the found model's minus them, paired by image, with intervals."""
    gap = compare(control, found)
    accuracy = {str(radius): interval._asdict() for radius, interval in gap.certified_accuracy.items()}
    return {**metrics_json(control), "difference": {"acr": gap.acr._asdict(), "certified_accuracy": accuracy}}


def summary_of(
    run: Path, options: SearchOptions, reward: str, ended: str, study: Study, points: Sequence[Point]
) -> dict[str, Any]:
    """Return what `summary.json` says."""
    shown = [point.to_json() for point in points]
    fresh = [candidate for candidate in study.candidates if candidate.repeat_of is None]
    return {
        "run": str(run),
        "strategy": options.strategy,
        "reward": reward,
        "ended": ended,
        "trials": len(study.candidates),
        "candidates_examined": study.standings.examined,
        "models_certified": models_made(study.journal.lines),
        "failed": sum(candidate.failure is not None for candidate in fresh),
        "abandoned": sum(candidate.abandoned is not None for candidate in fresh),
        "search_seconds": study.standings.seconds,
        "strategies": [track.strategy.describe() for track in study.tracks],
        "options": options.to_json(),
        **{name: shown[0][name] for name in ("policy", "cost", "estimates", "certified")},
        "points": shown,
    }


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the summary for people."""
    lines = [
        f"strategy {summary['strategy']}, reward {summary['reward']}: {summary['candidates_examined']} candidates examined "
        f"({summary['abandoned']} abandoned early, {summary['failed']} failed); ended by {summary['ended']}"
    ]
    if summary.get("models_certified", 1) > 1:
        lines.append(
            f"{summary['models_certified']} models, one after the other, were certified on the same images: to choose among "
            "their certificates would be luck"
        )
    for point in summary["points"]:
        lines += ["", f"budget {point['budget']}", *_point_lines(point)]
    return [*lines, "", f"run folder: {summary['run']}"]


def _point_lines(point: Mapping[str, Any]) -> list[str]:
    cost, certified, score = point["cost"], point["certified"], point["estimates"]["score"]
    images = certified["images"]
    same = " (a uniform policy)" if point["is_uniform"] else ""
    lines = [
        f"  policy     {_short(point['policy'])}{same}",
        f"  cost       {cost['bops'] / 1e9:.4f} G bit operations (exact), {cost['bops@paper'] / 1e9:.4f} G (paper), "
        f"{cost.get('weight_bytes', cost.get('bytes')):,.0f} weight bytes",
        f"  estimate   {score['estimate']} {score['value']:.4f} [{score['low']:.4f}, {score['high']:.4f}] on the search "
        "images: a score, for ranking only",
        f"  certified  ACR {shown(Interval(*(certified[name] for name in ('acr', 'acr_low', 'acr_high'))), images)} on "
        f"{images} images that the search never saw",
        f"             certified accuracy {_accuracies(certified['certified_accuracy'])}",
    ]
    for name, control in certified["controls"].items():
        gap = Interval(**control["difference"]["acr"])
        lines += [
            f"  {name:9}  ACR {control['acr']:.4f}, certified accuracy {_accuracies(control['certified_accuracy'])}",
            f"             found - {name}: ACR {shown(gap, images, '{:+.4f}')}, paired over images, one fine-tuning: "
            f"{verdict(gap, images)}",
            f"             certified accuracy {_gaps(control['difference']['certified_accuracy'], images)}",
        ]
    lines += [f"  {name:9}  not certified: {why}" for name, why in point.get("missing_controls", {}).items()]
    return [*lines, f"  model      {point['folder']}/model.safetensors"]


def _accuracies(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{shares[radius]:.1%} at {radius}" for radius in SHOWN_RADII if radius in shares)


def _gaps(gaps: Mapping[str, Mapping[str, float]], images: int) -> str:
    """Say differences of certified accuracy, in points, with their intervals."""
    return ", ".join(f"{shown(Interval(**gaps[r]), images, '{:+.1f}', 100)} at {r}" for r in SHOWN_RADII)


def _short(policy: Mapping[str, str]) -> str:
    """Say the policy in one line: runs of equal bits as one."""
    runs: list[tuple[str, int]] = []
    for bits in policy.values():
        if runs and runs[-1][0] == bits:
            runs[-1] = (bits, runs[-1][1] + 1)
        else:
            runs.append((bits, 1))
    return " ".join(bits if count == 1 else f"{bits}x{count}" for bits, count in runs)
