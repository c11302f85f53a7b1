"""Do networks that nobody prepared go the whole way: inspect, quantize (w4a6), export, certify by the engine that ships?

    python experiments/breadth.py --out results/breadth

One network of each of 30 families of timm, by a rule: families in a seeded random order, of each the first name with at most
32 million weights and images of at most 256 pixels a side. Their weights are random (seeded), since public ones need a
download, and the images are the embedded sample enlarged, so the figures are of whether it works, of time and of memory, not
of accuracy. Each command is a process of its own with a limit of time. Finished networks are kept in `runs.jsonl`, not
repeated; `votes_moved` is what `export` says of the written file against the model.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kept_rows import RAW, TABLE, kept_rows
from PIL import Image
from safetensors.torch import save_file

from arquant.base.provenance import processor, provenance
from arquant.loading.datasets import load_data
from arquant.models.optional import import_timm

MOST_WEIGHTS, MOST_PIXELS, CLASSES = 32_000_000, 256, 10
MOST_MOVED = 0.002
"""share of votes, above which a row is not counted as equal"""
STEPS = ("inspect", "quantize", "export", "certify")


def main() -> None:
    """Measure what is missing, then write the table."""
    args = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        rows = kept_rows(
            args.out, chosen_names(args.count, args.seed), lambda name: measure(name, Path(scratch), args.limit)
        )
    table = _table(rows, args)
    (args.out / TABLE).write_text(table, encoding="utf-8")
    print(table)


def chosen_names(count: int, seed: int) -> list[str]:
    """Return the networks of the rule above."""
    timm = import_timm()
    families: dict[str, list[str]] = {}
    for name in sorted(timm.list_models()):
        families.setdefault(timm.models._registry._model_to_module[name], []).append(name)
    order = sorted(families)
    random.Random(seed).shuffle(order)
    found: list[str] = []
    for family in order:
        found += next(([name] for name in families[family] if _fits(timm, name)), [])
        if len(found) == count:
            break
    return found


def _fits(timm: Any, name: str) -> bool:
    side = timm.get_pretrained_cfg(name).input_size[-1]
    if side > MOST_PIXELS:
        return False
    with torch.device("meta"):
        try:
            network = timm.create_model(name, num_classes=CLASSES)
        except (RuntimeError, NotImplementedError, TypeError):
            return False  # needs values while it is built, or a package that is not here
    return bool(sum(weights.numel() for weights in network.parameters()) <= MOST_WEIGHTS)


def measure(name: str, scratch: Path, limit: float) -> dict[str, Any]:
    """Take one network through the commands until one fails."""
    timm = import_timm()
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=CLASSES)
    config = timm.get_pretrained_cfg(name)
    side = config.input_size[-1]
    weights, run = scratch / f"{name}.safetensors", scratch / name
    save_file({key: value.contiguous() for key, value in network.state_dict().items()}, weights)
    row: dict[str, Any] = {
        "network": name,
        "side": side,
        "weights": sum(values.numel() for values in network.parameters()),
    }
    shape = ["--input", f"3,{side},{side}", "--classes", str(CLASSES)]
    shape += ["--mean", ",".join(map(str, config.mean)), "--std", ",".join(map(str, config.std))]
    model = [str(weights), "--arch", f"timm:{name}", *shape]
    calibrate, test = (f"npz:{_images(scratch, role, side)}" for role in ("calibrate", "certify"))
    commands = {
        "inspect": ["inspect", *model],
        "quantize": ["quantize", model[0], calibrate, *model[1:], "--bits", "w4a6", "--sigma", "0.5", "--estimate-bn",
                     "--calibration-images", "32", "--out", str(run)],
        "export": ["export", str(run), "--arch", f"timm:{name}"],
        "certify": ["certify", str(run), test, "--arch", f"timm:{name}", "--n", "100", "--images", "first:4",
                    "--out", str(run)],
    }  # fmt: skip
    for step, command in commands.items():
        row[step] = _timed(command, limit)
        if row[step]["status"]:
            break
    return row


def _timed(command: list[str], limit: float) -> dict[str, Any]:
    """Run a command; its exit code, seconds, peak memory and last lines, and of an export how many votes moved."""
    print("arquant", *command, file=sys.stderr, flush=True)
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "arquant", *command, "--json", "-q"],
            stdout=output, stderr=errors, start_new_session=True,
        )  # fmt: skip
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() - began > limit:
                os.killpg(process.pid, signal.SIGKILL)
                ended = os.wait4(process.pid, 0)
                break
            time.sleep(0.2)
        output.seek(0)
        errors.seek(0)
        said, failed = output.read(), errors.read()
    found: dict[str, Any] = {
        "status": os.waitstatus_to_exitcode(ended[1]),
        "seconds": round(time.monotonic() - began, 1),
        "gigabytes": round(ended[2].ru_maxrss * 1024 / 1e9, 2),
    }
    if found["status"]:
        found["message"] = failed.strip()[-600:]
    else:
        result = json.loads(said)
        found |= {"votes_moved": {engine: one["moved"] for engine, one in result.get("parity", {}).items()}}
    return found


def _images(scratch: Path, role: str, side: int) -> Path:
    """Make, once, a file of enlarged images of the sample."""
    path = scratch / f"{role}{side}.npz"
    if not path.exists():
        chosen = load_data("sample", role).select("every:10")
        pictures = [Image.fromarray(pixels.transpose(1, 2, 0)) for pixels in chosen.images]
        large = [np.asarray(picture.resize((side, side), Image.Resampling.BICUBIC)) for picture in pictures]
        np.savez(path, images=np.stack(large).transpose(0, 3, 1, 2), labels=chosen.labels)
    return path


def _table(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    origin = provenance()
    passed = [row for row in rows if all(row.get(step, {"status": 1})["status"] == 0 for step in STEPS)]
    equal = sum(max(row["export"]["votes_moved"].values()) <= MOST_MOVED for row in passed)
    lines = [
        "# Networks that nobody prepared",
        "",
        f"{len(passed)} of {len(rows)} go the whole way, {equal} of them with at most {MOST_MOVED:.1%} of votes moved in every "
        f"engine. Random weights, images of the sample enlarged; seconds and peak memory of "
        f"each command, start-up included, at most {args.limit:.0f} s each; {processor()}, two cores, beside other work. "
        "`moved` is the share of votes that the exported file casts for another class than the model.",
        "",
        f"Command: `{origin['command']}`; commit {origin['commit']}; raw: `{RAW}`.",
        "",
        f"| network | side | weights |{''.join(f' {step} |' for step in STEPS)} moved |",
        f"|---|---|---|{'---|' * len(STEPS)}---|",
    ]
    for row in rows:
        cells = "".join(f" {_cell(row.get(step))} |" for step in STEPS)
        moved = row.get("export", {}).get("votes_moved")
        last = ", ".join(f"{engine} {share:.2%}" for engine, share in (moved or {}).items())
        lines.append(f"| {row['network']} | {row['side']} | {row['weights'] / 1e6:.1f} M |{cells} {last} |")
    failures = [(row["network"], step, row[step]) for row in rows for step in STEPS if row.get(step, {}).get("status")]
    lines += ["", "## What failed, and what the command said", ""] if failures else []
    for name, step, found in failures:
        lines += [
            f"- **{name}**, `{step}`, exit {found['status']}: {' '.join(found['message'].split()) or 'time is up'}"
        ]
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    return "failed" if found["status"] else f"{found['seconds']:.0f} s, {found['gigabytes']:.1f} GB"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--limit", type=float, default=900, help="seconds of a command")
    parser.add_argument("--out", type=Path, default=Path("results/breadth"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
