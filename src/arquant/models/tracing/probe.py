"""One recorded forward pass: which layers ran, in which module, on what; and what softmax joins into attention."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from arquant.models.tracing.attention import family_of, operands, passed_on
from arquant.models.tracing.signs import REARRANGED, nonnegative, operation

UNSUPPORTED = (
    *("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "bilinear"),
    *(
        "addmm",
        "addbmm",
        "addmv",
        "mv",
        "inner",
        "vecdot",
        "linalg_vecdot",
        "tensordot",
        "chain_matmul",
        "multi_dot",
        "linalg_multi_dot",
        "convolution",
        "einsum",
    ),
)
"""functions that multiply tensors, unless `attention.family_of` knows them"""


IMAGES = "<images>"
"""stands for the images among what a tensor is computed from"""
_LIKE_ANOTHER = ("to", "type_as", "view_as", "reshape_as", "expand_as")
"""operations whose further arguments only say what the result is to look like"""
_ONLY_SHAPED = tuple(f"{kind}_like" for kind in ("zeros", "ones", "full", "empty", "rand", "randn")) + tuple(
    f"new_{kind}" for kind in ("zeros", "ones", "full", "empty", "tensor")
)
"""operations that take no values from their arguments"""


@dataclass(frozen=True)
class Operand:
    """A tensor that a layer multiplies: its shape, whether it can be negative, and which value it is.

    Tensors with the same values in another arrangement are one value. `parameter` is its path in the model, if any;
    `sources` are the paths of all parameters that it is computed from, and IMAGES, if it depends on them.
    """

    shape: tuple[int, ...]
    signed: bool
    value: int
    parameter: str = ""
    sources: frozenset[str] = frozenset()


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
    """The facts known of a tensor: sign, value number, the matmuls it comes from, and the one it is the softmax of.

    `sources` are what it is computed from, as of an `Operand`, other than through the weights of layers.
    """

    nonnegative: bool
    value: int
    matmuls: frozenset[int] = frozenset()
    softmax: int = -1
    sources: frozenset[str] = frozenset()


@dataclass
class _Active:
    path: str
    matmuls: int = 0


@dataclass
class Probe:
    """The findings of a forward pass: the records in order of execution, and unsupported calls.

    `read` are the parameters that floating-point tensors were made of other than as the weight of a record; `sources` are what
    the answer is computed from, other than through the weights of the records.
    """

    records: list[Record] = field(default_factory=list)
    unsupported: list[tuple[str, str]] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    sources: frozenset[str] = frozenset()


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
            recorder.begin(images)
            recorder.end(classifier(images))
    finally:
        for part, flag in training:
            part.training = flag
    return recorder.probe


def _eager() -> AbstractContextManager[object]:
    """Run compiled modules eagerly in this context. Importing the compiler takes seconds: only if it is in use."""
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

    def begin(self, images: Tensor) -> None:
        """Know the images when they are met."""
        self.facts[images] = _Facts(False, next(self.numbers), sources=frozenset([IMAGES]))

    def end(self, answer: Any) -> None:
        """Note what the answer is computed from."""
        self.probe.sources = _joined(self._facts(tensor) for tensor in _tensors([answer]))

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Keep `active` up to date while in this context."""
        handles = []
        for path, part in self.module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue

            def enter(_: nn.Module, __: Any, path: str = path) -> None:
                self.active.append(_Active(path))

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
        given = _tensors([*args, *kwargs.values()])
        before = [self._facts(tensor) for tensor in given]
        weight = factors[1] if family in ("conv", "linear") else None
        sources = _joined(self._facts(tensor) for tensor in _valued(name, given) if tensor is not weight)
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
        elif name in UNSUPPORTED and len(before) > 1:
            self.probe.unsupported.append((self.active[-1].path if self.active else "", name))
        if any(tensor.is_floating_point() for tensor in _tensors([result])):
            # an operation that returns its argument, as `.to` of the same type does, has read nothing
            arguments = [each for each in given if each is not result and each is not weight]
            self.probe.read |= {self.parameters[id(each)] for each in arguments if id(each) in self.parameters}
        self._mark(name, family, args, result, before, sure, sources)
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
            own = frozenset([self.parameters[id(tensor)]]) if id(tensor) in self.parameters else frozenset[str]()
            known = self.facts[tensor] = _Facts(False, next(self.numbers), sources=own)
        return known

    def _operand(self, tensor: Tensor) -> Operand:
        facts = self._facts(tensor)
        # A rule counts only if the values agree with it: writing through a view can make a tensor negative unseen.
        signed = not facts.nonnegative or bool((tensor < 0).any())
        return Operand(tuple(tensor.shape), signed, facts.value, self.parameters.get(id(tensor), ""), facts.sources)

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

    def _mark(
        self, name: str, family: str, args: Sequence[Any], result: Any, before: list[_Facts], sure: bool,
        sources: frozenset[str],
    ) -> None:  # fmt: skip
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
            self.facts[tensor] = _Facts(sure, value, matmuls, softmax, sources)

    def _find_queries(self, record: Record, args: Sequence[Any], scores: Tensor) -> None:
        """Find the operand that is Q by the axis of the softmax, which runs over the keys."""
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


def _valued(name: str, given: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the tensors of an operation whose values its result may depend on."""
    if name in _ONLY_SHAPED:
        return ()
    return given[:1] if name in _LIKE_ANOTHER else given


def _joined(facts: Iterable[_Facts]) -> frozenset[str]:
    return frozenset[str]().union(*(each.sources for each in facts))


def _tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested lists and tuples."""
    if isinstance(values, Tensor):
        return [values]
    return [tensor for value in values for tensor in _tensors(value)] if isinstance(values, list | tuple) else []
