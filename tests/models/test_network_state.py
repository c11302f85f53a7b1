"""What a network keeps is seen wherever its code can write it, and what is only random or cached is not."""

import argparse
import array
import collections
import fractions
import functools
import io
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from arquant.models.network_state import Luck, changed, state_of

counter_elsewhere: Any = types.ModuleType("counter_elsewhere")
"""a module of the user's"""


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Private:
    __slots__ = ("__value",)

    def __init__(self) -> None:
        self.__value = 0

    def bump(self) -> None:
        self.__value += 1


def _keyword(*, counts: list[int] = [0]) -> None:  # noqa: B006 - that is what is tested
    counts[0] += 1


def _bump(part: Any) -> None:
    part["n"] = part.get("n", 0) + 1


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "a number": lambda m: setattr(m, "x", 1),
    "an array": lambda m: m.array.__iadd__(1),
    "a tensor": lambda m: m.tensor.add_(1),
    "a buffer": lambda m: m.buffer.add_(1),
    "a parameter": lambda m: m.layer.weight.data.add_(1),
    "a dict": lambda m: _bump(m.table),
    "a deque": lambda m: m.queue.append(1),
    "slots": lambda m: setattr(m.slotted, "value", 1),
    "arguments of a partial": lambda m: m.partial.keywords["last"].append(1),
    "a closure": lambda m: m.closure(),
    "an iterator": lambda m: next(m.iterator),
    "a generator function": lambda m: next(m.produced),
    "an iterator over two": lambda m: next(m.pairs),
    "private slots": lambda m: m.private.bump(),
    "a default of a keyword": lambda m: m.keyword(),
    "a property's closure": lambda m: m.counted,
    "a variable of another module": lambda m: m.elsewhere(),
    "a variable put on a library": lambda m: m.on_torch(),
    "a fraction": lambda m: setattr(m, "fraction", m.fraction + 1),
    "a namespace": lambda m: setattr(m.namespace, "n", 1),
    "an array of Python's": lambda m: m.numbers.__setitem__(0, 1),
    "bytes in memory": lambda m: m.file.write(b"x"),
}


def _closure() -> Callable[[], int]:
    count = [0]

    def call() -> int:
        count[0] += 1
        return count[0]

    return call


def _property() -> property:
    count = _closure()
    return property(lambda holder: count())


class Holder(nn.Module):
    counted = _property()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("buffer", torch.zeros(2))
        self.x, self.array, self.tensor = 0, np.zeros(2), torch.zeros(2)
        self.table: dict[str, int] = {}
        self.queue: collections.deque[int] = collections.deque()
        self.slotted = Slotted()
        self.partial = functools.partial(print, last=[])
        self.closure = _closure()
        self.iterator, self.produced = iter([1, 2, 3]), (i for i in range(9))
        self.itself = [self]
        self.pairs, self.private, self.keyword = zip(range(9), range(9), strict=True), Private(), _keyword
        self.fraction, self.namespace = fractions.Fraction(1, 2), argparse.Namespace(n=0)
        self.numbers, self.file = array.array("l", [0]), io.BytesIO()
        counter_elsewhere.calls, torch._calls_of_a_test = 0, 0  # type: ignore[attr-defined]
        next(self.produced)

    def elsewhere(self) -> None:
        counter_elsewhere.calls += 1

    def on_torch(self) -> None:
        torch._calls_of_a_test += 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen(what: str) -> None:
    holder = Holder()
    before = state_of(holder)
    assert changed(before, state_of(holder)) == []
    CHANGES[what](holder)
    assert changed(before, state_of(holder))


class Scripted(nn.Module):
    calls: int

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def test_the_attributes_of_torchscript_are_seen() -> None:
    network = nn.Sequential(torch.jit.script(Scripted()))
    network(torch.zeros(1))
    before = state_of(network)
    network(torch.zeros(1))
    assert changed(before, state_of(network))


class Gambler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generators = [torch.Generator(), np.random.default_rng(0), random.Random(0), np.random.RandomState(0)]

    def forward(self) -> list[float]:
        first, second, third, fourth = self.generators
        own = [float(torch.rand((), generator=first)), second.random(), third.random(), fourth.rand()]  # type: ignore[union-attr, call-overload]
        return [*own, float(torch.rand(())), np.random.rand(), random.random()]  # noqa: NPY002


def test_luck_can_be_had_again_and_is_no_state() -> None:
    gambler = Gambler()
    luck, before = Luck(gambler), state_of(gambler)
    first = gambler()
    following = gambler()
    assert changed(before, state_of(gambler)) == []
    with luck.again():
        assert gambler() == first
    third = gambler()
    assert len({*first, *following, *third}) == 21  # all generators went on from where they stood
    assert luck.is_tried_by(gambler)
    assert not luck.is_tried_by(lambda: None)
