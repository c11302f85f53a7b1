"""How much of the paper's experiments is run: `smoke` in minutes, `small` in hours on two cores, `paper` as it did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ScaleName = Literal["smoke", "small", "paper"]
SIGMAS = (0.25, 0.5, 1.0)
MAIN_SIGMA, MAIN_BITS = 0.5, 3
"""where most tables of the paper are"""


@dataclass(frozen=True)
class Scale:
    """The settings of one scale.

    Attributes:
        data: the images of CIFAR-10, as DATA.
        sigmas: where the paper compares noise levels.
        front: (sigma, bits) of the figures against cost.
        seeds: final fine-tunings of every result.
        benchmark: options of every `arquant benchmark`.
        preparation: options of the strategies that look at the network before they choose, by name.
        long: how much longer the long fine-tuning is, as a multiple of the usual one.
        final: options of `train` and `finetune`: the length of a final fine-tuning outside a benchmark, and its batch.
        attack: options of `arquant attack`, and which images.
        weights: the user's MODELs of networks of which none are shipped, by NETWORK@SIGMA.
        imagenet: the DATA that those for ImageNet are for.
    """

    name: ScaleName
    about: str
    data: str
    sigmas: tuple[float, ...]
    front: tuple[tuple[float, int], ...]
    seeds: int
    benchmark: Mapping[str, Any]
    final: Mapping[str, Any]
    attack: Mapping[str, Any]
    preparation: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    long: int = 9
    weights: Mapping[str, str] = field(default_factory=dict)
    imagenet: str | None = None

    def trained(self, network: str, sigma: float) -> str | None:
        """Return the user's MODEL of a network of which we ship no weights; None if there is none."""
        return self.weights.get(f"{network}@{sigma:g}")

    @property
    def trials(self) -> int:
        """Candidates of a search."""
        return int(self.benchmark["trials"])

    @property
    def certify(self) -> dict[str, Any]:
        """Return the options of `arquant certify` by which the benchmark certifies."""
        names = ("n", "images", "adaptive", "alpha")
        return {name: self.benchmark[name] for name in names if name in self.benchmark}

    @property
    def attacked(self) -> str:
        """Say what is attacked, and how."""
        own = self.attack
        return f"{_chosen(own['images'])} of {self.data}; PGD: {own['steps']} steps, {own['draws']} noisy copies"

    def settings(self) -> dict[str, str]:
        """Return what the paper has settings for, by the names of `PAPER_SETTINGS`."""
        own = self.benchmark
        steps, final = own.get("steps"), own.get("final_steps")
        ours = "ours: one cycle, lr 0.05, follows the float network"
        stops = ", may stop early" if own.get("adaptive") else ""
        return {
            "images": "the embedded sample of CIFAR-10" if self.data == "sample" else "CIFAR-10",
            "float network": "other weights, fine-tuned as long as the quantized networks",
            "certified": f"{_chosen(own.get('images'))}, n = {own.get('n', 1_000_000):,}{stops}",
            "final models": f"{self.seeds} per result",
            "final fine-tuning": f"steps of {own['train_batch']} images: {final}" if final else "10 epochs",
            "a candidate": f"steps of {own['train_batch']} images: {steps}" if steps else "1 epoch",
            "a candidate's score": f"{own.get('search_images', 500)} images x {own.get('search_n', 500)} votes",
            "candidates": str(self.trials),
            "fine-tuning": PAPER_SETTINGS["fine-tuning"] if own.get("preset") else ours,
        }


PAPER_SETTINGS = {
    "images": "CIFAR-10",
    "float network": "not fine-tuned, as far as is said",
    "certified": "500 images, n = 1,000,000",
    "final models": "3 per result",
    "final fine-tuning": "10 epochs",
    "a candidate": "1 epoch",
    "a candidate's score": "500 images x 500 votes",
    "candidates": "not stated (600, as HAQ has, would fit its hours)",
    "fine-tuning": "the paper's optimizer and rates",
}
"""section 4 of arq.tex"""


def _chosen(images: str | None) -> str:
    return "500 images" if images is None else f"{images.partition(':')[2]} images"


SCALES: dict[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            "every step on a few embedded images: shows that it runs; its numbers mean nothing",
            "sample",
            sigmas=(MAIN_SIGMA,),
            front=((MAIN_SIGMA, MAIN_BITS),),
            seeds=1,
            benchmark={
                "trials": 2, "steps": 1, "final_steps": 2, "train_batch": 16, "search_images": 8, "search_n": 40,
                "reference_n": 40, "n": 100, "images": "first:8", "calibration_images": 32, "train_images": 64,
            },
            final={"steps": 2, "batch": 16},
            attack={"images": "first:4", "steps": 2, "draws": 2, "n": 100},
            preparation={"limpq": {"steps": 1}, "nipq": {"steps": 2}, "hawq": {"draws": 2, "batch": 16}},
            long=2,
        ),
        Scale(
            "small",
            "hours on two cores: short searches, one fine-tuning of two epochs each",
            "cifar10",
            sigmas=SIGMAS,
            front=((MAIN_SIGMA, 3), (MAIN_SIGMA, 4)),
            seeds=1,
            benchmark={
                "trials": 40, "steps": 40, "final_steps": 400, "train_batch": 256, "search_images": 250, "search_n": 200,
                "reference_n": 1000, "n": 10_000, "images": "most:250", "adaptive": True,
            },
            final={"steps": 400, "batch": 256},
            attack={"images": "most:50", "steps": 20, "draws": 16, "n": 1000},
        ),
        Scale(
            "paper",
            "the paper's settings: for GPUs",
            "cifar10",
            sigmas=SIGMAS,
            front=tuple((sigma, bits) for sigma in SIGMAS for bits in (3, 4, 5)),
            seeds=3,
            benchmark={"trials": 600, "preset": "paper-cifar", "n": 1_000_000, "images": "most:500"},
            final={"preset": "paper-cifar"},
            attack={"images": "most:500", "steps": 20, "draws": 32, "n": 10_000},
        ),
    )
}  # fmt: skip
