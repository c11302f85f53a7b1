"""Learn widths by gradients: noise in place of rounding, and a penalty on the cost of the widths. After NIPQ.

Shin et al., "NIPQ: noise proxy-based integrated pseudo-quantization", CVPR 2023. docs/methods/nipq.md says what is theirs and
what is ours.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.quantization.noise_proxy import NoiseProxy
from arquant.quantization.quantized import QuantizedClassifier
from arquant.quantization.quantizers import WeightQuantizer
from arquant.searching.context import Arrays, SearchContext
from arquant.searching.space import Space
from arquant.searching.strategies.one_policy import OnePolicy
from arquant.searching.strategies.resumable import checkpoint_of, train_resumably
from arquant.searching.strategy import register
from arquant.training.step import logits_of

KEPT = "widths"


@dataclass(frozen=True)
class Options:
    """Options of `nipq`."""

    steps: int = 200
    """Updates of weights, clips and widths."""
    lr: float = 0.02
    """Peak learning rate of the weights."""
    width_lr: float = 0.5
    """Learning rate of widths and clips, as a multiple of that of the weights, for each searched layer: the more layers, the
    smaller the share of a width in the cost."""
    penalty: float = 3.0
    """Weight of the cost penalty beside the cross-entropy."""

    def __post_init__(self) -> None:
        if self.steps < 1 or min(self.lr, self.width_lr, self.penalty) <= 0:
            raise InputError(f"nipq needs steps >= 1 and lr, width_lr and penalty > 0, got {self}")


@register("nipq")
class Nipq(OnePolicy):
    """Trains widths, clips and weights together, then proposes the policy within the budget nearest to the widths."""

    defaults = Options()
    fewest_bits = 2

    def prepare(self, context: SearchContext) -> None:
        """Train the widths, or find those that were; fit them to the budget."""
        facts = {**asdict(self.options), "budget": self.space.budget.text}
        found = context.kept(KEPT, lambda: self._learned(context, facts), options=facts)
        checkpoint_of(context, KEPT).unlink(missing_ok=True)
        self.policy = self.space.fit(found["widths"])

    def _learned(self, context: SearchContext, facts: Mapping[str, Any]) -> Arrays:
        options: Options = self.options
        network, proxies = with_proxies(context)
        mixed, usage = context.recipe.precision == "bfloat16", Usage(self.space).to(context.device)

        def update(_: int, pixels: Tensor, target: Tensor) -> Tensor:
            loss = F.cross_entropy(logits_of(network, pixels, mixed=mixed), target)
            used = usage(widths_of(proxies))
            loss = loss + options.penalty * F.smooth_l1_loss(used, torch.ones_like(used))
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        learned = [parameter for pair in proxies for proxy in pair for parameter in proxy.parameters()]
        known = {id(parameter) for parameter in learned}
        weights = [each for each in network.parameters() if each.requires_grad and id(each) not in known]
        groups = [
            {"params": weights, "weight_decay": context.recipe.weight_decay, "factor": 1.0},
            {"params": learned, "weight_decay": 0.0, "factor": options.width_lr * len(proxies)},
        ]
        train_resumably(context, KEPT, network, groups, update, steps=options.steps, lr=options.lr, options=facts)
        return {"widths": widths_of(proxies).detach().cpu().double().numpy()}


class Usage(nn.Module):
    """The share of the budget that real-valued widths use; 1 is all of it, of several limits the tightest counts.

    Costs between whole widths are interpolated, bilinearly: for bit operations and bytes that is exact.
    """

    shares: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        amounts = np.maximum(np.abs(space.free_amounts), np.finfo(np.float64).tiny)
        shares = space.costs / amounts[:, None, None, None]
        self.register_buffer("shares", torch.from_numpy(shares).float())

    def forward(self, widths: Tensor) -> Tensor:
        """Return the usage of widths [layer, (w, a)]."""
        top = self.shares.shape[-1] - 1
        below = (widths.detach().floor().long() - 1).clamp(0, top - 1)
        (w, a), (up, right) = below.unbind(1), (widths - 1 - below).unbind(1)
        place = torch.arange(len(widths), device=widths.device)

        def at(row: Tensor, column: Tensor) -> Tensor:
            return self.shares[:, place, row, column]

        low = (1 - right) * at(w, a) + right * at(w, a + 1)
        high = (1 - right) * at(w + 1, a) + right * at(w + 1, a + 1)
        usage: Tensor = ((1 - up) * low + up * high).sum(1).max()
        return usage


def widths_of(proxies: list[tuple[NoiseProxy, NoiseProxy]]) -> Tensor:
    """Return the widths [layer, (w, a)], with their gradients."""
    return torch.stack([torch.stack([w.bits, a.bits]) for w, a in proxies])


def with_proxies(context: SearchContext) -> tuple[QuantizedClassifier, list[tuple[NoiseProxy, NoiseProxy]]]:
    """Return a fresh network of the search, in training mode, whose searched layers have proxies (w, a) for quantizers."""
    space, network = context.space, context.quantized()
    middle = (space.min_bits + space.max_bits) // 2
    network.set_policy_(space.uniform(middle))
    proxies = []
    for name in space.searched:
        pair = network.quantizer(name)
        made = [
            NoiseProxy(
                float(quantizer.clip.detach().max()),
                signed=isinstance(quantizer, WeightQuantizer) or quantizer.signed,
                low=space.min_bits,
                high=space.max_bits,
            )
            for quantizer in (pair.w, pair.a)
        ]
        pair.w, pair.a = made  # type: ignore[assignment]
        proxies.append((made[0], made[1]))
    return network.to(context.device).train(), proxies
