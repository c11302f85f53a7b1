"""`arquant demo`: the main job on the embedded images, small enough for a few minutes on two cores."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from arquant.commands.command import Watched, command
from arquant.commands.search import search
from arquant.commands.shared import PathLike

if TYPE_CHECKING:
    from arquant.commands.console import Console

MODEL, DATA, SIGMA, BUDGET = "resnet20:sigma=0.5", "sample", 0.5, "bops<=3bit"


@dataclass(frozen=True)
class Demo(Watched):
    """Demo"""

    _: KW_ONLY
    out: PathLike = "runs/demo"
    """run folder; the same command resumes"""


@command(Demo, "the main job on embedded CIFAR-10 images, in a few minutes", common=("out",), resumes=True)
def demo(options: Demo) -> dict[str, Any]:
    """Search bit-widths for the shipped ResNet-20 within the cost of 3 bits, fine-tune and certify the winner, and report.

    Ten candidates, fine-tuned for a minute in all: the demo shows the way, not what a search can find. Every step resumes, so
    a second call only rewrites the report. The certificates are of the integer kernels that ran, at n = 1,000 and
    alpha = 0.001; beside them, those of the float and of the uniform 3-bit network on the same images.
    """
    from arquant.reporting.writing import write_report

    trials = 10  # seven to learn from, the optimum of what was learned, and two longer looks
    options.note(
        f"The shipped ResNet-20 on CIFAR-10 images: bit-widths within the cost of 3 bits are searched ({trials} candidates), "
        "the best is fine-tuned and certified beside the float and the uniform network, and a report is written."
    )
    # 100 images to search on, 100 others to certify, and as few candidates and votes as still show the whole
    summary = search(
        MODEL, DATA, sigma=SIGMA, budget=BUDGET, out=options.out, trials=trials, images="every:5", search_images=100,
        search_n=200, reference_n=500, steps=30, train_batch=128, final_steps=60, n=1000,
        report=options.report, note=options.note,
    )  # fmt: skip
    return {**summary, "report": str(write_report([options.out]).path)}


@demo.shown
def _show(result: dict[str, Any], _options: Demo, console: "Console") -> None:
    from arquant.searching.summary import summary_lines

    console.result(
        result,
        [
            *summary_lines(result),
            f"report: {result['report']}",
            "",
            "next: open the report in a browser, then",
            "  arquant inspect timm:resnet18 --input 3,32,32 --classes 10  (what would be quantized in a model of yours)",
            f"  arquant export {result['run']} --format onnx  (the integer model, for ONNX Runtime or OpenVINO)",
            f"  arquant search {MODEL} {DATA} --sigma {SIGMA} --budget '{BUDGET}' --hours 1 --out runs/hour",
        ],
    )
