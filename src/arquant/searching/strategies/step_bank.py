"""Keep, for every candidate width, a step of each quantizer and the scales of each BatchNorm: one network, all widths."""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from arquant.quantization.policy import Bits
from arquant.quantization.quantized import QuantizedClassifier
from arquant.quantization.quantizers import ActivationQuantizer, WeightQuantizer
from arquant.searching.strategies.importance import Importance

SMALLEST = 1e-5
"""no learned step is smaller"""
Widths = Mapping[str, Bits]
"""by searched layer"""


class _Switch:
    """A module that has, for each width, parameters of its own and other values of its buffers."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.states: dict[int, dict[str, Tensor]] = {}

    def keep(self, bits: int, parameters: Sequence[str], buffers: Sequence[str] = ()) -> list[nn.Parameter]:
        """Copy the module's present values as those of a width; return the copied parameters."""
        own = {name: nn.Parameter(getattr(self.module, name).detach().clone()) for name in parameters}
        self.states[bits] = {**own, **{name: getattr(self.module, name).clone() for name in buffers}}
        return list(own.values())

    def use(self, bits: int) -> None:
        for name, value in self.states[bits].items():
            if isinstance(value, nn.Parameter):
                setattr(self.module, name, value)
            else:
                getattr(self.module, name).copy_(value)


class StepBank(nn.Module):
    """A network with LSQ quantizers whose searched layers can take any width, each with steps of its own.

    Args:
        network: quantized with learn="lsq", and with calibration statistics; it is changed.
        layers: the searched ones.
        widths: the candidates, each at least 2.
    """

    def __init__(self, network: QuantizedClassifier, layers: Sequence[str], widths: Sequence[int]) -> None:
        super().__init__()
        self.network, self.layers, self.widths = network, tuple(layers), tuple(widths)
        weights = network.float_weights()
        steps: list[nn.Parameter] = []
        norms: list[nn.Parameter] = []
        self._switches: dict[tuple[str, str], _Switch] = {}
        for name in self.layers:
            pair = network.quantizer(name)
            for role, quantizer in (("w", pair.w), ("a", pair.a)):
                switch = self._switches[name, role] = _Switch(quantizer)
                samples = (
                    weights[name] if isinstance(quantizer, WeightQuantizer) else network.statistics[name, role].values
                )
                for bits in self.widths:
                    steps += _first_step(switch, bits, samples)
        self._norms = {id(norm): (_Switch(norm), name) for norm, name in followers(network, self.layers)}
        for switch, _ in self._norms.values():
            for bits in self.widths:
                norms += switch.keep(bits, ("weight", "bias"))
        self.steps, self.norms = nn.ParameterList(steps), nn.ParameterList(norms)
        self.use_top()

    def use(self, widths: Widths) -> None:
        """Give the searched layers these widths; a BatchNorm follows the weights of the layer before it."""
        for name in self.layers:
            self._switches[name, "w"].use(widths[name].w)
            self._switches[name, "a"].use(widths[name].a)
        for switch, name in self._norms.values():
            switch.use(widths[name].w)

    def use_top(self) -> None:
        """Give all layers the largest width: the state in which a checkpoint is written and read."""
        self.use(dict.fromkeys(self.layers, Bits(self.widths[-1], self.widths[-1])))

    @torch.no_grad()
    def keep_positive_(self) -> None:
        """Raise steps that an update made too small or negative."""
        for step in self.steps:
            step.clamp_(min=SMALLEST)

    def importance(self) -> Importance:
        """Return the steps: a layer that needs a large one at a width suffers at that width."""

        def table(role: str) -> list[list[float]]:
            return [
                [float(self._switches[name, role].states[b]["size"].detach()) for b in self.widths]
                for name in self.layers
            ]

        return Importance(np.array(table("w")), np.array(table("a")))


def _first_step(switch: _Switch, bits: int, samples: Tensor) -> list[nn.Parameter]:
    """Keep the step that learning begins with; LIMPQ's: three deviations of a weight, twice the mean of an input."""
    quantizer = cast(WeightQuantizer | ActivationQuantizer, switch.module)
    quantizer.set_(bits, 1.0)
    if isinstance(quantizer, WeightQuantizer):
        mean, deviation = float(samples.mean()), float(samples.std(unbiased=False))
        step, changing = (abs(mean) + 3 * deviation) / 2 ** (bits - 1), ("high", "share", "offset")
    else:
        step = 2 * float(samples.abs().mean()) / float(quantizer.high) ** 0.5
        changing = ("high", "share", "low")
    quantizer.set_(bits, max(step, SMALLEST) * float(quantizer.high))
    return switch.keep(bits, ("size",), changing)


@torch.no_grad()
def followers(network: QuantizedClassifier, layers: Sequence[str]) -> list[tuple[_BatchNorm, str]]:
    """Return every BatchNorm with scales whose latest quantized layer before it is one of `layers`, and that layer."""
    latest: list[str] = []
    found: dict[int, tuple[_BatchNorm, str]] = {}
    hooks = []

    def ran(name: str) -> None:
        latest[:] = [name]

    def normalised(norm: _BatchNorm) -> None:
        if latest and latest[0] in layers and norm.affine:
            found[id(norm)] = norm, latest[0]

    for layer in network.layers:
        part = network.quantizer(layer.name).a
        hooks.append(part.register_forward_hook(lambda *_, name=layer.name: ran(name)))
    norms = [part for part in network.modules() if isinstance(part, _BatchNorm)]
    hooks += [norm.register_forward_hook(lambda norm, *_: normalised(norm)) for norm in norms]
    was_training = network.training
    try:
        network.eval()(torch.zeros(1, *network.input_shape, device=network.mean.device))
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return list(found.values())
