"""One recorded forward pass: which layers ran, in which module, on what; and what softmax joins into attention."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from arquant.attention import family_of, operands, passed_on
from arquant.signs import REARRANGED, nonnegative, operation

UNSUPPORTED = (
    *("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "bilinear"),
    *(
        "addmm",
        "addbmm",
        "addmv",
        "mv",
        "inner",
        "tensordot",
        "chain_matmul",
        "multi_dot",
        "linalg_multi_dot",
        "einsum",
    ),
)
"""functions that multiply tensors, unless `attention.family_of` knows them"""


@dataclass(frozen=True)
class Operand:
    """A tensor that a layer multiplies: its shape, whether it can be negative, and which value it is.

    Tensors with the same values in another arrangement are one value. `parameter` is its path in the model, if any.
    """

    shape: tuple[int, ...]
    signed: bool
    value: int
    parameter: str = ""


@dataclass
class Record:
    """One call that multiplies tensors.

    `stack` holds the paths of the active modules, outermost first; `index` the number of the matmul call in each.
    `options` are stride, padding, dilation and groups of a convolution, or the equation of an einsum. `role` is "qk" or
    "av" once the call is known to be a half of attention, `partner` the number of the other half's record and `a` the
    operand that is Q or the probabilities; `role` is "fused" if the call is both halves.
    """

    family: str
    operands: list[Operand]
    out_shape: tuple[int, ...]
    stack: tuple[str, ...]
    index: dict[str, int]
    options: dict[str, Any]
    role: str = ""
    partner: int = -1
    a: int = 0


@dataclass
class _Facts:
    """What is known of a tensor: sign, value number, the matmuls it comes from, and the one it is the softmax of."""

    nonnegative: bool
    value: int
    matmuls: frozenset[int] = frozenset()
    softmax: int = -1


@dataclass
class _Active:
    path: str
    matmuls: int = 0


@dataclass
class Probe:
    """What a forward pass showed: the records in order of execution, unsupported calls, and how often modules ran.

    `read` are the parameters that operations other than those of the records made floating-point tensors of.
    """

    records: list[Record] = field(default_factory=list)
    unsupported: list[tuple[str, str]] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    read: set[str] = field(default_factory=set)


def run_probe(classifier: nn.Module, module: nn.Module, images: Tensor) -> Probe:
    """Run `classifier(images)` in eval mode without gradients, recording what `module` (a part of it) does.

    Nothing of the model changes: training flags are restored and hooks removed. The fast paths of
    `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` are off, as they are whenever a function mode is active.
    """
    recorder = _Recorder(module)
    training = [(part, part.training) for part in classifier.modules()]
    classifier.eval()
    try:
        with torch.no_grad(), _eager(), recorder.hooks(), recorder:
            classifier(images)
    finally:
        for part, flag in training:
            part.training = flag
    return recorder.probe


def _eager() -> AbstractContextManager[object]:
    """Compiled modules run eagerly in this context. Importing the compiler takes seconds: only if it is in use."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class _Recorder(TorchFunctionMode):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.probe = Probe()
        self.facts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.parameters = {id(tensor): name for name, tensor in module.named_parameters()}
        self.active: list[_Active] = []
        self.numbers = count()

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Keep `active` up to date while in this context."""
        handles = []
        for path, part in self.module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue

            def enter(_: nn.Module, __: Any, path: str = path) -> None:
                self.active.append(_Active(path))
                self.probe.runs[path] += 1

            def leave(_: nn.Module, __: Any, ___: Any) -> None:
                self.active.pop()

            handles.append(part.register_forward_pre_hook(enter))
            handles.append(part.register_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, family = operation(func), family_of(func, args)
        factors = operands(func, args, kwargs) if family else []
        seen = [self._operand(tensor) for tensor in factors]
        before = [self._facts(tensor) for tensor in _tensors([*args, *kwargs.values()])]
        sure = nonnegative(name, args, kwargs, lambda tensor: self._facts(tensor).nonnegative)
        result = passed_on(self, func, args, kwargs)
        if name == "multi_head_attention_forward":
            return result
        if family:
            options = _options(name, args, kwargs)
            stack = tuple(active.path for active in self.active)
            record = Record(family, seen, tuple(result.shape), stack, self._index(family), options)
            record.role = "fused" if name == "scaled_dot_product_attention" else ""
            self._pair(record, [self._facts(tensor) for tensor in factors])
        else:
            if any(tensor.is_floating_point() for tensor in _tensors([result])):
                # an operation that returns its argument, as `.to` of the same type does, has read nothing
                arguments = [each for each in _tensors([*args, *kwargs.values()]) if each is not result]
                self.probe.read |= {self.parameters[id(each)] for each in arguments if id(each) in self.parameters}
            if name in UNSUPPORTED and len(before) > 1:
                self.probe.unsupported.append((self.active[-1].path if self.active else "", name))
        self._mark(name, family, args, result, before, sure)
        return result

    def _index(self, family: str) -> dict[str, int]:
        index = {active.path: active.matmuls for active in self.active}
        if family == "matmul":
            for active in self.active:
                active.matmuls += 1
        return index

    def _facts(self, tensor: Tensor) -> _Facts:
        known: _Facts | None = self.facts.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            known = self.facts[tensor] = _Facts(False, next(self.numbers))
        return known

    def _operand(self, tensor: Tensor) -> Operand:
        facts = self._facts(tensor)
        # A rule counts only if the values agree with it: writing through a view can make a tensor negative unseen.
        signed = not facts.nonnegative or bool((tensor < 0).any())
        return Operand(tuple(tensor.shape), signed, facts.value, self.parameters.get(id(tensor), ""))

    def _pair(self, record: Record, factors: list[_Facts]) -> None:
        """Add a record; if one of its factors is the softmax of another matmul's result, the two are attention."""
        records = self.probe.records
        records.append(record)
        if record.family != "matmul" or record.role:
            return
        for place, facts in enumerate(factors):
            if facts.softmax >= 0 and not records[facts.softmax].role:
                records[facts.softmax].role, record.role = "qk", "av"
                records[facts.softmax].partner, record.partner = len(records) - 1, facts.softmax
                record.a = place
                return

    def _mark(self, name: str, family: str, args: Sequence[Any], result: Any, before: list[_Facts], sure: bool) -> None:
        """Note what is known of the results of an operation, from what was known of its arguments `before`."""
        records, results = self.probe.records, _tensors([args[0]] if name == "setitem" else [result])
        matmuls = frozenset(number for facts in before for number in facts.matmuls if not records[number].role)
        softmax = max((facts.softmax for facts in before), default=-1)
        if family == "matmul":
            matmuls, softmax = frozenset([len(records) - 1]), -1
        elif family:
            # Only a layer that mixes scores across heads ("talking heads") keeps their number.
            matmuls = frozenset(n for n in matmuls if prod(records[n].out_shape) == result.numel())
            softmax = softmax if softmax >= 0 and prod(records[softmax].out_shape) == result.numel() else -1
        elif name == "softmax" and matmuls:
            softmax = max(matmuls, key=lambda n: (prod(records[n].out_shape) == result.numel(), n))
            self._find_queries(records[softmax], args, result)
        for tensor in results:
            value = before[0].value if name in REARRANGED and before else next(self.numbers)
            self.facts[tensor] = _Facts(sure, value, matmuls, softmax)

    def _find_queries(self, record: Record, args: Sequence[Any], scores: Tensor) -> None:
        """Which operand is Q, from the axis of the softmax: that axis runs over the keys."""
        axis = next((arg for arg in args[1:] if isinstance(arg, int)), -1) % scores.dim()
        labels = str(record.options.get("equation", "")).replace(" ", "").partition("->")[2]
        if tuple(scores.shape) != record.out_shape or record.role:
            return
        if len(labels) == scores.dim():
            first = str(record.options["equation"]).partition(",")[0]
            record.a = 1 if labels[axis] in first else 0
        else:
            record.a = 1 if axis == scores.dim() - 2 else 0


def _options(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if name == "einsum":
        return {"equation": args[0]}
    if name != "conv2d":
        return {}
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    return {
        **defaults,
        **dict(zip(defaults, args[3:], strict=False)),
        **{k: kwargs[k] for k in defaults if k in kwargs},
    }


def _tensors(values: Any) -> list[Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(values, Tensor):
        return [values]
    return [tensor for value in values for tensor in _tensors(value)] if isinstance(values, list | tuple) else []
