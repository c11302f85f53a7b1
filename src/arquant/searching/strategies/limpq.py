"""Learn a quantizer step for every layer and width at once; large steps say which layers need bits. After LIMPQ.

Tang et al., "Mixed-precision neural network quantization via learned layer-wise importance", ECCV 2022. docs/methods/limpq.md
says what is theirs and what is ours.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from arquant.base.errors import InputError
from arquant.quantization.policy import Bits
from arquant.quantization.quantized import QuantizedClassifier
from arquant.searching.context import Arrays, SearchContext
from arquant.searching.strategies.importance import Importance
from arquant.searching.strategies.integer_program import least_damage
from arquant.searching.strategies.one_policy import OnePolicy
from arquant.searching.strategies.resumable import checkpoint_of, train_resumably
from arquant.searching.strategies.step_bank import StepBank
from arquant.searching.strategy import register
from arquant.training.batches import addressed_seed
from arquant.training.step import logits_of

KEPT = "steps"
WEIGHT_DECAY = 2.5e-5
LARGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class Options:
    """Options of `limpq`."""

    steps: int = 100
    """Updates of the joint training; each has a pass per width and one of random widths."""
    lr: float = 0.01
    """Peak learning rate."""
    weight_factor: float = 2.0
    """Factor of the weights' steps beside the activations' (LIMPQ's alpha)."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.lr <= 0 or self.weight_factor <= 0:
            raise InputError(f"limpq needs steps >= 1, lr > 0 and weight_factor > 0, got {self}")


@register("limpq")
class Limpq(OnePolicy):
    """Learns the steps of all widths jointly, then proposes the policy whose steps are smallest in sum."""

    defaults = Options()
    fewest_bits = 2

    def prepare(self, context: SearchContext) -> None:
        """Train the steps, or find those that were; solve for the policy."""
        options = asdict(self.options)
        training = {name: value for name, value in options.items() if name != "weight_factor"}
        steps = context.kept(KEPT, lambda: self._learned(context, training), options=training)
        checkpoint_of(context, KEPT).unlink(missing_ok=True)
        importance = Importance(steps["weights"], steps["activations"]).monotone()
        importance.save(context.folder / "sensitivity.json", self.space, {"method": self.name, "options": options})
        self.policy = least_damage(self.space, importance.damage(self.options.weight_factor))

    def _learned(self, context: SearchContext, options: Mapping[str, Any]) -> Arrays:
        bank, widths = lsq_bank(context), range(self.space.min_bits, self.space.max_bits + 1)
        mixed = context.recipe.precision == "bfloat16"
        parameters = [each for each in bank.parameters() if each.requires_grad]

        def update(step: int, pixels: Tensor, target: Tensor) -> Tensor:
            bank.keep_positive_()
            total = torch.zeros((), device=pixels.device)
            rng = np.random.default_rng(addressed_seed("limpq widths", context.seed, step))
            drawn = rng.choice(widths, (len(self.space.searched), 2)).tolist()
            random = {name: Bits(w, a) for name, (w, a) in zip(self.space.searched, drawn, strict=True)}
            for passed in [*(dict.fromkeys(bank.layers, Bits(b, b)) for b in reversed(widths)), random]:
                bank.use(passed)
                loss = F.cross_entropy(logits_of(bank.network, pixels, mixed=mixed), target)
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            bank.use_top()
            torch.nn.utils.clip_grad_value_(parameters, LARGEST_GRADIENT)
            return total / (len(widths) + 1)

        learned = {id(each) for each in bank.steps}
        groups = [
            {"params": [p for p in parameters if id(p) not in learned], "weight_decay": WEIGHT_DECAY, "factor": 1.0},
            {"params": list(bank.steps), "weight_decay": 0.0, "factor": 1.0},
        ]
        train_resumably(context, KEPT, bank, groups, update, steps=options["steps"], lr=options["lr"], options=options)
        bank.keep_positive_()
        found = bank.importance()
        return {"weights": found.weights, "activations": found.activations}


def lsq_bank(context: SearchContext) -> StepBank:
    """Return a fresh network of the search with a step per searched layer and width, in training mode on its device."""
    pattern, space = context.quantized(), context.space
    network = QuantizedClassifier(
        context.classifier, pattern.layers, clip=pattern.clip, learn="lsq", statistics=pattern.statistics
    )
    network.set_policy_(space.budget.cheapest())
    network.to(device=context.device, memory_format=pattern.memory_format)  # type: ignore[call-overload]
    return StepBank(network, space.searched, range(space.min_bits, space.max_bits + 1)).train()
