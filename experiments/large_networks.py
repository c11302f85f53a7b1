"""Do the commands work on networks and image sizes that are not CIFAR's ResNet-20, and at what cost in time and memory?

    python experiments/large_networks.py --out results/large-networks

For each network: inspect, train a few steps from seeded random weights, quantize to 4 bits with BatchNorm estimated anew,
fine-tune a few steps, certify one image, each as a user would type it, on a folder of PNG images (the embedded sample,
enlarged). The figures are of time and memory, not of accuracy. Finished networks are kept in `runs.jsonl`, not repeated.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from arquant.datasets import load_data
from arquant.provenance import processor, provenance

NETWORKS: dict[str, tuple[int, list[str]]] = {
    "vit_tiny": (32, []),
    "mobilenetv2": (224, []),
    "resnet50": (224, []),
    "timm:resnet10t": (224, ["--input", "3,224,224", "--classes", "10"]),
    "timm:deit_tiny_patch16_224": (224, ["--classes", "10"]),
}
"""side of the images, and what else the commands need"""
RAW, TABLE = "runs.jsonl", "README.md"


def main() -> None:
    """Measure what is missing, then write the table."""
    args = _arguments()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    raw = out / RAW
    rows = [json.loads(line) for line in raw.read_text().splitlines()] if raw.exists() else []
    done = {row["network"] for row in rows}
    with tempfile.TemporaryDirectory() as scratch:
        for network in args.networks:
            if network not in done:
                rows.append(measure(network, Path(scratch), args))
                with raw.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    table = _table(rows, args)
    (out / TABLE).write_text(table, encoding="utf-8")
    print(table)


def measure(network: str, scratch: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds and peak memory of each command on one network."""
    side, options = NETWORKS[network]
    train, test = (f"folder:{_images(scratch, role, side)}" for role in ("calibrate", "certify"))
    run = str(scratch / network.replace(":", "-"))
    base, steps = f"{run}-float", ["--steps", str(args.steps), "--batch", "16"]
    quantize = ["--bits", "4", "--sigma", "0.5", "--calibration-images", "64", "--estimate-bn", "--out", run]
    commands = {
        "inspect": ["inspect", network, *options],
        "train": ["train", network, train, *options, "--sigma", "0.5", *steps, "--out", base],
        "quantize": ["quantize", base, train, *quantize],
        "finetune": ["finetune", run, "--data", train, *steps],
        "certify": ["certify", run, test, "--images", "first:1", "--n", str(args.n), "--out", f"{run}-certified"],
    }
    return {"network": network, "side": side, **{name: _timed(command) for name, command in commands.items()}}


def _timed(command: list[str]) -> dict[str, float]:
    print("arquant", *command, file=sys.stderr, flush=True)
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "arquant", *command, "-q"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"arquant {' '.join(command)} ended with {status}")
    return {"seconds": round(time.monotonic() - began, 1), "gigabytes": round(usage.ru_maxrss * 1024 / 1e9, 2)}


def _images(scratch: Path, role: str, side: int) -> Path:
    """A folder of PNG images of the sample, enlarged; made once."""
    folder = scratch / f"{role}{side}"
    if not folder.exists():
        chosen = load_data("sample", role).select("first:80")
        for number, (pixels, label) in enumerate(zip(chosen.images, chosen.labels, strict=True)):
            place = folder / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixels.transpose(1, 2, 0)).resize((side, side), Image.Resampling.BICUBIC)
            picture.save(place / f"{number}.png")
    return folder


def _table(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    steps = ("inspect", "train", "quantize", "finetune", "certify")
    origin = provenance()
    lines = [
        "# The commands on larger networks",
        "",
        f"Seconds and peak memory of `inspect`, `train` ({args.steps} steps of batch 16 from random weights), "
        f"`quantize --bits 4` (64 images), `finetune` ({args.steps} steps) and `certify` (one image, n = {args.n:,}), each a "
        f"process of its own, start-up included; {processor()}, two cores.",
        "",
        f"Command: `{origin['command']}`; commit {origin['commit']}; raw: `{RAW}`.",
        "",
        f"| network | images |{''.join(f' {step} |' for step in steps)}",
        f"|---|---|{'---|' * len(steps)}",
    ]
    for row in rows:
        cells = [f" {row[step]['seconds']:.0f} s, {row[step]['gigabytes']:.1f} GB |" for step in steps]
        lines.append(f"| {row['network']} | {row['side']}×{row['side']} |{''.join(cells)}")
    return "\n".join(lines) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("results/large-networks"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
