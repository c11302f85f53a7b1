"""`arquant demo`: the main job on the embedded images, small enough for a few minutes on two cores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arquant.commands.certification import certify
from arquant.commands.quantizing import finetune, quantize
from arquant.commands.report_writing import report as write_report
from arquant.metrics import metrics_json
from arquant.models.zoo import load_model
from arquant.progress import Report, silent
from arquant.recipe import Recipe

MODEL, DATA, SIGMA, BITS = "resnet20:sigma=0.5", "sample", 0.5, "3"
IMAGES, VOTES = "every:5", 1000
STEPS = 60


def demo(
    out: str | Path = "runs/demo", *, report: Report = silent, note: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Make the shipped ResNet-20 3-bit, train it back, certify it and the float network on 100 images, and report.

    Every step resumes, so a second call only rewrites the report. The certificates of the quantized model are of the
    integer kernels that ran, at n = 1,000 and alpha = 0.001.
    """
    folder = Path(out)
    shared: dict[str, Any] = {"sigma": SIGMA, "images": IMAGES, "n": VOTES, "report": report, "note": note}
    note(f"1/4 certify the float network on 100 images ({VOTES:,} votes each)")
    plain = certify(MODEL, DATA, out=folder / "float", **shared)
    note(f"2/4 quantize it to {BITS} bits (first and last layer 8)")
    size = quantize(MODEL, DATA, sigma=SIGMA, out=folder / "quantized", bits=BITS)
    note(f"3/4 fine-tune it for {STEPS} steps on noisy images")
    recipe = Recipe(sigma=SIGMA, steps=STEPS, batch=128, lr=0.01)
    finetune(folder / "quantized", recipe=recipe, report=report)
    note("4/4 certify the quantized network on the same images, by integer kernels")
    small = certify(str(folder / "quantized"), DATA, out=folder / "quantized", **shared)
    page = write_report(folder / "quantized", folder / "float", out=folder / "report.html")
    float_bytes = sum(4 * tensor.numel() for tensor in load_model(MODEL).state_dict().values())
    return {
        "comparison": metrics_json(plain.certificates, small.certificates),
        "file_bytes": size["file_bytes"],
        "float_bytes": float_bytes,
        "report": str(page.path),
    }


def demo_lines(result: dict[str, Any]) -> list[str]:
    """What the demo ends with."""
    plain, second = result["comparison"], result["comparison"]["second"]
    difference = plain["difference"]
    return [
        f"float network:  ACR {plain['acr']:.3f}, {plain['clean_accuracy']:.0%} right",
        f"{BITS}-bit network:  ACR {second['acr']:.3f}, {second['clean_accuracy']:.0%} right, "
        f"{result['file_bytes']:,} bytes on disk (float: {result['float_bytes']:,})",
        f"difference of ACR {difference['acr']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}], paired, 100 images",
        f"report: {result['report']}",
        "next: open the report in a browser;",
        "      arquant inspect timm:resnet18 --input 3,32,32 --classes 10   (what would be quantized in a model of yours)",
        "      arquant certify MODEL DATA --sigma 0.5 --adaptive            (see arquant certify --help)",
    ]
