"""Weigh each layer's rounding error by the average curvature of the loss in its weights. After HAWQ-V3.

Yao et al., "HAWQ-V3: dyadic neural network quantization", ICML 2021. docs/methods/hawq.md says what is theirs and what is
ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from arquant.base.errors import InputError
from arquant.base.progress import Status
from arquant.models.classifier import Classifier
from arquant.quantization.quantizers import weight_levels
from arquant.searching.context import Arrays, SearchContext
from arquant.searching.space import Space
from arquant.searching.strategies.hutchinson import trace_draw
from arquant.searching.strategies.importance import Importance
from arquant.searching.strategies.integer_program import Ties, least_damage
from arquant.searching.strategies.one_policy import OnePolicy
from arquant.searching.strategies.resumable import batches_of
from arquant.searching.strategy import register
from arquant.training.batches import addressed_seed, noisy_batch
from arquant.training.step import logits_of

KEPT = "traces"
FLOOR = 1e-3
"""A trace is at least this share of the mean of the positive ones: fewer bits are never free."""
LEG = 10
"""Draws that a kill may cost."""


@dataclass(frozen=True)
class Options:
    """Options of `hawq`."""

    draws: int = 100
    """Vectors of signs, each on a batch of its own."""
    batch: int = 128
    """Noisy images per draw."""
    tie_inputs: bool = False
    """Give layers that read the same input, such as a shortcut and the main branch, the same widths."""

    def __post_init__(self) -> None:
        if self.draws < 1 or self.batch < 2:
            raise InputError(f"hawq needs draws >= 1 and batch >= 2, got {self}")


@register("hawq")
class Hawq(OnePolicy):
    """Proposes the policy, weights and input of a layer alike, with the least curvature times squared rounding error."""

    defaults = Options()
    fewest_bits = 2

    def __init__(self, space: Space, seed: int = 0, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(space, seed, options)
        without = [name for name in space.searched if not space.layers[name].weight_path]
        if without:
            raise InputError(
                f"strategy 'hawq' looks at weights, and layer {without[0]!r} has none that is a parameter of its own; fix its "
                f"bits: --keep '{without[0]}=8'"
            )

    def prepare(self, context: SearchContext) -> None:
        """Estimate the traces, or find those that were; solve for the policy."""
        options: Options = self.options
        draws = np.concatenate([self._leg(context, first) for first in range(0, options.draws, LEG)])
        weights = [weight.detach() for weight in self._weights(context.classifier)]
        widths = range(self.space.min_bits, self.space.max_bits + 1)
        errors = np.array([[rounding_error(weight, bits) for bits in widths] for weight in weights])
        curvature = floored(draws.mean(axis=0) / [weight.numel() for weight in weights])
        found = Importance(curvature[:, None] * errors, np.zeros_like(errors))
        found.save(context.folder / "sensitivity.json", self.space, {"method": self.name, "options": asdict(options)})
        damage = found.damage()
        damage[:, ~np.eye(len(widths), dtype=bool)] = np.inf
        self.policy = least_damage(self.space, damage, same_input(self.space) if options.tie_inputs else ())

    def _weights(self, classifier: Classifier) -> list[Tensor]:
        """Return the weights of the searched layers, in their order."""
        paths = (self.space.layers[name].weight_path for name in self.space.searched)
        return [classifier.module.get_parameter(path) for path in paths]

    def _leg(self, context: SearchContext, first: int) -> NDArray[np.float64]:
        """Return some draws [draw, layer], from the first one's number on; a leg is what a kill may cost."""
        last = min(first + LEG, self.options.draws)
        facts = {"first": first, "last": last, "batch": self.options.batch}
        return context.kept(f"{KEPT}-{first}", lambda: self._drawn(context, first, last), options=facts)["draws"]

    def _drawn(self, context: SearchContext, first: int, last: int) -> Arrays:
        classifier = context.classifier.snapshot().to(context.device)
        blocks = [weight.requires_grad_() for weight in self._weights(classifier)]
        recipe = replace(context.recipe, batch=self.options.batch, consistency=0.0, augment=False)
        images, labels, recipe = batches_of(context, recipe)
        draws = []
        for draw in range(first, last):
            pixels, target = (each.to(context.device) for each in noisy_batch(images, labels, recipe, draw))

            def loss(pixels: Tensor = pixels, target: Tensor = target) -> Tensor:
                return F.cross_entropy(logits_of(classifier, pixels, mixed=False), target)

            generator = torch.Generator().manual_seed(addressed_seed("hawq", context.seed, draw))
            draws.append(trace_draw(loss, blocks, generator))
            context.report(Status("prepare", draw + 1, self.options.draws, "draws"))
        return {"draws": np.stack(draws)}


def rounding_error(weight: Tensor, bits: int) -> float:
    """Return the squared distance of a weight to its rounding on a symmetric grid per output channel, up to its largest."""
    rows = weight.reshape(len(weight), -1).double()
    high, _ = weight_levels(bits)
    step = rows.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / high
    return float((rows - (rows / step).round() * step).square().sum())


def floored(traces: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the traces with small and negative ones raised; where none is positive, all alike."""
    positive = traces[traces > 0]
    return np.maximum(traces, FLOOR * positive.mean()) if len(positive) else np.ones_like(traces)


def same_input(space: Space) -> Ties:
    """Return the searched layers, by place, that read the same input, where there are several."""
    group_of = [space.layers[name].input_group for name in space.searched]
    order = sorted(range(len(group_of)), key=group_of.__getitem__)
    groups: Sequence[tuple[int, ...]] = [tuple(places) for _, places in groupby(order, key=group_of.__getitem__)]
    return [group for group in groups if len(group) > 1]
