"""Do the commands work on networks and image sizes that are not CIFAR's ResNet-20, and at what cost in time and memory?

    python experiments/large_networks.py --out results/large-networks

For each network: inspect, train a few steps from seeded random weights, quantize to 4 bits with BatchNorm estimated anew,
fine-tune a few steps, certify a few images, each as a user would type it, on a folder of PNG images (the embedded sample,
enlarged); for MobileNetV2 also a search of three candidates. The figures are of time and memory, not of accuracy. Finished
networks are kept in `runs.jsonl`, not repeated.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kept_rows import RAW, TABLE, kept_rows
from PIL import Image

from arquant.base.provenance import processor, provenance
from arquant.certificates.files import read_certificates
from arquant.loading.datasets import load_data

NETWORKS: dict[str, tuple[int, list[str]]] = {
    "vit_tiny": (32, []),
    "mobilenetv2": (224, []),
    "resnet50": (224, []),
    "timm:resnet10t": (224, ["--input", "3,224,224"]),
    "timm:deit_tiny_patch16_224": (224, []),
}
"""side of the images, and what else the commands need"""
CLASSES = {32: 10, 224: 1000}
SEARCHED = {"mobilenetv2"}
PAPER_IMAGES, PAPER_N = 500, (10_000, 1_000_000)
"""what the paper certifies of ImageNet"""


def main() -> None:
    """Measure what is missing, then write the table."""
    args = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        rows = kept_rows(args.out, args.networks, lambda name: measure(name, Path(scratch), args))
    table = _table(rows, args)
    (args.out / TABLE).write_text(table, encoding="utf-8")
    print(table)


def measure(network: str, scratch: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measure seconds and peak memory of each command on one network."""
    side, options = NETWORKS[network]
    train, test = (f"folder:{_images(scratch, role, side)}" for role in ("calibrate", "certify"))
    run = str(scratch / network.replace(":", "-"))
    base, steps = f"{run}-float", ["--steps", str(args.steps), "--batch", "16"]
    quantize = ["--bits", "4", "--sigma", "0.5", "--calibration-images", "64", "--estimate-bn", "--out", run]
    certified = ["--images", f"first:{args.images}", "--n", str(args.n), "--out", f"{run}-certified"]
    commands = {
        "inspect": ["inspect", network, *options],
        "train": ["train", network, train, *options, "--sigma", "0.5", *steps, "--out", base],
        "quantize": ["quantize", base, train, *quantize],
        "finetune": ["finetune", run, "--data", train, *steps],
        "certify": ["certify", run, test, *certified],
    }
    if network in SEARCHED:
        small = ["--trials", "3", "--steps", str(args.steps), "--train-batch", "16", "--search-images", "8"]
        small += ["--search-n", "32", "--reference-n", "64", "--calibration-images", "64", "--estimate-bn"]
        small += ["--final-steps", str(args.steps), "--n", "100", "--images", "first:4", "--out", f"{run}-search"]
        roles = ["--calibrate", train, "--certify", test]
        searched = f"folder:{_images(scratch, 'search', side)}"
        commands["search"] = ["search", base, searched, *roles, "--sigma", "0.5", "--budget", "bops<=4bit", *small]
    times = {name: _timed(command) for name, command in commands.items()}
    return {"network": network, "side": side, "votes_per_second": _rate(Path(f"{run}-certified")), **times}


def _rate(folder: Path) -> float:
    """Return the votes per second of a certification, start-up left out."""
    certificates = read_certificates(folder / "certificates.tsv").certificates
    return round(sum(c.n + c.n0 for c in certificates) / sum(c.seconds for c in certificates), 1)


def _timed(command: list[str]) -> dict[str, float]:
    print("arquant", *command, file=sys.stderr, flush=True)
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "arquant", *command, "-q"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"arquant {' '.join(command)} ended with {status}")
    return {"seconds": round(time.monotonic() - began, 1), "gigabytes": round(usage.ru_maxrss * 1024 / 1e9, 2)}


def _images(scratch: Path, role: str, side: int) -> Path:
    """Make, once, a folder of enlarged images of the sample, and empty folders for the classes it lacks."""
    folder = scratch / f"{role}{side}"
    if not folder.exists():
        for number in range(CLASSES[side]):
            (folder / f"class{number:03d}").mkdir(parents=True)
        chosen = load_data("sample", role).select("first:80")
        for number, (pixels, label) in enumerate(zip(chosen.images, chosen.labels, strict=True)):
            picture = Image.fromarray(pixels.transpose(1, 2, 0)).resize((side, side), Image.Resampling.BICUBIC)
            picture.save(folder / f"class{label:03d}" / f"{number}.png")
    return folder


def _table(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    origin = provenance()
    stages = ("inspect", "train", "quantize", "finetune", "certify", "search")
    lines = [
        "# The commands on larger networks",
        "",
        f"Seconds and peak memory of `inspect`, `train` ({args.steps} steps of batch 16 from random weights), "
        f"`quantize --bits 4` (64 images), `finetune` ({args.steps} steps), `certify` ({args.images} images, n = {args.n:,}) "
        f"and, for some, `search` (three candidates of {args.steps} steps, 8 images), each a process of its own, start-up "
        f"included; {processor()}, two cores.",
        "",
        f"Command: `{origin['command']}`; commit {origin['commit']}; raw: `{RAW}`.",
        "",
        f"| network | images |{''.join(f' {stage} |' for stage in stages)}",
        f"|---|---|{'---|' * len(stages)}",
    ]
    lines += [f"| {row['network']} | {row['side']}×{row['side']} |{_cells(row, stages)}" for row in rows]
    sizes = [f" {PAPER_IMAGES} images × {n:,} |" for n in PAPER_N]
    lines += [
        "",
        "Votes per second of `certify` (4-bit network, integer engine), and the time the paper's settings would take at that "
        "rate: computed, not measured.",
        "",
        f"| network | votes/s |{''.join(sizes)}",
        f"|---|---|{'---|' * len(sizes)}",
    ]
    for row in rows:
        rate = row["votes_per_second"]
        hours = "".join(f" {PAPER_IMAGES * n / rate / 3600:,.1f} h |" for n in PAPER_N)
        lines.append(f"| {row['network']} | {rate:,.0f} |{hours}")
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any], stages: tuple[str, ...]) -> str:
    found = [row.get(stage) for stage in stages]
    return "".join(f" {cell['seconds']:.0f} s, {cell['gigabytes']:.1f} GB |" if cell else " |" for cell in found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=3, help="to certify")
    parser.add_argument("--out", type=Path, default=Path("results/large-networks"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
