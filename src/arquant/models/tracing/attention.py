"""Recognise functional calls as layers, in the same way when layers are found and when they run.

Most layers are modules whose own forward computes them, and can be replaced. Others are computed inside the forward of
another module, the *scope*: the two matmuls of attention, the projections of `nn.MultiheadAttention`, weights handed to
`F.linear`. A `Call` says where such a layer is computed:

- `matmul` calls (`@`, `bmm`, `einsum`, ..., `scaled_dot_product_attention`) by their number since the scope's forward
  began, counting those of submodules too. Scopes with attention never contain one another: `find_layers` sees to it.
- `conv` and `linear` calls by the parameter they use, a path relative to the scope; if the weight is computed (`weight`
  is ""), every call of that family in the scope is meant.

`find_layers` records a `Call` for each layer. To intercept layers at run time, give the calls of one scope to `tap`:
it changes the class of that module (as `torch.nn.utils.parametrize` does: paths and state-dict are unchanged, copies
work), so that during its forward `quantize(layer name, "a" or "w", operand)` replaces each operand: `a` is Q or the
probabilities and `w` K or V for matmuls; input and weight for the others. `torch.compile(fullgraph=True)` traces it.
Fused attention is then computed as two matmuls, since its probabilities must be seen.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Quantize: TypeAlias = Callable[[str, str, Tensor], Tensor]


@dataclass(frozen=True)
class Call:
    """The place of a layer: a call of `family` ("conv", "linear", "matmul") in the forward of the module `scope`.

    `index` numbers the matmul calls; `weight` is the parameter's path relative to the scope. `a` says which of the two
    operands of a matmul is Q or the probabilities. `fused` is "qk" or "av": a half of scaled_dot_product_attention.
    """

    scope: str
    family: str
    index: int = 0
    weight: str = ""
    a: int = 0
    fused: str = ""


_PAIR = ((0, "input"), (1, "weight"))
_MATMUL = ((0, "input"), (1, "other"))
_MM = ((0, "input"), (1, "mat2"))
_BADDBMM = ((1, "batch1"), (2, "batch2"))
_SDPA = ((0, "query"), (1, "key"), (2, "value"))
_EINSUM = ((1, ""), (2, ""))
_FUNCTIONS: dict[Any, tuple[str, tuple[tuple[int, str], ...]]] = {
    functional.conv2d: ("conv", _PAIR),
    functional.linear: ("linear", _PAIR),
    torch.matmul: ("matmul", _MATMUL),
    torch.Tensor.matmul: ("matmul", _MATMUL),
    torch.Tensor.__matmul__: ("matmul", _MATMUL),
    torch.Tensor.__rmatmul__: ("matmul", ((1, "other"), (0, "input"))),
    operator.matmul: ("matmul", _MATMUL),
    torch.linalg.matmul: ("matmul", _MATMUL),
    torch.bmm: ("matmul", _MM),
    torch.Tensor.bmm: ("matmul", _MM),
    torch.mm: ("matmul", _MM),
    torch.Tensor.mm: ("matmul", _MM),
    torch.baddbmm: ("matmul", _BADDBMM),
    torch.Tensor.baddbmm: ("matmul", _BADDBMM),
    torch.einsum: ("matmul", _EINSUM),
    functional.scaled_dot_product_attention: ("matmul", _SDPA),
}


def family_of(func: Any, args: Sequence[Any]) -> str:
    """Return the family of a call that multiplies tensors ("conv", "linear" or "matmul"), else ""."""
    if func not in _FUNCTIONS or (func is torch.einsum and not (len(args) == 3 and isinstance(args[1], Tensor))):
        return ""
    return _FUNCTIONS[func][0]


def operands(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that such a function multiplies: (input, weight), (left, right) or (Q, K, V)."""
    return [args[place] if place < len(args) else kwargs[name] for place, name in _FUNCTIONS[func][1]]


def call_with(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]) -> Any:
    """Call the function with its `operands` replaced."""
    new_args, new_kwargs = list(args), dict(kwargs)
    for (place, name), tensor in zip(_FUNCTIONS[func][1], tensors, strict=True):
        if place < len(args):
            new_args[place] = tensor
        else:
            new_kwargs[name] = tensor
    return func(*new_args, **new_kwargs)


def _never(_: object) -> bool:
    return False


_MHA: Any = functional.multi_head_attention_forward
# torch hands all of multi_head_attention_forward to a function mode at once; without its check it runs piecewise.
_MHA_PIECEWISE: Any = FunctionType(
    _MHA.__code__, {**vars(functional), "has_torch_function": _never}, _MHA.__name__, _MHA.__defaults__
)


def passed_on(mode: TorchFunctionMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a function that is no layer itself, so that `mode` sees the layers inside multi_head_attention_forward."""
    if func is _MHA:
        with mode:
            return _MHA_PIECEWISE(*args, **kwargs)
    if func is torch.Tensor.unflatten:  # its body calls super(), which torch.compile cannot trace under a function mode
        return torch.unflatten(*args, **kwargs)
    return func(*args, **kwargs)


class Tap(TorchFunctionMode):
    """While active, replaces the operands of the given layers by what `quantize` makes of them."""

    def __init__(self, calls: Mapping[str, Call], weights: Mapping[str, Tensor | None], quantize: Quantize) -> None:
        super().__init__()
        self.matmuls: dict[int, dict[str, tuple[str, Call]]] = {}
        self.linears: list[tuple[str, str, Tensor | None]] = []
        for name, call in calls.items():
            if call.family == "matmul":
                self.matmuls.setdefault(call.index, {})[call.fused] = (name, call)
            else:
                self.linears.append((call.family, name, weights[name]))
        self.quantize = quantize
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        family = family_of(func, args)
        if family == "matmul":
            self.count += 1
            if self.count - 1 in self.matmuls:
                return self._matmul(func, args, kwargs, self.matmuls[self.count - 1])
        elif family:
            x, weight = operands(func, args, kwargs)
            for wanted, name, parameter in self.linears:
                if wanted == family and (parameter is None or parameter is weight):
                    tensors = [self.quantize(name, "a", x), self.quantize(name, "w", weight)]
                    return call_with(func, args, kwargs, tensors)
        return passed_on(self, func, args, kwargs)

    def _matmul(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], halves: dict[str, tuple[str, Call]]
    ) -> Any:
        tensors = operands(func, args, kwargs)
        if func is not functional.scaled_dot_product_attention:
            name, call = halves[""]
            roles = ("a", "w") if call.a == 0 else ("w", "a")
            new = [self.quantize(name, role, tensor) for role, tensor in zip(roles, tensors, strict=True)]
            return call_with(func, args, kwargs, new)
        options = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False)), **kwargs}
        options = {key: value for key, value in options.items() if key not in ("query", "key", "value")}
        query, key, value = tensors
        if "qk" in halves:
            query = self.quantize(halves["qk"][0], "a", query)
            key = self.quantize(halves["qk"][0], "w", key)
        probabilities = attention_probabilities(query, key, **options)
        if "av" in halves:
            probabilities = self.quantize(halves["av"][0], "a", probabilities)
            value = self.quantize(halves["av"][0], "w", value)
        return probabilities @ _repeat_heads(value, query.shape[-3])


def attention_probabilities(
    query: Tensor,
    key: Tensor,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the softmax inside `F.scaled_dot_product_attention`; times V it is that function's result."""
    if enable_gqa:
        key = _repeat_heads(key, query.shape[-3])
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, float("-inf"))
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if masked else scores + attn_mask
    probabilities = scores.softmax(-1)
    return functional.dropout(probabilities, dropout_p) if dropout_p else probabilities


def _repeat_heads(tensor: Tensor, heads: int) -> Tensor:
    """Repeat the K or V heads of grouped-query attention, in which each serves several Q heads."""
    if tensor.dim() < 4 or tensor.shape[-3] == heads:
        return tensor
    return tensor.repeat_interleave(heads // tensor.shape[-3], -3)


class _Tapped:
    """Mixed into the class of a tapped module; `super().forward` is the module's own."""

    tapped_calls: Mapping[str, Call]
    tapped_quantize: Quantize

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward with the tap on."""
        weights = {name: _parameter(self, call.weight) for name, call in self.tapped_calls.items()}
        tap_mode = Tap(self.tapped_calls, weights, self.tapped_quantize)
        with tap_mode:
            return super().forward(*args, **kwargs)  # type: ignore[misc]


def tap(module: nn.Module, calls: Mapping[str, Call], quantize: Quantize) -> None:
    """Let `quantize` see, from now on, the operands of the layers `calls` (name -> Call) computed by this scope module.

    `quantize` becomes the attribute `tapped_quantize`; if it is a module, its buffers join the state-dict there.
    """
    if isinstance(module, _Tapped):
        raise ValueError(f"{type(module).__name__} is tapped already")
    module.tapped_calls = dict(calls)  # type: ignore[assignment]
    module.tapped_quantize = quantize  # type: ignore[assignment]
    module.__class__ = type("Tapped" + type(module).__name__, (_Tapped, type(module)), {})


def _parameter(module: Any, path: str) -> Tensor | None:
    for part in path.split(".") if path else ():
        module = getattr(module, part)
    return module if path else None
