"""Draw the figure of the README from committed files: ACR against bit operations, and a search against uniform 3 bits.

    python experiments/readme_figure.py --out docs/acr-against-cost.svg

Points are computed from certificates in `results/`; that of the ResNet-110 is quoted from `results/public`, with its source.
The same files give the same bytes. A result whose folder is missing is left out.
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arquant
from arquant.certificates.files import read_certificates
from arquant.certificates.metrics import metrics_json

RESULTS = Path(__file__).parents[1] / "results"
FOUND, FLOAT, PUBLIC, UNIFORM = "#0072b2", "#555555", "#d55e00", "#b07800"
SEEDS = range(10, 16)
LEFT, TOP, BOTTOM, WIDTH = 62, 58, 292, 420
SECOND, SECOND_WIDTH = 600, 170


@dataclass(frozen=True)
class Point:
    """A network: giga bit operations, ACR with its interval over images, and where its name stands beside it."""

    name: str
    gbops: float
    acr: float
    low: float
    high: float
    colour: str
    anchor: str = "start"
    lift: float = 0.0


def certified(name: str, folder: str, gbops: float, colour: str, **place: Any) -> list[Point]:
    """Return the point of a folder with certificates; none if it is not there."""
    if not (RESULTS / folder / "certificates.tsv").exists():
        return []
    found = metrics_json(read_certificates(RESULTS / folder))
    return [Point(name, gbops, found["acr"], found["acr_low"], found["acr_high"], colour, **place)]


def points() -> list[Point]:
    """Return all networks at sigma 0.5 with n = 100,000 on the same 500 images."""
    small = {
        name: arquant.cost("resnet20", policy=RESULTS / name / "policy.json")
        for name in ("search/arq", "resnet20-4bit")
    }
    full = [
        100 * cost["gbops"] / cost["percent_of_fp32"]
        for cost in (small["search/arq"], arquant.cost("resnet110", bits=8))
    ]
    public = json.loads((RESULTS / "public/resnet110-sigma0.5.json").read_text())["gaussian"]
    interval = public["acr"], public["acr_low"], public["acr_high"]
    alike = "resnet20-float-finetuned-sigma0.5"
    return [
        *certified("found, 3-bit budget", "resnet20-3bit", small["search/arq"]["gbops"], FOUND, lift=86),
        *certified("found, 4-bit budget", "resnet20-4bit", small["resnet20-4bit"]["gbops"], FOUND, lift=42),
        *certified("float", "resnet20-sigma0.5", full[0], FLOAT, anchor="end", lift=16),
        *certified("float, fine-tuned alike", alike, 1.12 * full[0], FLOAT, anchor="end", lift=-8),
        Point("ResNet-110, float", full[1], *interval, PUBLIC, anchor="middle", lift=-70),
    ]


def seeds() -> list[tuple[float, float]]:
    """Return the ACRs of uniform 3 bits and of the found policy for each seed of the full fine-tuning."""
    runs = [(f"search-models/uniform-seed-{seed}", f"search-models/arq-seed-{seed}") for seed in SEEDS]
    return [(read_certificates(RESULTS / first).acr, read_certificates(RESULTS / second).acr) for first, second in runs]


def difference() -> str:
    """Return the paired difference over images and seeds that `search_against_controls.py` found."""
    text = (RESULTS / "search/seeds-10-15/summary.md").read_text()
    found = re.search(r"^\| arq .*?(\+[\d.]+ \[[+-][\d.]+, [+-][\d.]+\])", text, re.MULTILINE)
    assert found is not None
    return found[1]


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    colour: str = "#222222",
    size: int = 12,
    bold: bool = False,
) -> str:
    """Return words at a place."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> str:
    """Return a line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'


def scale(low: float, high: float) -> Callable[[float], float]:
    """Return the height on the page of a value, for an axis from `low` to `high`."""
    return lambda value: BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)


def axis(left: float, width: float, ticks: Sequence[float], place: Callable[[float], float], digits: int) -> list[str]:
    """Return the lines and numbers of a vertical axis."""
    parts = []
    for tick in ticks:
        parts.append(line(left, place(tick), left + width, place(tick), "#e2e2e2"))
        parts.append(text(left - 6, place(tick) + 4, f"{tick:.{digits}f}", anchor="end", colour="#666666"))
    return parts


def cost_panel(networks: Sequence[Point]) -> list[str]:
    """Return ACR against bit operations, on a logarithmic axis."""
    place = scale(0.46, 0.66)

    def across(gbops: float) -> float:
        return LEFT + (math.log10(gbops) - math.log10(0.2)) / (math.log10(600) - math.log10(0.2)) * WIDTH

    parts = [text(LEFT - 40, 22, "Average certified radius (ACR), σ = 0.5, n = 100,000", bold=True, size=13)]
    parts += [text(LEFT - 40, 40, "500 CIFAR-10 test images, 95 % intervals over images", colour="#666666")]
    parts += axis(LEFT, WIDTH, (0.50, 0.55, 0.60, 0.65), place, 2)
    for tick in (0.3, 1, 10, 100):
        parts.append(text(across(tick), BOTTOM + 18, f"{tick:g} G", anchor="middle", colour="#666666"))
        parts.append(line(across(tick), BOTTOM, across(tick), BOTTOM + 4, "#666666"))
    parts += [line(LEFT, BOTTOM, LEFT + WIDTH, BOTTOM, "#666666")]
    parts += [text(LEFT + WIDTH / 2, BOTTOM + 36, "bit operations per noisy image (logarithmic)", anchor="middle")]
    for one in networks:
        x, y = across(one.gbops), place(one.acr)
        parts += [line(x, place(one.low), x, place(one.high), one.colour, 2)]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{one.colour}"/>']
        beside = x + {"start": 8, "middle": 0, "end": -8}[one.anchor]
        parts += [text(beside, y + one.lift, f"{one.name} {one.acr:.3f}", anchor=one.anchor, colour=one.colour)]
    return parts


def seeds_panel(pairs: Sequence[tuple[float, float]], found: str) -> list[str]:
    """Return the six fine-tunings of each policy, pair by pair."""
    place = scale(0.505, 0.532)
    one, two = SECOND + 30, SECOND + SECOND_WIDTH - 30
    parts = [text(SECOND - 44, 22, "Same bit operations, n = 10,000", bold=True, size=13)]
    parts += [text(SECOND - 44, 40, "six fine-tunings of each", colour="#666666")]
    parts += axis(SECOND, SECOND_WIDTH, (0.51, 0.52, 0.53), place, 2)
    for before, after in pairs:
        parts += [line(one, place(before), two, place(after), "#9a9a9a", 1.5)]
        parts += [f'<circle cx="{one}" cy="{place(before):.1f}" r="4" fill="{UNIFORM}"/>']
        parts += [f'<circle cx="{two}" cy="{place(after):.1f}" r="4" fill="{FOUND}"/>']
    parts += [text(one, BOTTOM + 18, "uniform 3 bits", anchor="middle", colour=UNIFORM)]
    parts += [text(two + 6, BOTTOM + 18, "found", anchor="middle", colour=FOUND)]
    return [*parts, text(SECOND + SECOND_WIDTH / 2, BOTTOM + 36, found.replace("-", "−"), anchor="middle")]


def figure() -> str:
    """Return the whole figure as SVG."""
    parts = [*cost_panel(points()), *seeds_panel(seeds(), difference())]
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 342" font-family="system-ui, sans-serif" role="img">'
    )
    title = "<title>ACR against bit operations: float, found and public networks; found against uniform 3 bits</title>"
    return "\n".join([head, title, '<rect width="830" height="342" fill="#ffffff"/>', *parts, "</svg>", ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the SVG file")
    parser.parse_args(argv).out.write_text(figure())


if __name__ == "__main__":
    main()
